"""Joins sites' reports on one job: common facts and sums, without facts about a single site.

A joined report is not signed. Whoever has the signed reports can make it again.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from audits import CodeKind, Judgement, NewerFormat, VerdictPart
from audits.bounded_files import check_number
from audits.judgement import BROKEN, NOT_SHOWN, SHOWN
from privacy.report.claim import rounded_up
from privacy.report.facts import Part, ReportError
from privacy.report.figures import JOINED as JOINED_FIGURES
from privacy.report.figures import Report, Rows, Sections, differences, rows_of_tree, tree_of_rows, view
from privacy.report.report_files import indented_json

FORMAT: Final = "medfedvqa.joined-privacy-reports/1"
JOINED = "joined.json"

LEFT_OUT = (
    "the ledgers: what each site spent on other jobs, its limits, and what is left",
    "log entries and their proofs, cohorts, refusals of other jobs",
    "accuracies: they are the sites' own",
    "how the data were de-identified, and which options a site retained",
)


@dataclass(frozen=True)
class JoinedReport:
    """The reports of several sites on one job. Each row is an attribute: `joined.epsilon` is the largest epsilon."""

    rows: Rows

    @classmethod
    def read(cls, content: bytes) -> "JoinedReport":
        """Reads `joined.json`. Raises `ReportError`, `NewerFormat`, or an error of parsing for other content."""
        document = json.loads(content)
        if not check_number(document.pop("format"), FORMAT, "the joined report"):
            raise ReportError("this is not a joined report")
        return cls(rows_of_tree(document, listing=JOINED_FIGURES))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parts, name)

    @cached_property
    def _parts(self) -> Sections:
        return view(self.rows, JOINED_FIGURES)

    def to_bytes(self) -> bytes:
        """The file, `joined.json`."""
        return indented_json({"format": FORMAT, **tree_of_rows(self.rows, JOINED_FIGURES)})


def verify_joined(content: bytes, expected: JoinedReport) -> Judgement:
    """Whether the content of `joined.json` has the figures of `expected`, which was joined from the reports here.

    A joined report is not signed: nobody vouches for sentences that this version would not write.
    """
    try:
        rows = JoinedReport.read(content).rows
    except NewerFormat as error:
        return Judgement((VerdictPart("schema", NOT_SHOWN, str(error)),))
    except (ReportError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Judgement((VerdictPart("schema", BROKEN, "this is not a joined report of this version"),))
    if where := next(differences(rows, expected.rows, listing=JOINED_FIGURES), None):
        return Judgement((VerdictPart("figures", BROKEN, f"{where} is not what these reports come to"),))
    figures = VerdictPart("figures", SHOWN, "all figures are what these reports come to")
    if not list(differences(rows, expected.rows, words=True, listing=JOINED_FIGURES)):
        return Judgement((figures, VerdictPart("wording", SHOWN, "all sentences are those of this version")))
    sentence = "sentences that this version would not write: another version made them, or they were edited"
    return Judgement((figures, VerdictPart("wording", NOT_SHOWN, sentence)))


class SourceReport(NamedTuple):
    """A report and the SHA-256 of its file."""

    report: Report
    sha256: str


def join(sources: Iterable[SourceReport]) -> JoinedReport:
    """The reports side by side, by site. Raises `ReportError` unless there are two or more, each of another site."""
    reports = sorted(sources, key=lambda item: item.report.sections.identity.site)
    names = [item.report.sections.identity.site for item in reports]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ReportError("joining takes reports of two or more sites, one of each: leave out duplicates")
    sections = [item.report.sections for item in reports]
    agreements = tuple(_agreements([item.identity for item in sections]))
    claims = [item.claim for item in sections]
    all_claim = all(item.made for item in claims)
    epsilons = [item.epsilon for item in claims if item.epsilon is not None]
    deltas = [item.delta for item in claims if item.delta is not None]
    joined = dict(
        job=sections[0].identity.job,
        method=sections[0].identity.method,
        created=max(item.identity.created for item in sections),
        sites=tuple(_part(item) for item in reports),
        missing=tuple(sorted({name for item in sections for name in item.identity.sites} - set(names))),
        agreements=agreements,
        state="broken" if any(item["state"] == "broken" for item in agreements) else "shown",
        sentence=_sentence(max(epsilons), max(deltas), len(sections)) if all_claim else _NO_CLAIM,
        epsilon=max(epsilons) if all_claim else None,
        delta=max(deltas) if all_claim else None,
        messages=sum(item.egress.messages for item in sections),
        nbytes=sum(item.egress.nbytes for item in sections),
        by_kind=_sum(total for item in sections for total in item.egress.by_kind),
        left_out=LEFT_OUT,
    )
    return JoinedReport(rows_of_tree(joined, listing=JOINED_FIGURES))


_NO_CLAIM = "Not all of these sites claim differential privacy: none is claimed for the federation."


def _sentence(epsilon: float, delta: float, sites: int) -> str:
    return (
        f"At none of these {sites} sites has what was released for the job cost a patient more than epsilon "
        f"{rounded_up(epsilon)} at delta {delta:g}. Epsilons of sites do not add up, since each is about other "
        "patients; of a patient whom several of them treat they do."
    )


def _part(source: SourceReport) -> Part:
    sections, rules = source.report.sections, source.report.sections.verdicts.rules
    return dict(
        site=sections.identity.site,
        report=sections.identity.report,
        sha256=source.sha256,
        signer=sections.identity.signer,
        created=sections.identity.created,
        state=sections.identity.state,
        claimed=sections.claim.made,
        sentence=sections.claim.sentence,
        epsilon=sections.claim.epsilon,
        delta=sections.claim.delta,
        mu=sections.claim.mu,
        aggregation=sections.trust.aggregation,
        messages=sections.egress.messages,
        nbytes=sections.egress.nbytes,
        by_kind=[vars(total) for total in sections.egress.by_kind],
        cosigners=len(sections.egress.proofs.cosigners),
        lower_bound=sections.empirical.lower_bound,
        broken=tuple(rule.rule for rule in rules if rule.state == "broken" and rule.rule not in _OWN),
        not_shown=tuple(rule.rule for rule in rules if rule.state == "not shown" and rule.rule not in _OWN),
    )


_OWN = ("de-identified", "within limits")
"""Rules with a state that reveals a site's data or policy."""


def _same_code(identity: Sections) -> object:
    """The code that all sites of a job share; dependencies may differ, such as torch with and without CUDA."""
    parts = [part for part in identity.code_parts if part.kind != CodeKind.DEPENDENCY.value]
    return frozenset((part.kind, part.name, part.version, part.sha256) for part in parts) or identity.code_digests


_SAME: tuple[tuple[str, Callable[[Sections], object]], ...] = (
    ("job", lambda one: one.job),
    ("method", lambda one: one.method),
    ("code", _same_code),
    ("backbone", lambda one: one.backbone_digest),
    ("exchange", lambda one: one.exchange_digest),
    ("settings", lambda one: one.config_digest),
    ("sites", lambda one: one.sites),
)


def _agreements(identities: Sequence[Sections]) -> Iterator[Part]:
    for what, value in _SAME:
        values = {value(identity) for identity in identities}
        if None in values:
            yield dict(what=what, state="not shown", said="not all reports say it")
        elif len(values) > 1:
            yield dict(what=what, state="broken", said="the reports name different ones")
        else:
            yield dict(what=what, state="shown", said="all reports name the same")


def _sum(totals: Iterable[Sections]) -> tuple[Part, ...]:
    tensors: Counter[tuple[str, str]] = Counter()
    nbytes: Counter[tuple[str, str]] = Counter()
    for total in totals:
        tensors[total.kind, total.protection] += total.tensors
        nbytes[total.kind, total.protection] += total.nbytes
    return tuple(
        dict(kind=kind, protection=protection, tensors=count, nbytes=nbytes[kind, protection])
        for (kind, protection), count in sorted(tensors.items())
    )
