"""The checks that `medfedvqa doctor` makes of a site's log and ledger: clock, budget and unclosed jobs."""

import os
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from audits import Event, LogError, NoteError, Outcome, read
from audits.checkpoint import CHECKPOINTS
from audits.log_files import LOG_NAME, segments
from audits.secrets import SECRET_BYTES
from audits.signed_tree import signed_size
from medfedvqa.federation.flare.doctor_common import SET_CLOCK, SKEW, file_times, irregularity, listable, private_file
from medfedvqa.federation.flare.kit_contents import Check
from medfedvqa.federation.job_budget import check_ledger, look_into, store_of
from medfedvqa.federation.live_processes import LiveProcesses
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.ingest.ledger_binding import check_binding
from privacy import Account, PrivacyError
from privacy.ledger_folder import LEDGER_NAME
from privacy.patient_keys import KEY_NAME

_NAMED = 3
"""The most jobs that a line names."""

_BEGIN = (Event.ADMITTED, Event.OPEN)
"""The events that open a job."""


@dataclass(frozen=True)
class LogFacts:
    """The facts of one reading of a site's log."""

    begun: bool
    """Whether there is a log."""
    last: datetime | None
    """The time of the newest entry."""
    unclosed: tuple[str, ...]
    """The jobs that were opened and not closed since, in order."""
    problem: str | None = None
    """The reason why the log cannot be read to its end."""
    isolation: str | None = None
    """How the kernel kept the network from the process of the newest job."""


def read_log(folder: Path) -> LogFacts:
    """Read the log of a site, up to the first damage."""
    if problem := next((problem for path in _log_files(folder) if (problem := irregularity(path))), None):
        return LogFacts(True, None, (), f"one of its files {problem}")
    if not segments(folder):
        return LogFacts(False, None, ())
    last, unclosed, problem, entries, isolation = None, dict[str, None](), None, 0, None
    try:
        for entry in read(folder):
            entries = entry.seq + 1
            last, isolation = datetime.fromisoformat(entry.time).astimezone(UTC), entry.isolation or isolation
            if entry.job is not None and entry.event in _BEGIN and entry.outcome is not Outcome.REFUSED:
                unclosed[entry.job] = None
            elif entry.job is not None and entry.event is Event.CLOSE:
                unclosed.pop(entry.job, None)
        if signed_size(folder) > entries:
            problem = "it ends before its last signed checkpoint: it was cut"
    except (LogError, NoteError, OSError, ValueError, TypeError) as error:
        problem = str(error) if isinstance(error, LogError | NoteError) else "an entry is damaged"
    return LogFacts(True, last, tuple(unclosed), problem, isolation and isolation.value)


def _log_files(folder: Path) -> list[Path]:
    return [folder / LOG_NAME, folder / CHECKPOINTS, *sorted(folder.glob("log-*.jsonl"))]


def log_check(log: LogFacts) -> Check:
    """Whether the log can be read. A site with a damaged log answers nothing."""
    remedy = "run `medfedvqa audit verify` on it, keep the folder as it is, and tell the coordinator"
    return Check("audit log", log.problem, remedy if log.problem else "")


def clock(kit: Path, config: SiteConfig, log: LogFacts) -> Check:
    """Compare the clock with the newest entry of the log and with the times of files."""
    if log.last is not None and datetime.now(UTC) + SKEW < log.last:
        return Check("clock", "it is behind the newest entry of the audit log", SET_CLOCK)
    return file_times(kit, (path for folder in (config.audit, config.ledger) for path in _entries(folder)))


def _entries(folder: Path) -> Collection[Path]:
    return list(folder.iterdir()) if folder.is_dir() and listable(folder) else []


def budget_and_jobs(config: SiteConfig, log: LogFacts, processes: LiveProcesses) -> Iterator[Check]:
    """Whether the ledger is usable, whether it leaves room for a job, and whether all jobs are closed."""
    database, key = config.ledger / LEDGER_NAME, config.ledger / KEY_NAME
    accounts: tuple[Account, ...] = ()
    if os.path.lexists(key) and not (check := _key_check(key)).ok:
        yield check
    else:
        try:
            accounts, smallest = _read_ledger(config, database, log)
        except PrivacyError as error:
            yield Check("budget", str(error), "restore the newest copy of the ledger's folder, or of the audit log's")
        else:
            yield _budget(config, accounts, smallest)
    yield _unclosed(config.name, log, accounts, processes)


def _key_check(path: Path) -> Check:
    return private_file(path, "key of the budget ledger", "restore it from the backup", SECRET_BYTES)


def _read_ledger(config: SiteConfig, database: Path, log: LogFacts) -> tuple[tuple[Account, ...], float]:
    """The accounts, and the smallest epsilon that any task has cost so far. Raises `PrivacyError`.

    The function makes no ledger where there is none.
    """
    if problem := irregularity(database):
        raise PrivacyError(f"the ledger's file {problem}")
    if store := store_of(config):
        check_binding(store, config.ledger)
    if not database.exists():
        if log.begun:
            check_ledger(None, config.audit)
        return (), 0.0
    with closing(look_into(config)) as ledger:
        if log.begun or config.name in ledger.sites:
            check_ledger(ledger, config.audit)
        begun = [row.record for row in ledger.rows() if row.record["event"] == "begun"]
        costs = [record["epsilon_after"] - record["epsilon_before"] for record in begun]
        return ledger.accounts(config.policy.delta), min((cost for cost in costs if cost > 0), default=0.0)


def _budget(config: SiteConfig, accounts: tuple[Account, ...], smallest: float) -> Check:
    limit = config.policy.epsilon_limit
    if limit is None or not accounts:
        return Check("budget")
    spent = max(account.spent.epsilon for account in accounts)
    authorised = max(account.authorised.epsilon for account in accounts)
    if authorised < limit and authorised + smallest <= limit:
        return Check("budget")
    if spent < limit and spent + smallest <= limit:
        problem = f"jobs that have not ended hold what is left of the epsilon {limit:g} that the policy allows"
        return Check("budget", problem, "wait until they end; what an unclosed job holds comes back when it is closed")
    problem = f"it is spent: epsilon {spent:.3f} of {limit:g}, and no task as cheap as the cheapest so far fits"
    remedy = "private jobs on these patients are over at this site, unless its policy raises max_epsilon"
    return Check("budget", problem, remedy)


def _unclosed(site: str, log: LogFacts, accounts: tuple[Account, ...], processes: LiveProcesses) -> Check:
    reserving = [job.job for account in accounts for job in account.jobs if job.reserved and job.site == site]
    dead = [job for job in dict.fromkeys([*log.unclosed, *reserving]) if job not in processes.jobs]
    if not dead:
        return Check("unclosed jobs")
    names = ", ".join(dead[:_NAMED]) + (f" and {len(dead) - _NAMED} more" if len(dead) > _NAMED else "")
    consequence = " and hold budget" if set(dead) & set(reserving) else ""
    problem = f"no process runs {names}, which the site has not closed{consequence}"
    remedy = "start the site again, which closes jobs that have ended; `medfedvqa privacy ledger --free JOB` gives back"
    return Check("unclosed jobs", problem, f"{remedy} what a job holds while the site cannot start")


def process_check(processes: LiveProcesses) -> Check:
    """Whether the site's own process lives."""
    problem = None if processes.site else "no process of this kit lives"
    return Check("site process", problem, "" if processes.site else "run startup/start.sh")
