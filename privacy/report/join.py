"""Sites' reports on one job, side by side: what all of them say, what adds up, and nothing that is a site's alone.

A joined report is not signed. Whoever has the reports, which are, can make it again.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from audits import Judgement, NewerFormat, VerdictPart
from audits.format_numbers import check_number
from audits.judgement import BROKEN, NOT_SHOWN, SHOWN
from privacy.report.claim import rounded_up
from privacy.report.facts import ReportError
from privacy.report.model_conduct import KindTotal, Report, State
from privacy.report.model_guarantee import ReportIdentity
from privacy.report.report_evidence import Frozen
from privacy.report.report_files import indented_json
from privacy.report.wording import Wording, Wordings, differences, figures_of

FORMAT: Final = "medfedvqa.joined-privacy-reports/1"
JOINED = "joined.json"

LEFT_OUT = (
    "the ledgers: what each site spent on other jobs, its limits, and what is left",
    "log entries and their proofs, cohorts, refusals of other jobs",
    "accuracies: they are the sites' own",
    "how the data were de-identified, and which options a site retained",
)


class SitePart(Frozen):
    """One site's report on this job, in figures."""

    site: str
    report: str
    sha256: str
    """Of `report.json`."""
    signer: str
    created: str
    state: str
    claimed: bool
    sentence: Wording
    epsilon: float | None
    delta: float | None
    mu: float | None
    aggregation: str
    messages: int
    nbytes: int
    by_kind: tuple[KindTotal, ...]
    cosigners: int
    lower_bound: float | None
    """The largest epsilon that attacks prove."""
    broken: tuple[str, ...]
    """Rules that the report says were broken."""
    not_shown: tuple[str, ...]
    """Rules that it does not show to be kept."""


class Agreement(Frozen):
    """Something that reports on one job have in common, or ought to have."""

    what: str
    state: State
    said: Wording


class JoinedReport(Frozen):
    """The reports of several sites on one job."""

    format: Literal["medfedvqa.joined-privacy-reports/1"] = FORMAT
    job: str
    method: str
    created: str
    """When the newest of the reports was made."""
    sites: tuple[SitePart, ...]
    missing: tuple[str, ...]
    """Sites of the job whose report is not here."""
    agreements: tuple[Agreement, ...]
    state: State
    sentence: Wording
    epsilon: float | None
    """The largest of the sites'."""
    delta: float | None
    messages: int
    nbytes: int
    by_kind: tuple[KindTotal, ...]
    left_out: Wordings


def verify_joined(content: bytes, expected: JoinedReport) -> Judgement:
    """Whether a file, `joined.json`, has the figures of the joined report that was `expected` of the reports here.

    A joined report is not signed, so that sentences which this version would not write are not shown to be anybody's.
    """
    try:
        report = JoinedReport.model_validate_json(content)
    except (ValueError, RecursionError):
        report = None
        try:
            check_number(json.loads(content)["format"], FORMAT, "the joined report")
        except NewerFormat as error:
            return Judgement((VerdictPart("schema", NOT_SHOWN, str(error)),))
        except (ValueError, LookupError, TypeError, RecursionError):
            pass
    if report is None:
        return Judgement((VerdictPart("schema", BROKEN, "this is no joined report of this version"),))
    where = next(differences(figures_of(report), figures_of(expected, whole=True), ""), None)
    if where:
        return Judgement((VerdictPart("figures", BROKEN, f"{where} is not what these reports come to"),))
    figures = VerdictPart("figures", SHOWN, "all figures are what these reports come to")
    if content == indented_json(expected.model_dump(mode="json")):
        return Judgement((figures, VerdictPart("wording", SHOWN, "all sentences are those of this version")))
    sentence = "sentences that this version would not write: another version made them, or they were edited"
    return Judgement((figures, VerdictPart("wording", NOT_SHOWN, sentence)))


class SourceReport(NamedTuple):
    """A report and the SHA-256 of its file."""

    report: Report
    sha256: str


def join(sources: Iterable[SourceReport]) -> JoinedReport:
    """The reports side by side, by the names of their sites. Raises `ReportError` unless they are of several sites."""
    reports = sorted(sources, key=lambda item: item.report.sections.identity.site)
    names = [item.report.sections.identity.site for item in reports]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ReportError("reports are joined of two sites or more, one of each: leave out what is there twice")
    sections = [item.report.sections for item in reports]
    agreements = tuple(_agreements([item.identity for item in sections]))
    claims = [item.claim for item in sections]
    all_claim = all(item.made for item in claims)
    epsilons = [item.epsilon for item in claims if item.epsilon is not None]
    deltas = [item.delta for item in claims if item.delta is not None]
    return JoinedReport(
        job=sections[0].identity.job,
        method=sections[0].identity.method,
        created=max(item.identity.created for item in sections),
        sites=tuple(_part(item) for item in reports),
        missing=tuple(sorted({name for item in sections for name in item.identity.sites} - set(names))),
        agreements=agreements,
        state="broken" if any(item.state == "broken" for item in agreements) else "shown",
        sentence=_sentence(max(epsilons), max(deltas), len(sections)) if all_claim else _NO_CLAIM,
        epsilon=max(epsilons) if all_claim else None,
        delta=max(deltas) if all_claim else None,
        messages=sum(item.egress.messages for item in sections),
        nbytes=sum(item.egress.nbytes for item in sections),
        by_kind=_sum(total for item in sections for total in item.egress.by_kind),
        left_out=LEFT_OUT,
    )


_NO_CLAIM = "Not all of these sites claim differential privacy: none is claimed for the federation."


def _sentence(epsilon: float, delta: float, sites: int) -> str:
    return (
        f"At none of these {sites} sites has what was released for the job cost a patient more than epsilon "
        f"{rounded_up(epsilon)} at delta {delta:g}. Epsilons of sites do not add up, since each is about other "
        "patients; of a patient whom several of them treat they do."
    )


def _part(source: SourceReport) -> SitePart:
    sections, rules = source.report.sections, source.report.sections.verdicts.rules
    return SitePart(
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
        by_kind=sections.egress.by_kind,
        cosigners=len(sections.egress.proofs.cosigners),
        lower_bound=sections.empirical.lower_bound,
        broken=tuple(rule.rule for rule in rules if rule.state == "broken" and rule.rule not in _OWN),
        not_shown=tuple(rule.rule for rule in rules if rule.state == "not shown" and rule.rule not in _OWN),
    )


_OWN = ("de-identified", "within limits")
"""Rules whose state tells of a site's data or policy."""

_SAME: tuple[tuple[str, Callable[[ReportIdentity], object]], ...] = (
    ("job", lambda one: one.job),
    ("method", lambda one: one.method),
    ("code", lambda one: one.same_code),
    ("backbone", lambda one: one.backbone_digest),
    ("exchange", lambda one: one.exchange_digest),
    ("settings", lambda one: one.config_digest),
    ("sites", lambda one: one.sites),
)


def _agreements(identities: Sequence[ReportIdentity]) -> Iterator[Agreement]:
    for what, value in _SAME:
        values = {value(identity) for identity in identities}
        if None in values:
            yield Agreement(what=what, state="not shown", said="not all reports say it")
        elif len(values) > 1:
            yield Agreement(what=what, state="broken", said="the reports name different ones")
        else:
            yield Agreement(what=what, state="shown", said="all reports name the same")


def _sum(totals: Iterable[KindTotal]) -> tuple[KindTotal, ...]:
    tensors: Counter[tuple[str, str]] = Counter()
    nbytes: Counter[tuple[str, str]] = Counter()
    for total in totals:
        tensors[total.kind, total.protection] += total.tensors
        nbytes[total.kind, total.protection] += total.nbytes
    return tuple(
        KindTotal(kind=kind, protection=protection, tensors=count, nbytes=nbytes[kind, protection])
        for (kind, protection), count in sorted(tensors.items())
    )
