"""The health of a site as its own files show it: its log, its ledger, its processes.

`medfedvqa doctor` makes checks of it; `medfedvqa status` shows it to people and to a monitoring system. It is for the
hospital alone. It names jobs, and nothing of a patient, a question, an answer or a path.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from audits import Event, Isolation, LogError, NoteError, Outcome, read
from audits.checkpoint import CHECKPOINTS
from audits.errors import known_code, refuses_job
from audits.log_files import LOG_NAME, segments
from audits.secrets import SECRET_BYTES
from audits.signed_tree import signed_size
from medfedvqa.federation.flare.doctor_checks import (
    SET_CLOCK,
    SKEW,
    WARNED,
    certificate_of,
    file_times,
    irregularity,
    listable,
    nearest,
    private_file,
)
from medfedvqa.federation.flare.kit_contents import Check, first
from medfedvqa.federation.job_budget import check_ledger, look_into, store_of
from medfedvqa.federation.live_processes import LiveProcesses, live_processes
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.ingest.ledger_binding import check_binding
from privacy import Account, PrivacyError
from privacy.ledger_accounts import LEDGER_NAME
from privacy.patient_keys import KEY_NAME

FORMAT = 1
_NAMED = 3
"""The most jobs that a line names."""

_BEGIN = (Event.ADMITTED, Event.OPEN)
"""The events that open a job."""
_DAY = timedelta(days=1)
_PREFIX = "medfedvqa_site_"


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
    files = (folder / LOG_NAME, folder / CHECKPOINTS, *sorted(folder.glob("log-*.jsonl")))
    if problem := next(filter(None, map(irregularity, files)), None):
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


@dataclass(frozen=True)
class Budget:
    """Epsilons of an imaginary patient who was in every job, in nats at `delta`."""

    spent: float
    authorised: float
    """The same, including what running jobs have reserved."""
    limit: float | None
    """The epsilon that the policy allows; None without a limit."""
    delta: float


@dataclass(frozen=True)
class SiteHealth:
    """One look at a site."""

    site: str
    time: datetime
    up: bool
    """Whether the site's process is running."""
    running: tuple[str, ...]
    """The ids of jobs with a live process."""
    unclosed: tuple[str, ...]
    """The ids of jobs that the log has not closed and that no process runs."""
    log_problem: str | None
    """Why the log cannot be read to its end."""
    last_entry: datetime | None
    """The time of the log's newest entry."""
    isolation: str | None
    """How the kernel kept the network from the process of the newest job; None before the first."""
    refusals: dict[str, int]
    """The number of refusals of the last 24 hours, by code."""
    budget: Budget | None
    """None without a ledger, and if it cannot be read."""
    free: int
    """Bytes free on the fullest disk of state, log and ledger."""
    certificate: datetime | None
    """The end of the certificate in the site's kit; None outside of a kit."""

    @property
    def ok(self) -> bool:
        """Whether the site can take part: it is up, its log is readable and no job is left unclosed."""
        return self.up and self.log_problem is None and not self.unclosed

    @property
    def ends_soon(self) -> bool:
        """Whether the certificate ends within the time in which `medfedvqa doctor` warns of it."""
        return self.certificate is not None and self.certificate - self.time <= WARNED

    def record(self) -> dict[str, Any]:
        """Plain JSON; times in ISO 8601, ages in seconds."""
        return {
            "format": FORMAT,
            "site": self.site,
            "time": self.time.isoformat(timespec="seconds"),
            "ok": self.ok,
            "up": self.up,
            "running": list(self.running),
            "unclosed": list(self.unclosed),
            "log_problem": self.log_problem,
            "last_entry_age": None if self.last_entry is None else (self.time - self.last_entry).total_seconds(),
            "isolation": self.isolation,
            "refusals": self.refusals,
            "budget": None if self.budget is None else vars(self.budget),
            "free_bytes": self.free,
            "certificate_ends_soon": self.ends_soon,
            "certificate_ends": None if self.certificate is None else self.certificate.isoformat(timespec="seconds"),
        }

    def metrics(self) -> str:
        """The text format of Prometheus, as node_exporter's textfile collector reads it. It has no ids of jobs."""
        budget, last, ends = self.budget, self.last_entry, self.certificate
        isolated = None if self.isolation is None else self.isolation != Isolation.NONE.value
        rows: list[tuple[str, str, float | dict[str, int] | None]] = [
            ("up", "Whether the site's process is running.", self.up),
            ("ok", "Whether the site can take part.", self.ok),
            ("jobs_running", "Jobs with a live process.", len(self.running)),
            ("jobs_unclosed", "Jobs that no process runs and that are not closed.", len(self.unclosed)),
            ("log_readable", "Whether the audit log can be read to its end.", self.log_problem is None),
            ("last_entry_seconds", "Unix time of the newest log entry.", last.timestamp() if last else None),
            ("isolated", "Whether the newest job's process had no network.", isolated),
            ("refusals", "Refusals of the last 24 hours, by code.", self.refusals),
            ("epsilon_spent", "Epsilon of all charges together, in nats.", budget.spent if budget else None),
            ("epsilon_authorised", "The same with reservations.", budget.authorised if budget else None),
            ("epsilon_limit", "The epsilon that the policy allows.", budget.limit if budget else None),
            ("free_bytes", "Bytes free on the fullest disk of state, log and ledger.", self.free),
            ("certificate_end_seconds", "Unix time at which it ends.", ends.timestamp() if ends else None),
            ("status_seconds", "Unix time of this look.", self.time.timestamp()),
        ]
        return "".join(_gauge(f"{_PREFIX}{name}", meaning, value) for name, meaning, value in rows if value is not None)


def _gauge(name: str, meaning: str, value: float | dict[str, int]) -> str:
    """A metric in the text format of Prometheus: one value, or a value for each code."""
    values = sorted(value.items()) if isinstance(value, dict) else ()
    lines = [f'{name}{{code="{code}"}} {count}' for code, count in values]
    lines += [] if isinstance(value, dict) else [f"{name} {float(value):.17g}"]
    return "".join(f"{line}\n" for line in (f"# HELP {name} {meaning}", f"# TYPE {name} gauge", *lines))


def health_of(config: SiteConfig, site_file: Path) -> SiteHealth:
    """The health of the site of this `site.yml`. Writes nothing."""
    kit = site_file.resolve().parent.parent
    now, log, processes = datetime.now(UTC), read_log(config.audit), live_processes(config.audit, kit)
    certificate = certificate_of(kit / "startup" / "client.crt")
    return SiteHealth(
        site=config.name,
        time=now,
        up=processes.site,
        running=tuple(sorted(processes.jobs)),
        unclosed=tuple(job for job in log.unclosed if job not in processes.jobs),
        log_problem=log.problem,
        last_entry=log.last,
        isolation=log.isolation,
        refusals=_refusals(config, now - _DAY) if log.problem is None else {},
        budget=_budget(config),
        free=min(shutil.disk_usage(nearest(place)).free for place in (config.state, config.audit, config.ledger)),
        certificate=certificate.not_valid_after_utc if certificate else None,
    )


def _refusals(config: SiteConfig, since: datetime) -> dict[str, int]:
    counts: Counter[str] = Counter()
    try:
        for entry in read(config.audit):
            if refuses_job(entry.event.value, entry.outcome and entry.outcome.value):
                code = known_code(entry.admission)
                if code is not None and datetime.fromisoformat(entry.time) >= since:
                    counts[code.value] += 1
    except LogError:
        return {}
    return dict(sorted(counts.items()))


def _budget(config: SiteConfig) -> Budget | None:
    if not config.ledger.is_dir():
        return None
    delta = config.policy.delta
    try:
        with closing(look_into(config)) as ledger:
            spent, authorised = (ledger.together(delta, reserved).epsilon for reserved in (False, True))
    except PrivacyError:
        return None
    return Budget(spent, authorised, config.policy.epsilon_limit, delta)


def log_check(log: LogFacts) -> Check:
    """Whether the log can be read. A site with a damaged log answers nothing."""
    remedy = "run `medfedvqa audit verify` on it, keep the folder as it is, and tell the coordinator"
    return first("audit log", (log.problem, str(log.problem), remedy))


def clock(kit: Path, config: SiteConfig, log: LogFacts) -> Check:
    """Compare the clock with the newest entry of the log and with the times of files."""
    if log.last is not None and datetime.now(UTC) + SKEW < log.last:
        return Check("clock", "it is behind the newest entry of the audit log", SET_CLOCK)
    folders = (folder for folder in (config.audit, config.ledger) if folder.is_dir() and listable(folder))
    return file_times(kit, (path for folder in folders for path in folder.iterdir()))


def budget_and_jobs(config: SiteConfig, log: LogFacts, processes: LiveProcesses) -> Iterator[Check]:
    """Whether the ledger is usable, whether it leaves room for a job, and whether all jobs are closed."""
    database, key = config.ledger / LEDGER_NAME, config.ledger / KEY_NAME
    accounts: tuple[Account, ...] = ()
    check = private_file(key, "key of the budget ledger", "restore it from the backup", SECRET_BYTES)
    if os.path.lexists(key) and not check.ok:
        yield check
    else:
        try:
            accounts, smallest = _read_ledger(config, database, log)
        except PrivacyError as error:
            yield Check("budget", str(error), "restore the newest copy of the ledger's folder, or of the audit log's")
        else:
            yield _budget_check(config, accounts, smallest)
    yield _unclosed(config.name, log, accounts, processes)


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


def _budget_check(config: SiteConfig, accounts: tuple[Account, ...], smallest: float) -> Check:
    limit = config.policy.epsilon_limit
    if limit is None or not accounts:
        return Check("budget")
    spent = max(account.spent.epsilon for account in accounts)
    authorised = max(account.authorised.epsilon for account in accounts)
    fits, would_fit = (epsilon < limit and epsilon + smallest <= limit for epsilon in (authorised, spent))
    held = f"jobs that have not ended hold what is left of the epsilon {limit:g} that the policy allows"
    gone = f"it is spent: epsilon {spent:.3f} of {limit:g}, and no task as cheap as the cheapest so far fits"
    return first(
        "budget",
        (not fits and would_fit, held, "wait until they end; what an unclosed job holds comes back when it is closed"),
        (not fits, gone, "private jobs on these patients are over at this site, unless its policy raises max_epsilon"),
    )


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
    """Whether the site's process is running."""
    return first("site process", (not processes.site, "no process of this kit is running", "run startup/start.sh"))
