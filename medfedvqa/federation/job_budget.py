"""One job's charges to a site's privacy budget.

The charge is written before the job touches data, and it stands even if the job dies.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audits import JobRefused, LogError, Refusal, read
from audits.gate import LogCharge
from audits.log_files import LOG_NAME
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.ingest.ledger_binding import look_into_ledger, note_head, open_ledger
from privacy import Cost, Ledger, LedgerCharge, LedgerError, Limits, PlannedTask, spent
from privacy.ledger_accounts import read_folder
from privacy.ledger_journal import Head

if TYPE_CHECKING:  # both import torch, which commands that only read a ledger do not need
    from medfedvqa.core import Method
    from medfedvqa.federation.job import JobSpec


class JobBudget:
    """One job's account in a site's ledger. A job without differential privacy has none and is charged nothing."""

    def __init__(self, config: SiteConfig, job: "JobSpec", job_id: str, method: "Method[Any]") -> None:
        self._config, self._job_id, self._method = config, job_id, method
        self._dp = job.dp
        self._ledger: Ledger | None = None

    def check(self) -> None:
        """Check, without reading any data, that the job fits into the budget whoever its patients are.

        Raises `JobRefused` if the job alone exceeds a limit, `BudgetRefused` if it does so together with other jobs, or
        `LedgerError` if the ledger cannot be trusted.
        """
        if self._dp is None:
            return
        plan, limits = self._plan, self._limits
        alone = spent([event for task in plan for event in task.events], limits.delta).epsilon
        most = [limit for limit in (limits.max_epsilon, limits.max_epsilon_per_job) if limit is not None]
        if most and alone > min(most):
            detail = f"alone it would spend epsilon {alone:.3f} of the {min(most):g} that the site allows"
            raise JobRefused(Refusal.EPSILON, detail)
        require_ledger(self._config)
        self._ledger = ledger_of(self._config)
        check_ledger(self._ledger, self._config.audit)
        self._ledger.check(self._job_id, plan, limits)

    def reserve(self, patients: Iterable[str]) -> None:
        """Reserve the cost of the whole job; call `check` first. Raises `BudgetRefused`."""
        if self._ledger is None:
            return
        void = self._config.repeatable_noise is not None
        self._ledger.reserve(self._job_id, self._method.name, patients, self._plan, self._limits, void)
        self._note_head(self._ledger)

    def begin(self, task: str, round: int) -> None:
        """Charge a task that is about to run. A run that dies stays charged. Raises `BudgetRefused`."""
        if self._ledger and self._costs(task):
            self._ledger.begin(self._job_id, task, round, self._limits)
            self._note_head(self._ledger)

    def settle(self, task: str, round: int) -> LedgerCharge | None:
        """The charge for a task's saved result, or None for a task that costs nothing."""
        if self._ledger and self._costs(task):
            return self._ledger.settle(self._job_id, task, round)
        return None

    def close(self) -> bool:
        """Close the ledger; returns whether the job holds any part of the budget."""
        if self._ledger is None:
            return False
        had_part = self._ledger.holds(self._job_id)
        self._ledger.close()
        return had_part

    def _note_head(self, ledger: Ledger) -> None:
        """Record the ledger's head in the store: its other sites then refuse a copy that lacks this charge."""
        if store := store_of(self._config):
            note_head(store, ledger)

    def _costs(self, task: str) -> bool:
        """Whether the task costs anything, in any round: the ledger itself refuses a round that was not planned."""
        return self._method.cost(task) != Cost()

    @cached_property
    def _plan(self) -> tuple[PlannedTask, ...]:
        """The job's charges, counted against the policy's number of colluders; the job tolerates at least as many."""
        colluders = self._config.policy.colluders or 0
        return tuple(
            replace(task, events=tuple(event.against(colluders) for event in task.events))
            for task in self._method.plan()
        )

    @property
    def _limits(self) -> Limits:
        # A job's delta is at most the site's, and at a smaller delta every epsilon is at least as large.
        policy, delta = self._config.policy, self._dp.delta if self._dp else self._config.policy.delta
        return Limits(policy.epsilon_limit, delta, policy.max_epsilon_per_job)


def store_of(config: SiteConfig) -> Path | None:
    """The store that the site trains on, or None if `medfedvqa ingest` did not make its data set."""
    return config.data.root if config.data.reader == "store" else None


def ledger_of(config: SiteConfig) -> Ledger:
    """The site's ledger, bound to the site's store if there is one. Raises `LedgerError` if it belongs to others."""
    if store := store_of(config):
        return open_ledger(store, config.ledger, config.name)
    ledger = Ledger(config.ledger, config.name)
    if ledger.store is not None:
        ledger.close()
        raise LedgerError(
            "the ledger belongs to a store, but this data set is not a store: name another ledger in site.yml"
        )
    return ledger


def look_into(config: SiteConfig) -> Ledger:
    """The site's ledger, to read it: it is bound to no store. New charges need `ledger_of`. Raises `LedgerError`."""
    return look_into_ledger(store_of(config), config.ledger, config.name)


def log_charge(charge: LedgerCharge) -> LogCharge:
    """The charge as an entry of the audit log holds it. The ledger's head lets the log notice an older ledger."""
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


def require_ledger(config: SiteConfig) -> None:
    """Raises `LedgerError` if the site's ledger is lost: its audit log names a charge, and no ledger is there.

    Opening a ledger makes a missing one, with a new key, beside which the lost one could not be restored. A ledger with
    no record counts as lost, too: an ingestion makes such a file, with the register alone.
    """
    if (config.audit / LOG_NAME).is_file():
        folder = read_folder(config.ledger)
        if folder is None or folder.head == Head():
            check_ledger(None, config.audit)


def check_ledger(ledger: Ledger | None, audit: Path) -> None:
    """Compare the ledger, or None where there is none, with the last of its heads that the audit log recorded.

    Raises `LedgerError` if the ledger lacks that head: it was set back, replaced, edited or removed.
    """
    last = None
    try:
        for entry in read(audit):
            if entry.dp_event is not None:
                last = entry.dp_event["ledger"]
    except LogError:
        raise LedgerError("the audit log cannot be read, which alone records the ledger's last head") from None
    if last is not None and (ledger is None or not ledger.contains(last["seq"], last["head"])):
        raise LedgerError("the ledger lacks a charge that the audit log recorded: restore the newest copy of it")
