"""The server's part in keeping audit logs honest: receipts for answers, its cosignatures, and the sites' exchange."""

import hashlib
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from audits import (
    AuditError,
    AuditKey,
    AuditLog,
    Checkpoint,
    Event,
    Exchange,
    Note,
    NoteError,
    Outcome,
    TaskSpec,
    TensorRecord,
    Tensors,
    VerifierKey,
    Witness,
    origin_of,
)
from audits.log_files import RECEIPTS
from medfedvqa.federation.checkpoint_exchange import WITNESSES, Down, Proofs, Relayed, Up

SERVER_KEYS = "notary"
"""The folder of the server's key and of its memory of sites' logs, which outlives jobs."""
_NAME = "medfedvqa/server"
_KEPT = 16
"""The number of a site's checkpoints that are kept for witnesses that lag behind."""
_PENDING = 2 * WITNESSES
"""The most cosignatures that wait for the next message to a site."""


@dataclass
class _Site:
    """The state of one site's log in this job."""

    key: VerifierKey | None = None
    checkpoints: OrderedDict[int, tuple[Note, Proofs]] = field(default_factory=OrderedDict)
    cosigned: list[Note] = field(default_factory=list)
    """Cosignatures of the site's log that travel with the next message to the site."""
    successions: tuple[Note, ...] = ()
    """The signed successions of the key of the site's log."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """The number of entries of others' logs that the site has cosigned, by origin."""

    def after(self, size: int | None) -> Relayed | None:
        """The newest checkpoint that has a proof from this size; the newest checkpoint if `size` is None."""
        for newest, (note, proofs) in reversed(self.checkpoints.items()):
            if self.key and size is None:
                return Relayed(self.key, note)
            if self.key and size is not None and size < newest and size in proofs:
                return Relayed(self.key, note, tuple(proofs[size]))
        return None


class ServerReceipts:
    """The receipts of one job, in `out/receipts`: a log like a site's, and the last checkpoint of each site's log."""

    def __init__(self, exchange: Exchange, job_id: str, sites: Collection[str], keys: Path, out: Path) -> None:
        """`exchange` is the job's, and `keys` the folder `SERVER_KEYS` of the server. Raises `LogError`."""
        key = AuditKey.at(keys / "audit.key", _NAME)
        origin = f"medfedvqa/receipts/{hashlib.sha256(job_id.encode()).hexdigest()[:16]}"
        self._witness, self._out = Witness(keys, key), out / RECEIPTS
        self._log = AuditLog(self._out, "server", key.named(origin))
        self._key, self._standing = key, {"job": job_id, "method": exchange.method}
        self._exchange = exchange
        self._order = sorted(sites)
        self._sites: defaultdict[str, _Site] = defaultdict(_Site)
        positions = self._witness.positions()
        for site in self._order:
            if origin_of(site) in positions:
                self._post(site, positions[origin_of(site)])  # this shows a site that its log was rolled back

    def outgoing(self, sites: Collection[str]) -> dict[str, bytes]:
        """The audit bytes for the next message to each of these sites."""
        return {site: self._down(site).encoded() for site in sites}

    def incoming(self, site: str, task: str, round: int, tensors: Tensors, audit_bytes: bytes) -> None:
        """Log the receipt of a site's answer, and take in its audit bytes. Raises `LogError`."""
        records = self._records(task, tensors)
        received = {"round": round, "task": task, "direction": "in", "peer": site, "outcome": Outcome.ACCEPTED}
        nbytes = sum(record.nbytes for record in records)
        self._log.append(Event.RECEIVE, **self._standing, **received, tensors=records, nbytes=nbytes)
        try:
            self._take(site, Up.read(audit_bytes))
        except NoteError as error:
            self._log.append(Event.FINDING, **self._standing, round=round, peer=site, reason=str(error))

    def refused(self, site: str, task: str, round: int, reason: str) -> None:
        """Log that a site's answer was not used. `reason` holds declared facts only. Raises `LogError`."""
        received = {"round": round, "task": task, "direction": "in", "peer": site, "outcome": Outcome.REFUSED}
        self._log.append(Event.RECEIVE, **self._standing, **received, reason=reason)

    def close(self) -> None:
        """Sign the receipts, and write the last checkpoints of the sites' logs beside them."""
        self._log.close()
        self._witness.export(self._out)

    def _down(self, site: str) -> Down:
        state, at = self._sites[site], self._order.index(site)
        cosigned, state.cosigned = tuple(state.cosigned), []
        others, successions = [], list[Note]()
        # Before a site's first answer nobody knows its positions, and so not which proofs it needs.
        for step in range(1, min(WITNESSES + 1, len(self._order))) if state.key else ():
            owner = self._order[at - step]
            if relayed := self._sites[owner].after(state.seen.get(origin_of(owner))):
                others.append(relayed)
                successions += self._sites[owner].successions
        return Down(self._key.public, cosigned, tuple(others), self._sizes_to_prove(site), tuple(successions))

    def _sizes_to_prove(self, site: str) -> tuple[int, ...]:
        """The sizes of the site's log that its witnesses know; its next checkpoint needs proofs from these."""
        origin = origin_of(site)
        sizes = {other.seen[origin] for other in self._sites.values() if origin in other.seen}
        if position := self._witness.position(origin):
            sizes.add(position.size)
        return tuple(sorted(sizes)[-2 * WITNESSES :])

    def _take(self, site: str, up: Up) -> None:
        state, origin = self._sites[site], origin_of(site)
        checkpoint = Checkpoint.parse(up.note.text)
        if up.key.name != origin or checkpoint.origin != origin:
            raise NoteError("the site sent a checkpoint of a log that is not its own")
        self._witness.succeed(up.successions)
        self._witness.introduce(up.key)
        position = self._witness.position(origin)
        proof = up.proofs.get(position.size, ()) if position else ()
        cosigned = self._witness.cosign(up.note, proof)
        state.key, state.seen, state.successions = up.key, dict(up.seen or {}), up.successions
        state.checkpoints[checkpoint.size] = Note(up.note.text, up.note.signatures), up.proofs
        while len(state.checkpoints) > _KEPT:
            state.checkpoints.popitem(last=False)
        self._post(site, cosigned)
        for note in up.cosigned:
            owner = Checkpoint.parse(note.text).origin.removeprefix(origin_of(""))
            if owner not in self._order or up.key.cosigned(note) is None:
                raise NoteError("the site sends a cosignature that another party made, or one of another job's log")
            self._post(owner, self._signed(owner, note))

    def _signed(self, owner: str, note: Note) -> Note:
        """A cosignature together with the owner's signature, which shows to whose log the note belongs."""
        size = Checkpoint.parse(note.text).size
        entry = self._sites[owner].checkpoints.get(size)
        if entry is None or entry[0].text != note.text:
            raise NoteError("the site cosigned a checkpoint that the server did not send to it")
        return entry[0].joined(note)

    def _post(self, owner: str, note: Note) -> None:
        self._sites[owner].cosigned = [*self._sites[owner].cosigned, note][-_PENDING:]

    def _records(self, task: str, tensors: Tensors) -> tuple[TensorRecord, ...]:
        """The records of the received tensors, in the form in which a site's gate records what it releases."""
        try:
            declared: TaskSpec | None = self._exchange.task(task)
        except AuditError:
            declared = None
        specs = declared.up if declared else ()
        return tuple(
            TensorRecord(
                spec.name,
                tensors[spec.name].shape,
                str(tensors[spec.name].dtype),
                tensors[spec.name].nbytes,
                _digest(tensors[spec.name]),
                spec.kind,
                spec.protection,
            )
            for spec in specs
            if spec.name in tensors
        )


def _digest(array: np.ndarray) -> str:
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return hashlib.sha256(np.ascontiguousarray(little).tobytes()).hexdigest()
