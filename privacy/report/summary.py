"""Figures of the first page: what an epsilon means for one patient, and how many jobs like this the budget allows."""

from privacy.accounting import fitting
from privacy.report.facts import ReportFacts
from privacy.report.model_conduct import Summary
from privacy.trade_off import most_found

WRONGLY = 0.05
"""Of those who did not take part, the share that is accused."""
MOST_COUNTED = 10
"""Jobs that fit are counted up to here, since each count replays the ledger."""


def summary(facts: ReportFacts, claimed: bool) -> Summary:
    """The figures. `claimed`: whether the report claims an epsilon for the job."""
    every = facts.replay.events()
    void = any(charge.debit.void for charge in facts.replay.charges)
    return Summary(
        wrongly=WRONGLY,
        found=most_found(facts.replay.events(facts.job), WRONGLY) if claimed else None,
        found_in_all=None if void or not every else most_found(every, WRONGLY),
        jobs_that_fit=_jobs_that_fit(facts) if claimed else None,
        most_counted=MOST_COUNTED,
    )


def _jobs_that_fit(facts: ReportFacts) -> int | None:
    """Counted for a patient who is in all of them, beside all that is charged and reserved already."""
    limit, job = facts.evidence.policy.limit, facts.replay.events(facts.job, reserved=True)
    if limit is None or not job:
        return None
    return fitting(limit, facts.delta, facts.replay.events(reserved=True), [job] * MOST_COUNTED)
