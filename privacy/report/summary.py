"""Figures of the first page: what an epsilon means for one patient, and how many jobs like this the budget allows."""

from privacy.accounting import fitting
from privacy.report.facts import ReportFacts
from privacy.report.model_conduct import Summary
from privacy.trade_off import most_found

WRONGLY = 0.05
"""Of those who did not take part, the share that is accused, in reports that this version makes."""
MOST_COUNTED = 10
"""Jobs that fit are counted up to here in such reports, since each count replays the ledger."""


def summary(facts: ReportFacts, claimed: bool, carried: Summary | None = None) -> Summary:
    """The figures. `claimed`: whether the report claims an epsilon for the job.

    `carried`: the summary of a report that is computed again, which brings the two parameters that it was made with.
    """
    wrongly, most_counted = (carried.wrongly, carried.most_counted) if carried else (WRONGLY, MOST_COUNTED)
    every = facts.replay.events()
    void = any(charge.debit.void for charge in facts.replay.charges)
    return Summary(
        wrongly=wrongly,
        found=most_found(facts.replay.events(facts.job), wrongly) if claimed else None,
        found_in_all=None if void or not every else most_found(every, wrongly),
        jobs_that_fit=_jobs_that_fit(facts, most_counted) if claimed else None,
        most_counted=most_counted,
    )


def _jobs_that_fit(facts: ReportFacts, most_counted: int) -> int | None:
    """Counted for a patient who is in all of them, beside all that is charged and reserved already."""
    limit, job = facts.evidence.policy.limit, facts.replay.events(facts.job, reserved=True)
    if limit is None or not job:
        return None
    return fitting(limit, facts.delta, facts.replay.events(reserved=True), [job] * most_counted)
