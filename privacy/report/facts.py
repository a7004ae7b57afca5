"""Facts of a report: the job's entries, releases and charges, whose proofs hold."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from audits import (
    AuditError,
    Entry,
    Event,
    Isolation,
    JobCode,
    Kind,
    NewerFormat,
    Outcome,
    Sharing,
    TensorRecord,
    refuses_job,
)
from audits.errors import OlderFormat
from audits.excerpt import ExcerptFacts, check_excerpt, quoted_entries
from audits.exchange import SITES
from audits.sharing import sharing_of
from privacy.accounting import PrivacyCost, spent
from privacy.errors import PrivacyError
from privacy.ledger_journal import NewerRecord, OlderRecord
from privacy.ledger_replay import JobKey
from privacy.report.replay import Replay, ReplayedCharge
from privacy.report.report_evidence import ReportEvidence

Part = dict[str, Any]
"""A part of a report: values by name, nested like the ids of their rows."""


class ReportError(PrivacyError):
    """The report or its evidence does not hold. The sentence names no patient and no path."""


class NewerReport(ReportError):
    """The report, or a part of its evidence, needs another version of this software."""


@dataclass(frozen=True)
class ReportFacts:
    """The checked facts that the sections are made from; `of` checks the evidence."""

    evidence: ReportEvidence
    excerpt: ExcerptFacts
    entries: tuple[Entry, ...]
    replay: Replay

    @classmethod
    def of(cls, evidence: ReportEvidence) -> "ReportFacts":
        """Checks the evidence. Raises `ReportError` if a proof or chain does not hold, and else `NewerReport`."""
        newer: Exception | None = None
        try:
            excerpt = check_excerpt(evidence.log, evidence.site)
            try:
                replay = Replay(evidence.ledger, evidence.site)
            except (NewerRecord, OlderRecord) as error:
                newer = error
            entries = quoted_entries(evidence.log)
            if newer is None:
                return cls(evidence, excerpt, entries, replay)
        except (NewerFormat, OlderFormat) as error:
            newer = error
        except (AuditError, PrivacyError) as error:
            raise ReportError(f"the report's evidence does not hold: {error}") from None
        raise NewerReport(str(newer))

    @cached_property
    def job_entries(self) -> tuple[Entry, ...]:
        """The job's entries."""
        return tuple(entry for entry in self.entries if entry.job == self.evidence.job)

    @property
    def job(self) -> JobKey:
        """The key of this site's part of the job in the ledger."""
        return self.evidence.site, self.evidence.job

    @cached_property
    def releases(self) -> tuple[Entry, ...]:
        """The job's releases."""
        return tuple(
            entry for entry in self.job_entries if entry.event is Event.RELEASE and entry.outcome is Outcome.SENT
        )

    @cached_property
    def charges(self) -> tuple[ReplayedCharge, ...]:
        """The charges of the job."""
        return tuple(charge for charge in self.replay.charges if charge.debit.key == self.job)

    @property
    def is_private(self) -> bool:
        """Whether the job trains under differential privacy."""
        return bool(self.charges) or self.job in self.replay.book.jobs

    @property
    def void(self) -> bool:
        """Whether any noise of the job could be repeated."""
        return any(charge.debit.void for charge in self.charges)

    @property
    def delta(self) -> float:
        """The delta of the job's last charge, or the site's if there is none."""
        deltas = [charge.charge.delta for charge in self.charges if charge.charge]
        return deltas[-1] if deltas else self.evidence.policy.delta

    @property
    def state(self) -> Literal["running", "closed", "refused", "expired"]:
        """The job's state according to the last entry about it."""
        about = [entry for entry in self.job_entries if entry.event in (Event.OPEN, Event.CLOSE, Event.REFUSAL)]
        if not about:
            return "expired"
        if about[-1].event is Event.CLOSE:
            return "closed"
        return "refused" if refuses_job(about[-1].event, about[-1].outcome) else "running"

    @property
    def method(self) -> str:
        """The job's method according to the log, or else to the ledger."""
        book_job = self.replay.book.jobs.get(self.job)
        return self.latest("method") or (book_job.method if book_job else "")

    @cached_property
    def spent(self) -> PrivacyCost:
        """The privacy cost of the job so far."""
        return spent(self.replay.events(self.job), self.delta)

    @cached_property
    def unprotected(self) -> tuple[tuple[Entry, TensorRecord], ...]:
        """Released tensors that may depend on data and carry no differential privacy."""
        pairs = ((entry, tensor) for entry in self.releases for tensor in entry.tensors)
        return tuple((e, t) for e, t in pairs if t.kind is not Kind.PUBLIC and not t.protection.private)

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """All sites of the job, as far as the run or the entries of computations on shares name them."""
        if self.evidence.run:
            return tuple(sorted(self.evidence.run.sites))
        names = {site for sharing in self.sharings.values() if sharing for site in sharing.sites}
        return tuple(sorted(names | {self.evidence.site}))

    @cached_property
    def codes(self) -> tuple[JobCode, ...]:
        """Each distinct `JobCode` in the job's entries. Raises `LogError`."""
        entry_codes = [JobCode.from_record(entry.code) for entry in self.job_entries if entry.code is not None]
        return tuple(dict.fromkeys(entry_codes))

    @cached_property
    def isolations(self) -> tuple[Isolation | None, ...]:
        """The distinct ways in which the vault was isolated from the network; None for an entry without this field."""
        return tuple(dict.fromkeys(entry.isolation for entry in self.job_entries if entry.event is Event.OPEN))

    @cached_property
    def shared(self) -> tuple[Entry, ...]:
        """Releases that are part of a computation on shares."""
        tensors = ((entry, [tensor.protection.masked for tensor in entry.tensors]) for entry in self.releases)
        return tuple(entry for entry, masked in tensors if entry.peer == SITES or any(masked))

    @cached_property
    def sharings(self) -> dict[int, Sharing | None]:
        """The computation on shares of each entry in `shared`, by the entry's number. Raises `LogError`."""
        return {entry.seq: sharing_of(entry) for entry in self.shared}

    def latest(self, name: str) -> str | None:
        """The last value of a field over the job's entries; None if no entry has it."""
        values = [value for entry in self.job_entries if (value := getattr(entry, name)) is not None]
        return str(values[-1]) if values else None

    def every(self, name: str) -> tuple[str, ...]:
        """The distinct values of a field over the job's entries, in order."""
        return tuple(
            dict.fromkeys(str(value) for entry in self.job_entries if (value := getattr(entry, name)) is not None)
        )


def plain(value: object) -> bytes:
    """Settings as JSON, for a digest; infinite numbers are allowed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
