"""What one job spends of a site's privacy budget: written down before its data is touched, kept even if it dies."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audits import JobRefused, LogError, Refusal, read
from audits.gate import LogCharge
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.ingest.ledger_binding import look_into_ledger, note_head, open_ledger
from privacy import Cost, Ledger, LedgerCharge, LedgerError, Limits, spent

if TYPE_CHECKING:  # both need torch, and whoever looks into a ledger does without
    from medfedvqa.core import Method
    from medfedvqa.federation.job import JobSpec


class JobBudget:
    """One job's account in a site's ledger; a job without differential privacy has none and charges nothing."""

    def __init__(self, config: SiteConfig, job: "JobSpec", job_id: str, method: "Method[Any]") -> None:
        self._config, self._job_id, self._method = config, job_id, method
        self._dp = job.dp
        self._ledger: Ledger | None = None

    def check(self) -> None:
        """Whether the job fits beside all others, whoever its patients are: asks no data.

        Raises `JobRefused` if the job alone is too much, `BudgetRefused` if it is with others, or `LedgerError` if the
        ledger cannot be trusted.
        """
        if self._dp is None:
            return
        plan, limits = self._method.plan(), self._limits
        alone = spent([event for task in plan for event in task.events], limits.delta).epsilon
        most = [limit for limit in (limits.max_epsilon, limits.max_epsilon_per_job) if limit is not None]
        if most and alone > min(most):
            detail = f"alone it would spend epsilon {alone:.3f} of the {min(most):g} that the site allows"
            raise JobRefused(Refusal.EPSILON, detail)
        self._ledger = ledger_of(self._config)
        check_ledger(self._ledger, self._config.audit)
        self._ledger.check(self._job_id, plan, limits)

    def reserve(self, patients: Iterable[str]) -> None:
        """Set the whole job's cost aside, after `check`. Raises `BudgetRefused`."""
        if self._ledger is None:
            return
        void = self._config.repeatable_noise is not None
        self._ledger.reserve(self._job_id, self._method.name, patients, self._method.plan(), self._limits, void)
        self._note_head(self._ledger)

    def begin(self, task: str, round: int) -> None:
        """Charge a task that is about to run; a run that died was charged too. Raises as `reserve` does."""
        if self._ledger and self._costs(task):
            self._ledger.begin(self._job_id, task, round, self._limits)
            self._note_head(self._ledger)

    def settle(self, task: str, round: int) -> LedgerCharge | None:
        """The charge that stands for a task's saved result, None for a task that costs nothing."""
        if self._ledger and self._costs(task):
            return self._ledger.settle(self._job_id, task, round)
        return None

    def close(self) -> bool:
        """Give the file back; whether the job had any part of the budget."""
        if self._ledger is None:
            return False
        had_part = self._ledger.holds(self._job_id)
        self._ledger.close()
        return had_part

    def _note_head(self, ledger: Ledger) -> None:
        """Lets the other sites of the store know: they refuse a copy of the ledger that lacks this charge."""
        if store := store_of(self._config):
            note_head(store, ledger)

    def _costs(self, task: str) -> bool:
        """Whatever the round: one that was not planned is for the ledger to refuse."""
        return self._method.cost(task) != Cost()

    @property
    def _limits(self) -> Limits:
        # A job's delta is at most the site's: at that delta every epsilon is at least the site's own.
        policy, delta = self._config.policy, self._dp.delta if self._dp else self._config.policy.delta
        return Limits(policy.epsilon_limit, delta, policy.max_epsilon_per_job)


def store_of(config: SiteConfig) -> Path | None:
    """The store that the site trains on, None if its data set is no store that `medfedvqa ingest` made."""
    return config.data.root if config.data.reader == "store" else None


def ledger_of(config: SiteConfig) -> Ledger:
    """The site's ledger; that of a store is bound to it. Raises `LedgerError` if it is not this site's to charge."""
    if store := store_of(config):
        return open_ledger(store, config.ledger, config.name)
    ledger = Ledger(config.ledger, config.name)
    if ledger.store is not None:
        ledger.close()
        raise LedgerError(
            "the ledger belongs to a store, and this data set is none: write a ledger of its own into site.yml"
        )
    return ledger


def look_into(config: SiteConfig) -> Ledger:
    """The site's ledger as it is: binds nothing, and charges are for `ledger_of`. Raises `LedgerError`."""
    return look_into_ledger(store_of(config), config.ledger, config.name)


def logged(charge: LedgerCharge) -> LogCharge:
    """The charge as the audit log says it; the ledger's head lets the log notice a ledger that was set back."""
    event = {
        "mechanisms": sorted({event.mechanism for event in charge.events}),
        "unit": "patient",
        "events": [event.to_dict() for event in charge.events],
        "delta": charge.delta,
        "attempt": charge.attempt,
        "job_epsilon": [charge.job_epsilon_before, charge.job_epsilon_after],
        "ledger": {"seq": charge.seq, "head": charge.head},
        "void": charge.void,
    }
    return LogCharge(event, charge.epsilon_before, charge.epsilon_after)


def check_ledger(ledger: Ledger | None, audit: Path) -> None:
    """Hold the ledger, None if there is none, against the heads of it that the audit log recorded.

    Raises `LedgerError` if the ledger lacks one: it was set back, replaced, edited or removed.
    """
    last = None
    try:
        for entry in read(audit):
            if entry.dp_event is not None:
                last = entry.dp_event["ledger"]
    except LogError:
        raise LedgerError("the audit log cannot be read, and only it knows the ledger's last head") from None
    if last is not None and (ledger is None or not ledger.contains(last["seq"], last["head"])):
        raise LedgerError("the ledger lacks a charge that the audit log recorded: restore the newest copy of it")
