"""The draw of a job's committees, which happens once: the sites' part and the server's."""

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from audits import Gate, Refusal, Tensors, TensorSpec
from medfedvqa.core.on_shares import BEACON, CHECK, COMMIT, COMMITMENT, NONCE, OPEN
from medfedvqa.errors import FederationError
from medfedvqa.federation.admission import Admission
from medfedvqa.federation.aggregation_attempt import as_array, bytes_by_name, from_array, hex_by_name, require_pins
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_state import Draw, Saved, StateFile
from privacy.secagg.committee import NONCE_BYTES, Beacon, Nonce

if TYPE_CHECKING:
    from medfedvqa.federation.hub import Reply  # not at a site, which loads no server

COMMITMENTS, NONCES = "commitments", "nonces"
"""The arrays in which the server sends all sites' commitments and nonces to every site."""

Handler = Callable[[int, Tensors], Tensors]


@dataclass(frozen=True)
class DrawingSite:
    """Answers the tasks of the draw. A repeated task gets the same bytes, also after a restart."""

    config: SiteConfig
    job: JobSpec
    job_id: str
    gate: Gate
    file: StateFile
    admission: Admission

    @property
    def handlers(self) -> dict[str, Handler]:
        """The handlers of the draw, by task."""
        return {COMMIT: self._commit, OPEN: self._open, CHECK: self._check}

    def _commit(self, round: int, message: Tensors) -> Tensors:
        """Commit to a nonce by its hash. The site draws one nonce a job, before the job computes on shares."""
        self.gate.receive(COMMIT, round, {})
        saved, draw = self._begun(round)
        if saved.group and saved.draw is None:
            raise FederationError("the job already computed on shares without a committee, so it cannot draw one now")
        self.file.save(replace(saved, draw=draw))
        return self._sent(COMMIT, round, COMMITMENT, self._nonce(draw).commitment)

    def _open(self, round: int, message: Tensors) -> Tensors:
        """Open the site's nonce, once all sites have committed. The site opens it under one set of commitments only."""
        self.gate.receive(OPEN, round, {})
        saved, draw = self._begun(round)
        commitments = _read(message, COMMITMENTS)
        if draw.commitments not in ({}, commitments):
            raise FederationError("the server showed this site different commitments before: the draw is void")
        if commitments.get(self.config.name) != self._nonce(draw).commitment or len(commitments) < self.job.least_sites:
            raise FederationError(f"a draw needs this site and at least {self.job.least_sites} in all")
        require_pins(self.config, commitments)
        with self.admission.drawing_once() as before:
            if before:
                self.gate.refuse_job(Refusal.DRAWN)
            self.file.save(
                replace(saved, draw=replace(draw, commitments=commitments), group=tuple(sorted(commitments)))
            )
            return self._sent(OPEN, round, NONCE, draw.nonce)

    def _check(self, round: int, message: Tensors) -> Tensors:
        """The beacon that follows from all nonces. Raises `SecureAggregationError` if one breaks its commitment."""
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
    """The text to which every nonce is bound: the id, the definition and the nonce of the signed job."""
    return f"{job_id} {job.definition} {job.terms.nonce if job.terms else ''}"


def draw(ask: Callable[[str, Mapping[str, Tensors]], Mapping[str, "Reply"]], sites: Collection[str]) -> Beacon:
    """The server's part: it forwards what each site sends to all. A site that does not commit is not in the draw.

    Raises `FederationError` if a site that has committed does not open, since a second draw would let it choose between
    two results, or if the sites' beacons differ.
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


def _answers(replies: Mapping[str, "Reply"], spec: TensorSpec) -> dict[str, bytes]:
    """The bytes that each site sent, without sites that sent anything else."""
    arrays = {site: np.asarray(reply.tensors.get(spec.name, ())) for site, reply in replies.items()}
    return {site: a.tobytes() for site, a in arrays.items() if (a.shape, a.dtype) == (spec.shape, np.dtype("<i8"))}


def _to_array(sent: Mapping[str, bytes]) -> np.ndarray:
    return as_array(hex_by_name(sent))


def _read(message: Tensors, name: str) -> dict[str, bytes]:
    return from_array(message, name, bytes_by_name, "hold what all sites sent in the draw")
