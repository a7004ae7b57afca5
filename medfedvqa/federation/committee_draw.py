"""The one draw of a job's committees: the sites' part, and the server's."""

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from audits import Gate, Refusal, Tensors, TensorSpec
from medfedvqa.core.on_shares import BEACON, CHECK, COMMIT, COMMITMENT, NONCE, OPEN
from medfedvqa.errors import FederationError
from medfedvqa.federation.admission import Admission
from medfedvqa.federation.aggregation_attempt import as_array, from_array
from medfedvqa.federation.hub import Reply
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_state import Draw, Saved, StateFile
from privacy.secagg.committee import NONCE_BYTES, Beacon, Nonce

COMMITMENTS, NONCES = "commitments", "nonces"
"""Arrays by which the server tells all sites what all have sent."""

Handler = Callable[[int, Tensors], Tensors]


@dataclass(frozen=True)
class DrawingSite:
    """Answers the tasks of the draw; asked again, also after a restart, with the same bytes."""

    config: SiteConfig
    job: JobSpec
    job_id: str
    gate: Gate
    file: StateFile
    admission: Admission

    @property
    def handlers(self) -> dict[str, Handler]:
        """By task."""
        return {COMMIT: self._commit, OPEN: self._open, CHECK: self._check}

    def _commit(self, round: int, message: Tensors) -> Tensors:
        """The hash of a nonce, which is drawn once for the job, before any computation of the job."""
        self.gate.receive(COMMIT, round, {})
        saved, draw = self._begun(round)
        if saved.group and saved.draw is None:
            raise FederationError("the job has computed on shares without a draw, and draws no committee any more")
        self.file.save(replace(saved, draw=draw))
        return self._sent(COMMIT, round, COMMITMENT, self._nonce(draw).commitment)

    def _open(self, round: int, message: Tensors) -> Tensors:
        """The nonce, once all have committed; opened under one set of commitments, ever."""
        self.gate.receive(OPEN, round, {})
        saved, draw = self._begun(round)
        commitments = _read(message, COMMITMENTS)
        if draw.commitments not in ({}, commitments):
            raise FederationError("the server has shown this site other commitments before: the draw is void")
        if commitments.get(self.config.name) != self._nonce(draw).commitment or len(commitments) < self.job.least_sites:
            raise FederationError(f"a draw needs this site and at least {self.job.least_sites} in all")
        if missing := sorted(commitments.keys() - self.config.peers.keys() - {self.config.name}):
            raise FederationError(f"site.yml pins no fingerprint of {', '.join(missing)}: add it under 'peers'")
        with self.admission.drawing_once() as before:
            if before:
                self.gate.refuse_job(Refusal.DRAWN)
            self.file.save(
                replace(saved, draw=replace(draw, commitments=commitments), group=tuple(sorted(commitments)))
            )
            return self._sent(OPEN, round, NONCE, draw.nonce)

    def _check(self, round: int, message: Tensors) -> Tensors:
        """The beacon, as it follows from all nonces. Raises `SecureAggregationError` if they are not as committed."""
        self.gate.receive(CHECK, round, {})
        saved, draw = self._begun(round)
        beacon = Beacon.open(self._nonce(draw), draw.commitments, _read(message, NONCES))
        self.file.save(replace(saved, draw=replace(draw, beacon=beacon.value)))
        return self._sent(CHECK, round, BEACON, beacon.value)

    def _begun(self, round: int) -> tuple[Saved, Draw]:
        saved = self.file.load()
        if saved is None or saved.round != round or type(round) is not int:
            self.gate.refuse_job(Refusal.ORDER, "a committee is drawn in the round in which a site has answered last")
        return saved, saved.draw or Draw(secrets.token_bytes(NONCE_BYTES))

    def _nonce(self, draw: Draw) -> Nonce:
        return Nonce(job_of_draw(self.job, self.job_id), self.config.name, draw.nonce)

    def _sent(self, task: str, round: int, spec: TensorSpec, value: bytes) -> Tensors:
        return self.gate.release(task, round, {spec.name: np.frombuffer(value, "<i8")})


def job_of_draw(job: JobSpec, job_id: str) -> str:
    """What every nonce is bound to: the very job that was signed, of which no other one has the nonce."""
    return f"{job_id} {job.definition} {job.terms.nonce if job.terms else ''}"


def draw(ask: Callable[[str, Mapping[str, Tensors]], Mapping[str, Reply]], sites: Collection[str]) -> Beacon:
    """The server's part: carries what sites send to all of them; a site that does not commit is not in the draw.

    Raises `FederationError` if a site that has committed does not open, since a second draw would let it choose between
    two, or if sites have found different beacons.
    """
    commitments = _answers(ask(COMMIT, dict.fromkeys(sites, {})), COMMITMENT)
    nonces = _answers(ask(OPEN, dict.fromkeys(commitments, {COMMITMENTS: _to_array(commitments)})), NONCE)
    if silent := sorted(commitments.keys() - nonces.keys()):
        raise FederationError(
            f"{', '.join(silent)} did not open what it had committed to, so that the draw of a committee is void: "
            "submit the job again, without that site if it happens twice"
        )
    beacons = _answers(ask(CHECK, dict.fromkeys(nonces, {NONCES: _to_array(nonces)})), BEACON)
    if len(set(beacons.values())) != 1:
        raise FederationError("sites found different results of the draw of a committee: submit the job again")
    return Beacon(tuple(sorted(nonces)), next(iter(beacons.values())))


def _answers(replies: Mapping[str, Reply], spec: TensorSpec) -> dict[str, bytes]:
    """What sites sent; without those that sent something else."""
    arrays = {site: np.asarray(reply.tensors.get(spec.name, ())) for site, reply in replies.items()}
    return {site: a.tobytes() for site, a in arrays.items() if (a.shape, a.dtype) == (spec.shape, np.dtype("<i8"))}


def _to_array(sent: Mapping[str, bytes]) -> np.ndarray:
    return as_array({site: sent[site].hex() for site in sorted(sent)})


def _read(message: Tensors, name: str) -> dict[str, bytes]:
    fields = from_array(message, name)
    try:
        return {str(site): bytes.fromhex(value) for site, value in fields.items()}
    except (TypeError, ValueError, AttributeError):
        raise FederationError("the server's message does not hold what all sites sent in the draw") from None
