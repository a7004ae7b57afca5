"""Decides whether a site runs a job, by the job's text and signature and the site's policy and log, never by its data.

The audit log is the memory of used nonces, of repeated definitions and of ended jobs. Only an older log forgets them.
"""

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from audits import AuditLog, Entry, Event, Isolation, JobRefused, Kind, Outcome, Refusal, read
from audits.policy import SitePolicy
from medfedvqa.core.on_shares import OPEN
from medfedvqa.core.registry import is_built_in
from medfedvqa.data import is_built_in as is_built_in_reader
from medfedvqa.devices import problem_of
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import ANY_DATA, LONGEST, JobSpec, Terms
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.models import is_bundled, outside_architecture
from medfedvqa.plugins import Group, PlugInRefused, check, offering

if TYPE_CHECKING:
    from medfedvqa.federation.approvals import JobDecision

LOCK = "admission.lock"
DAY = timedelta(days=1)
_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class Signature:
    """The signer of a job, as the SHA-256 of a certificate, and the fingerprint of the federation's root.

    `actor` is empty if nobody signed.
    """

    actor: str
    federation: str


@dataclass
class _History:
    """The facts about earlier jobs in the log."""

    ended: bool = False
    """Whether this very job has ended."""
    admitted: bool = False
    """Whether this very job was admitted before."""
    other: bool = False
    """Whether another job was admitted under this job's id; submitters do not sign the id."""
    nonces: set[str] = field(default_factory=set)
    """The nonces of other jobs."""
    permit: str = ""
    """The permit under which this very job was admitted."""
    permits: set[str] = field(default_factory=set)
    """The permits of other jobs."""
    repeats: int = 0
    """The number of other jobs of the same definition, without a nonce, within a day."""
    failed: int = 0
    """The number of jobs that failed at the site's data within a day."""


class Admission:
    """Decides on one job at one site. Each refusal is logged and raised as `JobRefused`."""

    def __init__(
        self,
        config: SiteConfig,
        job: JobSpec,
        job_id: str,
        log: AuditLog,
        signature: Signature | None,
        isolation: Isolation = Isolation.NONE,
    ) -> None:
        """`signature` is None for an engine that runs all sites on one machine, where nobody signs jobs."""
        self._config, self._job, self._job_id, self._log = config, job, job_id, log
        self._signature, self._isolation, self._permit = signature, isolation, ""

    def decide(self) -> None:
        """Check signature and freshness, then the policy, and log a signed job as admitted. Raises `JobRefused`."""
        with admission_lock(self._config.audit):
            history = self._history()
            if self._signature is not None:
                self._check_signature(self._signature, history)
            for code in self._objections():
                self.refuse(code)
            self._check_plug_ins()
            if refusal := self._config.policy.refusal(self._job.offer()):
                self.refuse(*refusal)
            self._check_answers()
            self._check_exchange()
            self._permit = history.permit
            permit = self.require_approval(history.permits)
            if (self._signature is not None or permit is not None) and not history.admitted:
                self._remember(history, permit)

    def require_approval(self, used: Collection[str] = ()) -> "JobDecision | None":
        """The person's approval of the job; None if the site requires none.

        Raises `JobRefused` if it is missing or withdrawn, also in later rounds. `used`: the permits of other jobs.
        """
        if not self._config.approvers:
            return None
        from medfedvqa.federation import approvals  # only where persons decide

        actor = self._signature.actor if self._signature else ""
        permit, code = approvals.permit(self._config, self._job.definition, actor, used, self._permit)
        if permit is None:
            if code is Refusal.APPROVAL:
                with suppress(approvals.ApprovalError):  # a database that cannot be read refuses every job
                    approvals.keep_waiting(self._config, self._job, actor)
            self.refuse(code)
        self._permit = permit.permit
        return permit

    @contextmanager
    def drawing_once(self) -> Iterator[bool]:
        """Lock out the site's other processes; yields whether another job of this definition drew a committee.

        There is no second draw while that job's signature is fresh, or for a month if it has no expiry: a submitter
        could otherwise repeat the draw until it suits.
        """
        with admission_lock(self._config.audit):
            yield self._drawn_before()

    def _drawn_before(self) -> bool:
        now, jobs = datetime.now(UTC), set()
        for entry in read(self._config.audit):
            if entry.job == self._job_id or entry.job is None:
                continue
            if entry.event is Event.ADMITTED and (entry.admission or {}).get("definition") == self._job.definition:
                if _fresh_until(entry) >= now:
                    jobs.add(entry.job)
            elif entry.job in jobs and (entry.task, entry.outcome) == (OPEN, Outcome.SENT):
                return True
        return False

    def refuse(self, code: Refusal, detail: str = "") -> NoReturn:
        """Log the refusal and raise `JobRefused`. `detail` stays at the site."""
        self._log.append(
            Event.REFUSAL,
            **self._standing(),
            outcome=Outcome.REFUSED,
            reason=detail or code.sentence,
            admission={"code": code.value, "definition": self._job.definition},
        )
        raise JobRefused(code, detail)

    def _standing(self) -> dict[str, Any]:
        actor = self._signature.actor if self._signature else ""
        policy = self._config.policy.digest()
        named = {"job": self._job_id, "method": self._job.method, "actor": actor or None, "policy": policy}
        return named | {"isolation": self._isolation}

    def _remember(self, history: _History, permit: "JobDecision | None") -> None:
        terms = self._job.terms
        fresh = {"nonce": terms.nonce, "expires": terms.expires.isoformat()} if terms else {}
        approved: dict[str, str] = {}
        if permit:
            approved = {"permit": permit.permit, "approver": permit.person, "until": permit.until.isoformat()}
        admission = {"definition": self._job.definition, "runs": history.repeats + 1, **fresh, **approved}
        self._log.append(Event.ADMITTED, **self._standing(), admission=admission)

    def _history(self) -> _History:
        history, definition = _History(), self._job.definition
        since = (datetime.now(UTC) - DAY).isoformat()
        for entry in read(self._config.audit):
            if entry.job == self._job_id:
                history.ended |= entry.event in (Event.CLOSE, Event.REFUSAL)
                history.admitted |= entry.event is Event.ADMITTED
                history.permit = (entry.admission or {}).get("permit", history.permit)
                history.other |= entry.event is Event.ADMITTED and not self._is_of(entry)
            elif entry.admission is not None:
                _add(history, entry, definition, recent=entry.time >= since)
        return history

    def _is_of(self, admitted: Entry) -> bool:
        """Whether an entry admitted the same signed job."""
        actor, terms = self._signature.actor if self._signature else "", self._job.terms
        of_entry = {name: (admitted.admission or {}).get(name) for name in ("definition", "nonce")}
        signed = {"definition": self._job.definition, "nonce": terms.nonce if terms else None}
        return (admitted.actor or "", of_entry) == (actor, signed)

    def _check_signature(self, signature: Signature, history: _History) -> None:
        policy, terms = self._config.policy, self._job.terms
        if not signature.actor:
            self.refuse(Refusal.SIGNATURE)
        listed = not policy.submitters or signature.actor in policy.submitters
        if not listed or signature.actor in policy.revoked_submitters:
            self.refuse(Refusal.SUBMITTER)
        if history.ended or history.other:
            self.refuse(Refusal.REPLAY)
        if terms is not None:
            self._check_terms(terms, signature, history)
        elif self._job.dp is not None and policy.require_fresh:
            self.refuse(Refusal.FRESH)
        elif history.repeats >= policy.repeats:
            self.refuse(Refusal.REPEATS)
        if history.failed >= policy.data_refusals and not history.admitted:
            self.refuse(Refusal.THROTTLED)

    def _check_terms(self, terms: Terms, signature: Signature, history: _History) -> None:
        if terms.federation != signature.federation or self._config.name not in terms.sites:
            self.refuse(Refusal.FEDERATION)
        left = terms.expires - datetime.now(UTC)
        if not history.admitted and not timedelta(0) < left <= LONGEST + _SKEW:
            self.refuse(Refusal.EXPIRED)
        if terms.nonce in history.nonces:
            self.refuse(Refusal.REPLAY)

    def _objections(self) -> Iterator[Refusal]:
        job, config = self._job, self._config
        if job.method not in config.policy.methods:
            yield Refusal.METHOD
        if job.data not in (ANY_DATA, config.data.reader):
            yield Refusal.READER
        if not self._has_backbone():
            yield Refusal.BACKBONE
        if job.secagg and not self._knows_peers():
            yield Refusal.PEERS
        if problem_of(config.device):
            yield Refusal.DEVICE
        if config.data.root is not None and not config.data.root.exists():
            yield Refusal.ROOT

    def _check_plug_ins(self) -> None:
        """Refuse a method, reader or backbone from outside unless the site allows its distribution."""
        job, reader = self._job, self._config.data.reader
        names: dict[Group, str | None] = {
            "methods": None if is_built_in(job.method) else job.method,
            "readers": None if is_built_in_reader(reader) else reader,
            "backbones": outside_architecture(job.backbone),
            "networks": _outside_network(job) if job.options.get("network") else None,
        }
        try:
            for group, name in names.items():
                if name is not None:
                    check(group, name, self._config.plugins)
        except PlugInRefused as error:
            self.refuse(Refusal.PLUG_IN, str(error))
        if names["methods"] and job.dp is not None and self._config.policy.require_audited_methods:
            digests = [plug_in.sha256 for plug_in in offering("methods", job.method)]
            if not any(job.method in self._config.passed.get(digest, ()) for digest in digests):
                self.refuse(Refusal.NEIGHBOURS)

    def _has_backbone(self) -> bool:
        name, files = self._job.backbone, self._config.backbones
        if name in files:
            return files[name].exists()
        return is_bundled(name) or name in self._config.policy.allowed_backbones

    def _knows_peers(self) -> bool:
        """Whether the site has the keys of all sites that the job names, and of enough sites for the job."""
        job, peers = self._job, self._config.known_peers.keys() - {self._config.name}
        job_sites = {*job.members_rule().named, *(job.terms.sites if job.terms else ())} - {self._config.name}
        return job_sites <= peers and len(peers) >= job.least_sites - 1

    def _check_answers(self) -> None:
        try:
            self._job.build().check_answers(self._config.data.answers is not None)
        except ConfigError as error:
            self.refuse(Refusal.ANSWERS, str(error))

    def _check_exchange(self) -> None:
        if objection := _exchange_objection(self._config.policy, self._job):
            self.refuse(*objection)


def _outside_network(job: JobSpec) -> str | None:
    from medfedvqa.models.picture_networks import outside_network  # which no other job loads

    return outside_network(job.options)


def policy_objection(policy: SitePolicy, job: JobSpec) -> tuple[Refusal, str] | None:
    """The code and reason with which a policy alone refuses a job; None if it accepts the job."""
    if job.method not in policy.methods:
        return Refusal.METHOD, Refusal.METHOD.sentence
    return policy.refusal(job.offer()) or _exchange_objection(policy, job)


def _exchange_objection(policy: SitePolicy, job: JobSpec) -> tuple[Refusal, str] | None:
    """Why a policy refuses a tensor that the job declares, in either direction; None if it takes all."""
    for task in job.build().final_exchange(job.shape).tasks:
        for spec in (*task.up, *task.down):
            if reason := policy.allows(job.method, spec):
                return Refusal.KIND, reason
        for spec in task.up:
            if policy.require_dp and spec.kind is not Kind.PUBLIC and not spec.protection.private:
                return Refusal.PRIVACY, Refusal.PRIVACY.sentence
    return None


def _add(history: _History, entry: Entry, definition: str, recent: bool) -> None:
    """Add another job's entry to the history."""
    admission = entry.admission or {}
    if entry.event is Event.ADMITTED:
        history.permits |= {admission["permit"]} if "permit" in admission else set()
        if "nonce" in admission:
            history.nonces.add(admission["nonce"])
        elif recent and admission["definition"] == definition:
            history.repeats += 1
    elif entry.event is Event.REFUSAL and recent:
        history.failed += admission["code"] in (Refusal.DATA, Refusal.COUNT)


def _fresh_until(entry: Entry) -> datetime:
    expires = (entry.admission or {}).get("expires")
    return datetime.fromisoformat(expires) if expires else datetime.fromisoformat(entry.time) + LONGEST


@contextmanager
def admission_lock(audit: Path) -> Iterator[None]:
    """Lets only one process of the site decide at a time, so that two jobs cannot use the same nonce."""
    file = os.open(audit / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
