"""What site and server tell each other of audit logs, beside a task's tensors: checkpoints, proofs and cosignatures.

With each answer a site says the newest checkpoint of its log, and that it continues those which others hold; with the
next task the server brings its own cosignature, those of other sites, and other sites' checkpoints to cosign. Nothing
of it is believed before it is verified. What does not hold never stops training: it is logged as a finding.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from audits import AuditKey, AuditLog, Checkpoint, Event, Note, NoteError, VerifierKey, Witness
from audits.errors import ForkFound
from audits.gate import round_number
from medfedvqa.federation.site_config import SiteConfig

WITNESSES = 8
"""A log is cosigned by the server and at most so many other sites."""
MAX_UP, MAX_DOWN = 1 << 15, 1 << 16
"""Bytes that a site, or the server, may say beside one message."""
_MOST = 4 * WITNESSES  # parts of a kind in one message
_MALFORMED = "what was said of audit logs is malformed"

Proofs = Mapping[int, tuple[bytes, ...]]
"""That a checkpoint continues the log as it was with so many entries."""


@dataclass(frozen=True)
class Relayed:
    """Another site's checkpoint, for a witness that stands at the beginning of its proof."""

    key: VerifierKey
    note: Note
    proof: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Down:
    """What the server tells a site."""

    key: VerifierKey
    cosigned: tuple[Note, ...] = ()
    """The site's own checkpoints, with others' signatures."""
    others: tuple[Relayed, ...] = ()
    wanted: tuple[int, ...] = ()
    """Sizes of the site's log from which its next checkpoint is to be proven."""

    def encoded(self) -> bytes:
        """As it is sent; `read` is its inverse. What does not fit into the message is left out."""
        others = [[str(other.key), str(other.note), _coded(other.proof)] for other in self.others]
        cosigned, wanted = [str(note) for note in self.cosigned], list(self.wanted)

        def parts(most: int) -> dict[str, Any]:
            return {"cosigned": _last(cosigned, most), "others": _last(others, most), "wanted": _last(wanted, most)}

        return _fitted({"key": str(self.key)}, parts, MAX_DOWN)

    @classmethod
    def read(cls, encoded: bytes) -> "Down":
        """Raises `NoteError` for anything that the server would not send."""
        try:
            fields = _parsed(encoded, MAX_DOWN)
            others = (
                Relayed(VerifierKey.parse(key), Note.parse(note), _decoded(proof))
                for key, note, proof in _few(fields["others"])
            )
            cosigned = tuple(map(Note.parse, _few(fields["cosigned"])))
            return cls(
                VerifierKey.parse(fields["key"]), cosigned, tuple(others), tuple(map(_size, _few(fields["wanted"])))
            )
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error):
            raise NoteError(_MALFORMED) from None


@dataclass(frozen=True)
class Up:
    """What a site tells the server."""

    key: VerifierKey
    note: Note
    proofs: Proofs
    cosigned: tuple[Note, ...] = ()
    """Others' checkpoints, with this site's cosignature."""
    seen: Mapping[str, int] | None = None
    """How many entries of others' logs this site has cosigned, by origin."""

    def encoded(self) -> bytes:
        """As it is sent; `read` is its inverse. What does not fit into the message is left out."""
        proofs = [(str(size), _coded(proof)) for size, proof in self.proofs.items()]
        cosigned, seen = [str(note) for note in self.cosigned], list((self.seen or {}).items())

        def parts(most: int) -> dict[str, Any]:
            lists = {"proofs": dict(_last(proofs, most)), "seen": dict(_last(seen, most))}
            return {"cosigned": _last(cosigned, most), **lists}

        return _fitted({"key": str(self.key), "note": str(self.note)}, parts, MAX_UP)

    @classmethod
    def read(cls, encoded: bytes) -> "Up":
        """Raises `NoteError` for anything that a site would not send."""
        try:
            fields = _parsed(encoded, MAX_UP)
            proofs = {_size(int(size)): _decoded(proof) for size, proof in _few(list(fields["proofs"].items()))}
            seen = {str(origin): _size(size) for origin, size in _few(list(fields["seen"].items()))}
            cosigned = tuple(map(Note.parse, _few(fields["cosigned"])))
            return cls(VerifierKey.parse(fields["key"]), Note.parse(fields["note"]), proofs, cosigned, seen)
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error):
            raise NoteError(_MALFORMED) from None


class CheckpointExchange:
    """A site's part, for one job."""

    def __init__(self, config: SiteConfig, log: AuditLog, key: AuditKey, job_id: str, method: str) -> None:
        """Raises `NoteError` if a pinned key is none."""
        pinned = {peer.name: peer for peer in map(VerifierKey.parse, config.audit_peers.values())}
        self._log, self._key = log, key
        self._standing = {"job": job_id, "method": method}
        self._witness = Witness(config.audit, key, pinned)
        self._cosigned: list[Note] = []
        self._sizes: set[int] = set()

    def receive(self, audit_bytes: bytes, round: int) -> None:
        """Takes in what the server told; findings go into the log. Raises `LogError` if that cannot be written."""
        self._cosigned, self._sizes = [], set()
        if not audit_bytes:
            return
        try:
            down = Down.read(audit_bytes)
            self._witness.introduce(down.key)
        except NoteError as error:
            self._find(error, round)
            return
        others = [other for other in down.others if self._introduced(other, round)]
        results = self._witness.cosign_all((other.note, other.proof) for other in others)
        for other, result in zip(others, results, strict=True):
            if isinstance(result, NoteError):
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
        """The newest checkpoint, made now, and what belongs to it. Raises `LogError`."""
        note = self._log.checkpoint()
        size = Checkpoint.parse(note.text).size
        proofs = {old: tuple(self._log.proof(old, note)) for old in sorted(self._sizes) if old <= size}
        positions = self._witness.positions().items()
        seen = {origin: Checkpoint.parse(position.text).size for origin, position in positions}
        # Of others' logs that are not of this job nothing needs to be said.
        return Up(self._key.public, note, proofs, tuple(self._cosigned), seen).encoded()

    def _introduced(self, other: Relayed, round: int) -> bool:
        """Whether the key is the one that is known, or the first of its name."""
        try:
            if other.key.name == self._key.public.name:
                raise NoteError("the server passes this site's own log off as another's")
            self._witness.introduce(other.key)
        except NoteError as error:
            self._find(error, round, other.key.name)
            return False
        return True

    def _checked(self, note: Note) -> Note:
        """The note, if it is of this log. Raises `ForkFound` where it is signed by this site and of other entries."""
        if not self._key.public.signed(note) or Checkpoint.parse(note.text).origin != self._key.public.name:
            raise NoteError("the server holds a checkpoint as this site's that is not signed by it")
        if self._log.contradicts(note):
            raise ForkFound("others hold a signed checkpoint that this log does not have: it was cut or rolled back")
        return note

    def _checked_sizes(self, sizes: tuple[int, ...]) -> set[int]:
        """These sizes, if the log has had them."""
        signed = Checkpoint.parse(self._log.checkpoint().text).size
        if max(sizes, default=0) > signed:
            raise ForkFound("others are said to hold more of this log than there is: it was cut, or the server errs")
        return set(sizes)

    def _find(self, error: NoteError, round: int, about: str = "") -> None:
        peer = about if about in self._witness.known_keys() else None
        self._log.append(Event.FINDING, **self._standing, round=round_number(round), peer=peer, reason=str(error))


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _fitted(whole: Mapping[str, Any], parts: Callable[[int], Mapping[str, Any]], most: int) -> bytes:
    """The encoding with as many parts of each kind as fit into `most` bytes."""
    count = _MOST
    while len(encoded := _json({**whole, **parts(count)})) > most and count:
        count //= 2
    return encoded


def _last(parts: list[Any], most: int) -> list[Any]:
    return parts[len(parts) - most :] if len(parts) > most else parts


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
