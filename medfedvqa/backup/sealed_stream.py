"""Streams that are encrypted and authenticated chunk by chunk: the STREAM construction over AES-256-GCM.

A chunk that was changed, moved, left out or cut off at the end is refused. The header line names the format, so that a
file of a newer version is recognised without its key; salt and line are bound to the key and authenticated with every
chunk.

Source: Hoang, Reyhanitabar, Rogaway and Vizar, "Online Authenticated-Encryption and its Nonce-Reuse
Misuse-Resistance", CRYPTO 2015.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from medfedvqa.errors import BackupError

FORMAT = 1
CHUNK = 1 << 20
"""Bytes of a chunk before encryption; the last one may be shorter."""
_SALT, _TAG, _COUNTER = 16, 16, 11  # bytes
_SCRYPT = {"length": 32, "n": 1 << 17, "r": 8, "p": 1}  # 128 MiB and about half a second for each guess
_HEADER = re.compile(rb"medfedvqa-backup/([1-9][0-9]{0,5}) (key|passphrase)\n")
_MAX_HEADER = 40
_DAMAGED = "the backup is damaged, or the key or passphrase is not the one that it was made with"


@dataclass(frozen=True)
class BackupSecret:
    """What a backup is encrypted with: 32 bytes of a key file, or a passphrase in UTF-8."""

    kind: Literal["key", "passphrase"]
    secret: bytes

    def cipher(self, salt: bytes, header: bytes) -> AESGCM:
        """The cipher of one file."""
        if self.kind == "passphrase":
            return AESGCM(Scrypt(salt=salt, **_SCRYPT).derive(self.secret))
        return AESGCM(HKDF(SHA256(), 32, salt, header).derive(self.secret))


class SealedWriter:
    """Encrypts what is written into `file`; the file is whole once `finish` has returned."""

    def __init__(self, file: BinaryIO, secret: BackupSecret) -> None:
        salt, self._header = os.urandom(_SALT), f"medfedvqa-backup/{FORMAT} {secret.kind}\n".encode()
        self._file, self._buffer, self._seal = file, bytearray(), _Chunks(secret.cipher(salt, self._header).encrypt)
        file.write(self._header + salt)

    def write(self, data: bytes) -> int:
        """Adds bytes; returns how many."""
        self._buffer += data
        while len(self._buffer) > CHUNK:  # the last chunk is known only when the stream ends
            self._file.write(self._seal.next(bytes(self._buffer[:CHUNK]), self._header, last=False))
            del self._buffer[:CHUNK]
        return len(data)

    def finish(self) -> None:
        """Writes the last chunk."""
        self._file.write(self._seal.next(bytes(self._buffer), self._header, last=True))


class SealedReader:
    """Decrypts what `SealedWriter` wrote. Raises `BackupError` at the first chunk that does not hold."""

    def __init__(self, file: BinaryIO, secret: BackupSecret) -> None:
        self._file = file
        self._header = file.readline(_MAX_HEADER)
        match = _HEADER.fullmatch(self._header)
        if match is None:
            raise BackupError("this file is no backup of a site")
        if int(match[1]) > FORMAT:
            raise BackupError("the backup was written by a newer version of this software: restore it with that one")
        if match[2].decode() != secret.kind:
            raise BackupError(f"the backup was made with a {match[2].decode()}: give that one")
        self._open = _Chunks(secret.cipher(file.read(_SALT), self._header).decrypt)
        self._next, self._plain = file.read(CHUNK + _TAG), b""
        self._ended = False

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end of a stream that is whole."""
        while not self._plain and not self._ended:
            chunk, self._next = self._next, self._file.read(CHUNK + _TAG)
            self._ended = not self._next
            try:
                self._plain = self._open.next(chunk, self._header, last=self._ended)
            except (InvalidTag, ValueError):
                raise BackupError(_DAMAGED) from None
        plain, self._plain = self._plain[:size], self._plain[size:]
        return plain


class _Chunks:
    """Applies a cipher to one chunk after the other: a nonce is the chunk's number and whether it is the last."""

    def __init__(self, apply: Callable[[bytes, bytes, bytes], bytes]) -> None:
        self._apply, self._number = apply, 0

    def next(self, chunk: bytes, header: bytes, last: bool) -> bytes:
        nonce = self._number.to_bytes(_COUNTER, "big") + bytes([last])
        self._number += 1
        return self._apply(nonce, chunk, header)
