"""Figures of the first page: what an epsilon means for one patient, and how many jobs like this the budget allows."""

from typing import NamedTuple

from privacy.accounting import fitting
from privacy.report.facts import Part, ReportFacts
from privacy.trade_off import most_found


class Parameters(NamedTuple):
    """Parameters that a version chooses. A report carries its own, with which a verifier recomputes it."""

    wrongly: float = 0.05
    """The share of non-participants who are wrongly accused."""
    most_counted: int = 10
    """The most jobs that are counted as fitting, because each count replays the ledger."""


def summary(facts: ReportFacts, claimed: bool, parameters: Parameters) -> Part:
    """The figures. `claimed`: whether the report claims an epsilon for the job."""
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
