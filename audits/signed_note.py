"""Signed notes and the keys that sign them; people and tools outside of this project can check them as well.

Sources: C2SP signed-note (Ed25519, type 1) and C2SP tlog-cosignature (timestamped Ed25519, type 4), both version 1.
"""

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from audits.errors import NoteError
from audits.secrets import SecretError, make_secret, read_secret

MAX_NOTE = 1 << 16  # bytes
_SIGNED, _COSIGNED = 1, 4  # types of keys
_PUBLIC_BYTES, _ID_BYTES, _SIGNATURE_BYTES, _TIME_BYTES = 32, 4, 64, 8
_NAME = re.compile(r"[^\s+\x00-\x1f\ud800-\udfff]{1,200}")
_LONE = re.compile(r"[\ud800-\udfff]")
"""Lone surrogates, which JSON can hold and UTF-8 cannot."""
DASH = "\u2014 "


def key_name(name: str) -> str:
    """The name, if a key may have it: no space, no plus. Raises `NoteError`."""
    if not _NAME.fullmatch(name):
        raise NoteError("a key's name has 1 to 200 characters, without spaces and plus signs: rename the site")
    return name


@dataclass(frozen=True)
class VerifierKey:
    """A public key and its owner's name; its text form is `NAME+ID+KEY`, which other tools for signed notes accept."""

    name: str
    raw: bytes

    @classmethod
    def parse(cls, text: str) -> "VerifierKey":
        """Parses NAME+ID+KEY, as `str` writes it; also an outside witness's key (type 4). Raises `NoteError`."""
        try:
            name, key_id, encoded = text.strip().split("+", 2)
            raw = base64.b64decode(encoded, validate=True)
            key = cls(key_name(name), raw[1:])
        except (ValueError, binascii.Error):
            raise NoteError("a verifier key must have the form NAME+ID+KEY: see the file 'keys' of a log") from None
        kind = raw[0] if raw else 0
        if kind not in (_SIGNED, _COSIGNED) or len(raw) != 1 + _PUBLIC_BYTES or key._id(kind).hex() != key_id:
            raise NoteError("this verifier key is damaged, or not one of Ed25519: copy it again")
        return key

    def __str__(self) -> str:
        return self._text(_SIGNED)

    @property
    def of_witness(self) -> str:
        """The key as witnesses publish theirs: `NAME+ID+KEY` with the id of a cosigning key."""
        return self._text(_COSIGNED)

    def signed(self, note: "Note") -> bool:
        """Whether the note has this key's signature."""
        return any(self.verifies(sig[_ID_BYTES:], note.text.encode()) for sig in note.of(self.name, self._id(_SIGNED)))

    def cosigned(self, note: "Note") -> int | None:
        """When this key cosigned the note, in seconds since 1970; None if it did not."""
        for signature in note.of(self.name, self._id(_COSIGNED)):
            rest = signature[_ID_BYTES:]
            time = int.from_bytes(rest[:_TIME_BYTES], "big")
            if self.verifies(rest[_TIME_BYTES:], _cosigned_text(note.text, time).encode()):
                return time
        return None

    @property
    def hint(self) -> str:
        """The key's name and id, as in the key's text form."""
        return f"{self.name}+{self._id(_SIGNED).hex()}"

    @property
    def ids(self) -> frozenset[bytes]:
        """The key ids that this key's signatures and cosignatures carry."""
        return frozenset((self._id(_SIGNED), self._id(_COSIGNED)))

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether the key made this Ed25519 signature of the message."""
        try:
            self._public.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def _text(self, kind: int) -> str:
        return f"{self.name}+{self._id(kind).hex()}+{base64.b64encode(bytes([kind]) + self.raw).decode()}"

    def _id(self, kind: int) -> bytes:
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([kind]) + self.raw).digest()[:_ID_BYTES]

    @cached_property
    def _public(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.raw)


class AuditKey:
    """A private Ed25519 key, kept in a file that only its owner can read, and the name under which it signs."""

    def __init__(self, name: str, private: Ed25519PrivateKey) -> None:
        """Raises `NoteError` for a name that a key cannot have."""
        self._private = private
        self.public = VerifierKey(key_name(name), private.public_key().public_bytes_raw())

    @classmethod
    def at(cls, path: Path, name: str) -> "AuditKey":
        """The key in the file, which is created with mode 0600 if it does not exist.

        Raises `NoteError` if others may read the file, if it holds no key, or if none can be made.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                make_secret(path)
            return cls(name, Ed25519PrivateKey.from_private_bytes(read_secret(path)))
        except SecretError as error:
            raise NoteError(f"the audit key {error}") from None
        except OSError as error:
            raise NoteError(f"the audit key can be neither read nor made ({error.strerror})") from None

    def named(self, name: str) -> "AuditKey":
        """The same key under another name."""
        return AuditKey(name, self._private)

    def sign(self, text: str) -> "Note":
        """A note with this key's signature."""
        signature = self.public._id(_SIGNED) + self._private.sign(text.encode())
        return Note(text, ((self.public.name, signature),))

    def signature(self, message: bytes) -> bytes:
        """This key's Ed25519 signature of a message, which must not begin like a note or a cosignature."""
        return self._private.sign(message)

    def cosign(self, note: "Note", time: int) -> "Note":
        """The note with nothing but this key's cosignature. `time`: seconds since 1970."""
        signature = self._private.sign(_cosigned_text(note.text, time).encode())
        timed_signature = self.public._id(_COSIGNED) + time.to_bytes(_TIME_BYTES, "big") + signature
        return Note(note.text, ((self.public.name, timed_signature),))


@dataclass(frozen=True)
class Note:
    """A text, which ends in a line feed, and its signatures: the signer's name, and the key id and signature bytes."""

    text: str
    signatures: tuple[tuple[str, bytes], ...]

    @classmethod
    def parse(cls, source: str) -> "Note":
        """Reads what `str` wrote. Raises `NoteError` for anything else."""
        text, gap, block = source.rpartition("\n\n")
        lines = block.split("\n")
        if len(source) > MAX_NOTE or _LONE.search(source) or not gap or not text or lines.pop() != "" or not lines:
            raise NoteError("this is not a signed note")
        return cls(text + "\n", tuple(map(_signature, lines)))

    def __str__(self) -> str:
        encoded = ((name, base64.b64encode(raw).decode()) for name, raw in self.signatures)
        return f"{self.text}\n" + "".join(f"{DASH}{name} {signature}\n" for name, signature in encoded)

    def of(self, name: str, key_id: bytes) -> list[bytes]:
        """The signatures of a key."""
        return [raw for signer, raw in self.signatures if signer == name and raw[:_ID_BYTES] == key_id]

    def ids_of(self, name: str) -> frozenset[bytes]:
        """The key ids in the signatures under this name, unchecked."""
        return frozenset(raw[:_ID_BYTES] for signer, raw in self.signatures if signer == name)

    def joined(self, other: "Note") -> "Note":
        """This note with the signatures of another note of the same text added, each once."""
        return replace(self, signatures=tuple(dict.fromkeys((*self.signatures, *other.signatures))))


def _cosigned_text(text: str, time: int) -> str:
    return f"cosignature/v1\ntime {time}\n{text}"


def _signature(line: str) -> tuple[str, bytes]:
    try:
        name, encoded = line.removeprefix(DASH).split(" ")
        raw = base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        raise NoteError("this is not a signed note") from None
    # Only one encoding is accepted, or the same signatures would make several notes.
    if not line.startswith(DASH) or base64.b64encode(raw).decode() != encoded or len(raw) <= _ID_BYTES:
        raise NoteError("this is not a signed note")
    return key_name(name), raw
