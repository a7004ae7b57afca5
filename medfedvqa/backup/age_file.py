"""A backup as an age file, which the program `age` opens too: encrypted and authenticated, in chunks of 64 KiB.

With a key the file is encrypted to the recipient of an age identity. With a passphrase the identity is a fresh one,
which comes before the file, in text, encrypted with the passphrase. The recipient is not stored: whoever has neither
key nor passphrase can make no file that opens with them.

Source: https://age-encryption.org/v1
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO, Literal

import pyrage

from medfedvqa.errors import BackupError

_BEGIN, _END = b"-----BEGIN AGE ENCRYPTED FILE-----\n", b"-----END AGE ENCRYPTED FILE-----\n"
_AGE = b"age-encryption.org/"
_MOST_HEAD = 4096  # bytes
_DAMAGED = "the backup is damaged, or the key or passphrase is not the one that it was made with"


@dataclass(frozen=True)
class BackupSecret:
    """The secret that encrypts a backup: an age identity, `AGE-SECRET-KEY-1...`, or a passphrase."""

    kind: Literal["key", "passphrase"]
    secret: str

    def __post_init__(self) -> None:
        if self.kind == "key":
            _identity(self.secret)


class _Target:
    """A file that remembers the error of a failed write: the library's errors have no `errno`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def sealed(file: BinaryIO, secret: BackupSecret) -> Iterator[BinaryIO]:
    """A stream that encrypts its content into `file`, which is whole once the context ends. Raises `OSError`."""
    receive, send = os.pipe()
    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(_encrypt, receive, file, secret)
        with suppress(BrokenPipeError), open(send, "wb") as stream:  # the thread says why it stopped reading
            yield stream
        writing.result()


def _encrypt(receive: int, file: BinaryIO, secret: BackupSecret) -> None:
    target = _Target(file)
    with open(receive, "rb") as plain:
        if secret.kind == "key":
            identity = _identity(secret.secret)
        else:
            identity = pyrage.x25519.Identity.generate()
            file.write(pyrage.passphrase.encrypt(str(identity).encode(), secret.secret, armored=True))
        try:
            pyrage.encrypt_io(plain, target, [identity.to_public()])
        except (pyrage.EncryptError, OSError) as error:
            raise target.error or error from None


def unseal(file: BinaryIO, secret: BackupSecret, plain: BinaryIO) -> None:
    """Decrypts a file that `sealed` made into `plain`. Raises `BackupError` if it is not authentic, and `OSError`."""
    target, (head, end, _) = _Target(plain), file.read(_MOST_HEAD).partition(_END)
    kind = "passphrase" if head.startswith(_BEGIN) else "key"
    if kind == "key" and not head.startswith(_AGE):
        raise BackupError("this file is no backup of a site")
    if kind != secret.kind:
        raise BackupError(f"the backup was made with a {kind}: give that one")
    try:
        text = secret.secret
        if kind == "passphrase":
            text = pyrage.passphrase.decrypt(head + end, text).decode()
        file.seek(len(head + end) if kind == "passphrase" else 0)
        pyrage.decrypt_io(file, target, [_identity(text)])
    except (pyrage.DecryptError, OSError, UnicodeDecodeError):
        raise target.error or BackupError(_DAMAGED) from None


def _identity(text: str) -> pyrage.x25519.Identity:
    """The first identity of a file as `age-keygen` writes it. Raises `BackupError`."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    try:
        return pyrage.x25519.Identity.from_str(next(lines, "").strip())
    except pyrage.IdentityError:
        raise BackupError("the key of the backup is no age identity: give the file that it was made with") from None
