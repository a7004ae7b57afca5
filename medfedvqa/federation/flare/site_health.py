"""The health of a site as its own files show it, for `medfedvqa status` and for a monitoring system.

It is for the hospital alone. It names jobs, and nothing of a patient, a question, an answer or a path.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from audits import Isolation, LogError, read
from audits.refusals import known_code, refuses_job
from medfedvqa.federation.flare.doctor_common import WARNED, certificate_of, nearest
from medfedvqa.federation.flare.doctor_jobs import read_log
from medfedvqa.federation.job_budget import look_into
from medfedvqa.federation.live_processes import live_processes
from medfedvqa.federation.site_config import SiteConfig
from privacy import PrivacyError

FORMAT = 1
_DAY = timedelta(days=1)
_PREFIX = "medfedvqa_site_"


@dataclass(frozen=True)
class Budget:
    """Epsilons of an imaginary patient who was in every job, in nats at `delta`."""

    spent: float
    authorised: float
    """The same with what running jobs have set aside."""
    limit: float | None
    """The epsilon that the policy allows; None without a limit."""
    delta: float


@dataclass(frozen=True)
class SiteHealth:
    """One look at a site."""

    site: str
    time: datetime
    up: bool
    """Whether the site's own process lives."""
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
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield from _gauge("up", "Whether the site's own process lives.", self.up)
        yield from _gauge("ok", "Whether the site can take part.", self.ok)
        yield from _gauge("jobs_running", "Jobs with a live process.", len(self.running))
        yield from _gauge("jobs_unclosed", "Jobs that no process runs and that are not closed.", len(self.unclosed))
        yield from _gauge("log_readable", "Whether the audit log can be read to its end.", self.log_problem is None)
        if self.last_entry is not None:
            yield from _gauge("last_entry_seconds", "Unix time of the newest log entry.", self.last_entry.timestamp())
        if self.isolation is not None:
            isolated = self.isolation != Isolation.NONE.value
            yield from _gauge("isolated", "Whether the newest job's process had no network.", isolated)
        yield f"# HELP {_PREFIX}refusals Refusals of the last 24 hours, by code."
        yield f"# TYPE {_PREFIX}refusals gauge"
        yield from (f'{_PREFIX}refusals{{code="{code}"}} {count}' for code, count in sorted(self.refusals.items()))
        if self.budget is not None:
            yield from _gauge("epsilon_spent", "Epsilon of all charges together, in nats.", self.budget.spent)
            yield from _gauge("epsilon_authorised", "The same with reservations.", self.budget.authorised)
            if self.budget.limit is not None:
                yield from _gauge("epsilon_limit", "The epsilon that the policy allows.", self.budget.limit)
        yield from _gauge("free_bytes", "Bytes free on the fullest disk of state, log and ledger.", self.free)
        if self.certificate is not None:
            yield from _gauge("certificate_end_seconds", "Unix time at which it ends.", self.certificate.timestamp())
        yield from _gauge("status_seconds", "Unix time of this look.", self.time.timestamp())


def _gauge(name: str, meaning: str, value: float) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {meaning}"
    yield f"# TYPE {_PREFIX}{name} gauge"
    yield f"{_PREFIX}{name} {float(value):.17g}"


def health_of(config: SiteConfig, site_file: Path) -> SiteHealth:
    """Look at the site of this `site.yml`, and write nothing."""
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
