"""The options that give the key or the passphrase of a backup."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from audits import SecretError, make_secret
from audits.bounded_files import read_bounded
from audits.secrets import read_private
from medfedvqa.errors import BackupError

if TYPE_CHECKING:
    from medfedvqa.backup.age_file import BackupSecret

KeyFile = Annotated[
    Path | None, typer.Option("--key", help="An age identity, the file that encrypts; `backup` makes it if missing.")
]
PassphraseFile = Annotated[
    Path | None, typer.Option(help="A file with a passphrase in its first line. Without this and --key, asks for it.")
]
LEAST = 12
"""The fewest characters of a passphrase."""
_MOST = 4096


def secret_of(key: Path | None, passphrase_file: Path | None, new: bool) -> "BackupSecret":
    """The key or the passphrase of a backup. `new`: makes a missing key, and asks for a passphrase twice.

    Raises `BackupError`.
    """
    from medfedvqa.backup.age_file import BackupSecret

    if key is not None and passphrase_file is not None:
        raise BackupError("give --key or --passphrase-file, not both")
    if key is not None:
        return BackupSecret("key", _key(key, new))
    if passphrase_file is None:
        passphrase = str(typer.prompt("Passphrase of the backup", hide_input=True, confirmation_prompt=new, err=True))
    else:
        passphrase = _first_line(passphrase_file)
    if new and len(passphrase) < LEAST:
        raise BackupError(f"a passphrase has at least {LEAST} characters")
    return BackupSecret("passphrase", passphrase)


def _key(path: Path, new: bool) -> str:
    from pyrage import x25519

    try:
        if new and not path.exists():
            make_secret(path, f"{x25519.Identity.generate()}\n".encode())
        return read_private(path, _MOST).decode()
    except SecretError as error:
        raise BackupError(f"the key of the backup {error}") from None
    except (OSError, UnicodeDecodeError):
        raise BackupError("the key of the backup cannot be read: give the file that it was made with") from None


def _first_line(path: Path) -> str:
    try:
        return read_bounded(path, _MOST).decode().partition("\n")[0].removesuffix("\r")
    except (OSError, UnicodeDecodeError):
        raise BackupError("the file of the passphrase cannot be read as text") from None
