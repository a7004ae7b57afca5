"""The audit bytes that site and server send alongside a task's tensors: checkpoints, proofs and cosignatures.

With each answer, a site sends the newest checkpoint of its log, and proofs that it continues those that others hold.
With the next task, the server sends its own cosignature, those of other sites, and other sites' checkpoints to cosign.
Everything is verified before it is used. A failed verification never stops training: it is logged as a finding.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from audits import AuditKey, AuditLog, Checkpoint, Event, Note, NoteError, VerifierKey, Witness
from audits.checkpoint import succeeded
from audits.errors import ForkFound, ProofFromElsewhere
from audits.gate import round_number
from medfedvqa.federation.site_config import SiteConfig

WITNESSES = 8
"""A log is cosigned by the server and at most this many other sites."""
MAX_UP, MAX_DOWN = 1 << 15, 1 << 16
"""The most audit bytes that a site, or the server, sends alongside one message."""
_MOST = 4 * WITNESSES  # parts of a kind in one message
_MALFORMED = "the message about audit logs is malformed"

Proofs = Mapping[int, tuple[bytes, ...]]
"""Proofs that a checkpoint continues the log, each by the number of entries from which it continues."""


@dataclass(frozen=True)
class Relayed:
    """Another site's checkpoint for a witness, with the consistency proof from the size that the witness knows."""

    key: VerifierKey
    note: Note
    proof: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Down:
    """The audit bytes from the server to a site."""

    key: VerifierKey
    cosigned: tuple[Note, ...] = ()
    """Checkpoints of the site's log, with others' signatures."""
    others: tuple[Relayed, ...] = ()
    wanted: tuple[int, ...] = ()
    """Sizes of the site's log from which its next checkpoint needs proofs."""
    successions: tuple[Note, ...] = ()
    """The signed successions of the keys of the others' logs."""

    def encoded(self) -> bytes:
        """The bytes of the message, without the parts that do not fit; `read` is the inverse."""
        others = [[str(other.key), str(other.note), _coded(other.proof)] for other in self.others]
        cosigned, wanted = [str(note) for note in self.cosigned], list(self.wanted)

        def parts(most: int) -> dict[str, Any]:
            lists = {"cosigned": _last(cosigned, most), "others": _last(others, most), "wanted": _last(wanted, most)}
            return lists | _encoded_successions(self.successions, most)

        return _fitted({"key": str(self.key)}, parts, MAX_DOWN)

    @classmethod
    def read(cls, encoded: bytes) -> "Down":
        """The audit bytes in a message. Raises `NoteError` for anything that the server would not send."""
        try:
            fields = _parsed(encoded, MAX_DOWN)
            others = (
                Relayed(VerifierKey.parse(key), Note.parse(note), _decoded(proof))
                for key, note, proof in _few(fields["others"])
            )
            cosigned = tuple(map(Note.parse, _few(fields["cosigned"])))
            wanted = tuple(map(_size, _few(fields["wanted"])))
            return cls(VerifierKey.parse(fields["key"]), cosigned, tuple(others), wanted, _read_successions(fields))
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error):
            raise NoteError(_MALFORMED) from None


@dataclass(frozen=True)
class Up:
    """The audit bytes from a site to the server."""

    key: VerifierKey
    note: Note
    proofs: Proofs
    cosigned: tuple[Note, ...] = ()
    """Others' checkpoints, with this site's cosignature."""
    seen: Mapping[str, int] | None = None
    """The number of entries of others' logs that this site has cosigned, by origin."""
    successions: tuple[Note, ...] = ()
    """The signed successions of the key of the site's log."""

    def encoded(self) -> bytes:
        """The bytes of the message, without the parts that do not fit; `read` is the inverse."""
        proofs = [(str(size), _coded(proof)) for size, proof in self.proofs.items()]
        cosigned, seen = [str(note) for note in self.cosigned], list((self.seen or {}).items())

        def parts(most: int) -> dict[str, Any]:
            lists = {"proofs": dict(_last(proofs, most)), "seen": dict(_last(seen, most))}
            return {"cosigned": _last(cosigned, most), **lists} | _encoded_successions(self.successions, most)

        return _fitted({"key": str(self.key), "note": str(self.note)}, parts, MAX_UP)

    @classmethod
    def read(cls, encoded: bytes) -> "Up":
        """The audit bytes in a message. Raises `NoteError` for anything that a site would not send."""
        try:
            fields = _parsed(encoded, MAX_UP)
            proofs = {_size(int(size)): _decoded(proof) for size, proof in _few(list(fields["proofs"].items()))}
            seen = {str(origin): _size(size) for origin, size in _few(list(fields["seen"].items()))}
            cosigned = tuple(map(Note.parse, _few(fields["cosigned"])))
            note, successions = Note.parse(fields["note"]), _read_successions(fields)
            return cls(VerifierKey.parse(fields["key"]), note, proofs, cosigned, seen, successions)
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error):
            raise NoteError(_MALFORMED) from None


class CheckpointExchange:
    """A site's part in the exchange, for one job."""

    def __init__(self, config: SiteConfig, log: AuditLog, key: AuditKey, job_id: str, method: str) -> None:
        """Raises `NoteError` if a pinned key is malformed."""
        pinned = {peer.name: peer for peer in map(VerifierKey.parse, config.audit_peers.values())}
        self._log, self._key = log, key
        self._standing = {"job": job_id, "method": method}
        self._witness = Witness(config.audit, key, pinned)
        self._successions = self._witness.successions(key.public.name)
        self._cosigned: list[Note] = []
        self._sizes: set[int] = set()
        self._told: Mapping[str, int] = {}
        """Sizes of others' logs as last sent to the server, without other jobs' later ones; empty after a restart."""

    def receive(self, audit_bytes: bytes, round: int) -> None:
        """Take in the server's audit bytes, and log findings. Raises `LogError` if the log cannot be written."""
        self._cosigned, self._sizes = [], set()
        if not audit_bytes:
            return
        try:
            down = Down.read(audit_bytes)
            self._witness.succeed(down.successions)
            self._witness.introduce(down.key)
        except NoteError as error:
            self._find(error, round)
            return
        others = [other for other in down.others if self._introduced(other, round)]
        results = self._witness.cosign_all(((other.note, other.proof) for other in others), self._told)
        for other, result in zip(others, results, strict=True):
            if isinstance(result, NoteError):
                if not isinstance(result, ProofFromElsewhere):  # this site's answer says where proofs have to begin
                    self._find(result, round, other.key.name)
            else:
                signatures = tuple(
                    signature for signature in result.signatures if signature[0] == self._key.public.name
                )
                self._cosigned.append(Note(result.text, signatures))
        try:
            notes = [self._checked(note) for note in down.cosigned]
            self._log.cosigned(notes, self._witness.known_keys().values())
            self._sizes = self._checked_sizes(down.wanted)
        except NoteError as error:
            self._find(error, round)

    def reply(self) -> bytes:
        """This site's audit bytes: a new checkpoint with its proofs, and cosignatures. Raises `LogError`."""
        note = self._log.checkpoint()
        size = Checkpoint.parse(note.text).size
        proofs = {old: tuple(self._log.proof(old, note)) for old in sorted(self._sizes) if old <= size}
        positions = self._witness.positions().items()
        self._told = seen = {origin: Checkpoint.parse(position.text).size for origin, position in positions}
        successions = tuple(each.note for each in self._successions)
        return Up(self._key.public, note, proofs, tuple(self._cosigned), seen, successions).encoded()

    def _introduced(self, other: Relayed, round: int) -> bool:
        """Whether another log's key is the known one, or the first under its name. If not, logs a finding."""
        try:
            if other.key.name == self._key.public.name:
                raise NoteError("the server presents this site's log as another site's")
            self._witness.introduce(other.key)
        except NoteError as error:
            self._find(error, round, other.key.name)
            return False
        return True

    def _checked(self, note: Note) -> Note:
        """The note, if this log's key signed it. Raises `ForkFound` if its entries differ from this log's."""
        if (
            not succeeded(self._key.public, self._successions).signed(note)
            or Checkpoint.parse(note.text).origin != self._key.public.name
        ):
            raise NoteError("the server holds a checkpoint of this site that the site did not sign")
        if self._log.contradicts(note):
            raise ForkFound("others hold a signed checkpoint that this log lacks: the log was shortened or rolled back")
        return note

    def _checked_sizes(self, sizes: tuple[int, ...]) -> set[int]:
        """The sizes as a set. Raises `ForkFound` if the log has fewer entries than the largest."""
        signed = Checkpoint.parse(self._log.checkpoint().text).size
        if max(sizes, default=0) > signed:
            raise ForkFound("others hold more entries of this log than it has: it was shortened, or the server errs")
        return set(sizes)

    def _find(self, error: NoteError, round: int, about: str = "") -> None:
        peer = about if about in self._witness.known_keys() else None
        self._log.append(Event.FINDING, **self._standing, round=round_number(round), peer=peer, reason=str(error))


def _encoded_successions(notes: tuple[Note, ...], most: int) -> dict[str, list[str]]:
    """The member `successions` of a message; absent where no key was replaced, as in earlier versions."""
    return {"successions": _last([str(note) for note in notes], most)} if notes else {}


def _read_successions(fields: Mapping[str, Any]) -> tuple[Note, ...]:
    return tuple(map(Note.parse, _few(fields.get("successions", []))))


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _fitted(whole: Mapping[str, Any], parts: Callable[[int], Mapping[str, Any]], most: int) -> bytes:
    """The encoded message, with as many parts of each kind as fit into `most` bytes."""
    count = _MOST
    while len(encoded := _json({**whole, **parts(count)})) > most and count:
        count //= 2
    return encoded


def _last(parts: list[Any], most: int) -> list[Any]:
    return parts[max(len(parts) - most, 0) :]


def _parsed(encoded: bytes, most: int) -> Any:
    if len(encoded) > most:
        raise ValueError
    try:
        return json.loads(encoded)
    except RecursionError:
        raise ValueError from None


def _few(parts: Any) -> list[Any]:
    if not isinstance(parts, list) or len(parts) > _MOST:
        raise ValueError
    return parts


def _size(size: Any) -> int:
    if type(size) is not int or not 0 <= size < 1 << 60:
        raise ValueError
    return size


def _coded(proof: tuple[bytes, ...]) -> list[str]:
    return [base64.b64encode(node).decode() for node in proof]


def _decoded(proof: Any) -> tuple[bytes, ...]:
    nodes = tuple(base64.b64decode(node, validate=True) for node in proof)
    if len(nodes) > 128 or any(len(node) != 32 for node in nodes):
        raise ValueError
    return nodes
