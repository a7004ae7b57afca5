"""Sites' reports on one job, side by side: what all of them say, what adds up, and nothing that is a site's alone.

A joined report is not signed. Whoever has the reports, which are, can make it again.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from audits import Judgement, NewerFormat, VerdictPart, VerdictState
from audits.format_numbers import check_number
from privacy.report.claim import rounded_up
from privacy.report.facts import ReportError
from privacy.report.model_conduct import KindTotal, Report, State
from privacy.report.model_guarantee import ReportIdentity
from privacy.report.report_evidence import Frozen
from privacy.report.report_files import encoded
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
    """What one site's report says of this job."""

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


def verify_joined(content: bytes, made: JoinedReport) -> Judgement:
    """Whether a file, `joined.json`, has the figures of the joined report that was `made` of the reports here.

    A joined report is not signed, so that sentences which this version would not write are not shown to be anybody's.
    """
    try:
        report = JoinedReport.model_validate_json(content)
    except (ValueError, RecursionError):
        report = None
        try:
            check_number(json.loads(content)["format"], FORMAT, "the joined report")
        except NewerFormat as error:
            return Judgement((VerdictPart("schema", VerdictState.NOT_SHOWN, str(error)),))
        except (ValueError, LookupError, TypeError, RecursionError):
            pass
    if report is None:
        return Judgement((VerdictPart("schema", VerdictState.BROKEN, "this is no joined report of this version"),))
    where = next(differences(figures_of(report), figures_of(made, whole=True), ""), None)
    if where:
        return Judgement((VerdictPart("figures", VerdictState.BROKEN, f"{where} is not what these reports come to"),))
    figures = VerdictPart("figures", VerdictState.SHOWN, "all figures are what these reports come to")
    if content == encoded(made.model_dump(mode="json")):
        return Judgement(
            (figures, VerdictPart("wording", VerdictState.SHOWN, "all sentences are those of this version"))
        )
    said = "sentences that this version would not write: another version made them, or they were edited"
    return Judgement((figures, VerdictPart("wording", VerdictState.NOT_SHOWN, said)))


class SourceReport(NamedTuple):
    """A report and the SHA-256 of its file."""

    report: Report
    sha256: str


def join(given: Iterable[SourceReport]) -> JoinedReport:
    """The reports side by side, by the names of their sites. Raises `ReportError` unless they are of several sites."""
    reports = sorted(given, key=lambda one: one.report.sections.identity.site)
    names = [one.report.sections.identity.site for one in reports]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ReportError("reports are joined of two sites or more, one of each: leave out what is there twice")
    told = [one.report.sections for one in reports]
    agreements = tuple(_agreements([one.identity for one in told]))
    claims = [one.claim for one in told]
    all_claim = all(one.made for one in claims)
    epsilons = [one.epsilon for one in claims if one.epsilon is not None]
    deltas = [one.delta for one in claims if one.delta is not None]
    return JoinedReport(
        job=told[0].identity.job,
        method=told[0].identity.method,
        created=max(one.identity.created for one in told),
        sites=tuple(_part(one) for one in reports),
        missing=tuple(sorted({name for one in told for name in one.identity.sites} - set(names))),
        agreements=agreements,
        state="broken" if any(one.state == "broken" for one in agreements) else "shown",
        sentence=_sentence(max(epsilons), max(deltas), len(told)) if all_claim else _NO_CLAIM,
        epsilon=max(epsilons) if all_claim else None,
        delta=max(deltas) if all_claim else None,
        messages=sum(one.egress.messages for one in told),
        nbytes=sum(one.egress.nbytes for one in told),
        by_kind=_sum(total for one in told for total in one.egress.by_kind),
        left_out=LEFT_OUT,
    )


_NO_CLAIM = "Not all of these sites claim differential privacy: none is claimed for the federation."


def _sentence(epsilon: float, delta: float, sites: int) -> str:
    return (
        f"At none of these {sites} sites has what was released for the job cost a patient more than epsilon "
        f"{rounded_up(epsilon)} at delta {delta:g}. Epsilons of sites do not add up, since each is about other "
        "patients; of a patient whom several of them treat they do."
    )


def _part(one: SourceReport) -> SitePart:
    told, rules = one.report.sections, one.report.sections.verdicts.rules
    return SitePart(
        site=told.identity.site,
        report=told.identity.report,
        sha256=one.sha256,
        signer=told.identity.signer,
        created=told.identity.created,
        state=told.identity.state,
        claimed=told.claim.made,
        sentence=told.claim.sentence,
        epsilon=told.claim.epsilon,
        delta=told.claim.delta,
        mu=told.claim.mu,
        aggregation=told.trust.aggregation,
        messages=told.egress.messages,
        nbytes=told.egress.nbytes,
        by_kind=told.egress.by_kind,
        cosigners=len(told.egress.proofs.cosigners),
        lower_bound=told.empirical.lower_bound,
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


def _agreements(told: Sequence[ReportIdentity]) -> Iterator[Agreement]:
    for what, value in _SAME:
        found = {value(one) for one in told}
        if None in found:
            yield Agreement(what=what, state="not shown", said="not all reports say it")
        elif len(found) > 1:
            yield Agreement(what=what, state="broken", said="the reports name different ones")
        else:
            yield Agreement(what=what, state="shown", said="all reports name the same")


def _sum(totals: Iterable[KindTotal]) -> tuple[KindTotal, ...]:
    tensors: Counter[tuple[str, str]] = Counter()
    nbytes: Counter[tuple[str, str]] = Counter()
    for one in totals:
        tensors[one.kind, one.protection] += one.tensors
        nbytes[one.kind, one.protection] += one.nbytes
    return tuple(
        KindTotal(kind=kind, protection=protection, tensors=count, nbytes=nbytes[kind, protection])
        for (kind, protection), count in sorted(tensors.items())
    )
