"""Builds a report from evidence alone, with the figures of its first page: what an epsilon means for one patient, as
the most participants that a test can find if it accuses few people wrongly.

If a mechanism is (epsilon, delta)-differentially private in both directions, then a test that accuses a share a of
those who did not take part finds at most min(e^epsilon a + delta, 1 - e^-epsilon (1 - delta - a)) of those who did.
Source: Dong, Roth and Su, "Gaussian Differential Privacy", 2022, proposition 2.5. Each pair of a privacy curve gives
such a bound, and so the least over all of them is one: a coarser curve is never wrong, only less sharp. No central
limit approximation is used.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from audits import LogError, NewerFormat
from privacy.accounting import fitting, privacy_curve
from privacy.errors import AccountingError
from privacy.mechanisms import DPEvent
from privacy.mechanisms.base import is_number
from privacy.report.claim import accounting, claim, executed, identity, unit
from privacy.report.egress_and_costs import data_handling, egress, empirical, outside, trust
from privacy.report.facts import NewerReport, Part, ReportError, ReportFacts
from privacy.report.figures import Report, Sections, rows_of_tree
from privacy.report.report_evidence import ReportEvidence
from privacy.report.verdicts import mappings, verdicts


def most_found(events: Iterable[DPEvent], wrongly: float) -> float:
    """The largest share of participants, 0..1, that any test on all results of `events` can find.

    `wrongly`: the share of non-participants, 0..1, that the test accuses; guessing finds this share too. Raises
    `AccountingError` for a number that is not a share.
    """
    if not (is_number(wrongly) and 0 <= wrongly <= 1):
        raise AccountingError("the share of people accused wrongly must be a number from 0 to 1")
    return min((_bound(epsilon, delta, wrongly) for epsilon, delta in privacy_curve(events)), default=1.0)


def _bound(epsilon: float, delta: float, wrongly: float) -> float:
    # The logarithm keeps a large epsilon from overflowing.
    above = 1.0 if wrongly and epsilon + math.log(wrongly) > 0 else wrongly and math.exp(epsilon) * wrongly
    return min(1.0, above + delta, 1 - math.exp(-epsilon) * max(0.0, 1 - delta - wrongly))


class Parameters(NamedTuple):
    """Parameters that a version chooses. A report carries its own, with which a verifier recomputes it."""

    wrongly: float = 0.05
    """The share of non-participants who are wrongly accused."""
    most_counted: int = 10
    """The most jobs that are counted as fitting, because each count replays the ledger."""


def summary(facts: ReportFacts, claimed: bool, parameters: Parameters) -> Part:
    """The figures of the first page. `claimed`: whether the report claims an epsilon for the job."""
    every, wrongly = facts.replay.events(), parameters.wrongly
    void = any(charge.debit.void for charge in facts.replay.charges)
    return dict(
        wrongly=wrongly,
        found=most_found(facts.replay.events(facts.job), wrongly) if claimed else None,
        found_in_all=None if void or not every else most_found(every, wrongly),
        jobs_that_fit=_jobs_that_fit(facts, parameters.most_counted) if claimed else None,
        most_counted=parameters.most_counted,
    )


def _jobs_that_fit(facts: ReportFacts, most_counted: int) -> int | None:
    """The number of further such jobs that fit the budget of a patient in all jobs; None without limit or charges."""
    limit, job = facts.evidence.policy.limit, facts.replay.events(facts.job, reserved=True)
    if limit is None or not job:
        return None
    return fitting(limit, facts.delta, facts.replay.events(reserved=True), [job] * most_counted)


NEVER = (
    "identifiers of patients, keyed digests of single patients included",
    "how many patients or rows a site has, and how many have which answer",
    "questions, answers, pictures, and values of tensors",
    "how often patients' gradients were clipped",
    "paths and names of files",
    "private keys, and the keys of pseudonyms and cohorts",
)


_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""The errors for an entry that is proven to be in the log but holds values that this version never writes."""


def report_of(evidence: ReportEvidence, parameters: Parameters | None = None) -> Report:
    """The report. Raises `ReportError` if the evidence does not hold or cannot be read, `AccountingError`.

    `parameters`: the parameters of an existing report, to compute its rows again; by default this version's.
    Raises `NewerReport` if only a newer version can read the evidence.
    """
    try:
        rows = rows_of_tree(_sections(ReportFacts.of(evidence), parameters or Parameters()))
    except NewerFormat as error:
        raise NewerReport(str(error)) from None
    except (*_UNREADABLE, LogError):
        raise ReportError("the log or the ledger holds values that a report cannot contain") from None
    return Report(rows, evidence)


def sections_of(evidence: ReportEvidence, parameters: Parameters | None = None) -> Sections:
    """The rows of the report by their names. Raises what `report_of` raises."""
    return report_of(evidence, parameters).sections


def _sections(facts: ReportFacts, parameters: Parameters) -> Part:
    claimed = claim(facts)
    return {
        "identity": identity(facts),
        "claim": claimed,
        "unit": unit(facts),
        "mechanism": executed(facts),
        "accounting": accounting(facts),
        "outside": outside(facts),
        "trust": trust(facts),
        "egress": egress(facts),
        "data_handling": data_handling(facts),
        "empirical": empirical(facts),
        "mappings": mappings(facts),
        "verdicts": verdicts(facts),
        "never": NEVER,
        "summary": summary(facts, claimed["made"], parameters),
    }
