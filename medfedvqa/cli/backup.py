"""`medfedvqa backup` and `restore`: an encrypted copy of a site, and the site restored from it."""

import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from audits import SecretError, make_secret
from audits.bounded_files import read_bounded
from audits.secrets import read_private
from medfedvqa.cli.audit import Against
from medfedvqa.cli.options import JsonOption, SiteFile, config_of, writable
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import BackupError

if TYPE_CHECKING:
    from medfedvqa.backup.back_up import BackupSecret
    from medfedvqa.backup.restore import Restored

KeyFile = Annotated[
    Path | None, typer.Option("--key", help="The age key file that encrypts; `backup` creates it if it is missing.")
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(help="A file with the passphrase in its first line. Without it and --key, the command asks."),
]
LEAST = 12
"""The fewest characters of a passphrase."""
_MOST = 4096


def secret_of(key: Path | None, passphrase_file: Path | None, new: bool) -> "BackupSecret":
    """The key or the passphrase of a backup. `new`: makes a missing key, and asks for a passphrase twice.

    Raises `BackupError`.
    """
    from medfedvqa.backup.back_up import BackupSecret

    if key is not None and passphrase_file is not None:
        raise BackupError("give --key or --passphrase-file, not both")
    if key is not None:
        return BackupSecret("key", _key(key, new))
    if passphrase_file is None:
        passphrase = str(typer.prompt("Passphrase of the backup", hide_input=True, confirmation_prompt=new, err=True))
    else:
        passphrase = _first_line(passphrase_file)
    if new and len(passphrase) < LEAST:
        raise BackupError(f"the passphrase must have at least {LEAST} characters")
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


def restore(
    backup: Annotated[Path, typer.Argument(help="A file that `medfedvqa backup` wrote.")],
    to: Annotated[
        Path | None,
        typer.Option(metavar="KIT", help="The stopped site's kit, or a new folder with the site's name."),
    ] = None,
    key: KeyFile = None,
    passphrase_file: PassphraseFile = None,
    against: Against = None,
    check: Annotated[bool, typer.Option("--check", help="Only read the whole backup, and list its content.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Restore a site from a backup: what is newer at the site stays, and nothing that was spent comes back."""
    if check == (to is not None):
        raise BackupError("give the folder to restore into by --to, or --check to only read the backup")
    secret = secret_of(key, passphrase_file, new=False)
    if to is not None:
        from medfedvqa.backup.restore import restore as restore_site

        done = restore_site(backup, to, secret, against or ())
        typer.echo(json.dumps(asdict(done), indent=2)) if as_json else _show_restored(done, bool(against))
        return
    from medfedvqa.backup.restore import unpack

    with TemporaryDirectory() as scratch:
        manifest = unpack(backup, secret, Path(scratch) / "site").manifest
    if as_json:
        typer.echo(manifest.model_dump_json(indent=2))
    else:
        text = f"site {plain(manifest.site)} as of {manifest.time}, by version {plain(manifest.version)}"
        counts = f"{manifest.entries} entries of the log, {manifest.records} records of the ledger"
        Terminal().print(f"The backup holds: {text}; {counts}", highlight=False, soft_wrap=True)


def _show_restored(done: "Restored", compared: bool) -> None:
    console = Terminal()
    lines = [f"The backup is of {done.time}: {done.entries} entries of the log."]
    lines += [f"restored: {sentence(name)}" for name in done.placed]
    lines += [f"kept as it is at the site: {sentence(name)}" for name in done.kept]
    lines += [f"closed: job {plain(job)}, whose charges stay" for job in done.closed]
    lines += [f"the ledger took {done.joined} records from the backup"] if done.joined else []
    if "audit" in done.placed and not compared:
        lines.append(
            "What was spent after the backup is in neither log nor ledger. Before the site starts, compare them with "
            "what others hold (`medfedvqa audit verify --against`), and lower max_epsilon by what is missing."
        )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def backup(
    folder: Annotated[
        Path, typer.Argument(help="The folder to write into; the file is named by site and time.", callback=writable)
    ],
    site: SiteFile,
    key: KeyFile = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Write an encrypted backup of a site: its kit, keys, log, ledger and kept models; the site may run."""
    from medfedvqa.backup.back_up import back_up

    config = config_of(site)
    path, manifest = back_up(config, site, folder, secret_of(key, passphrase_file, new=True))
    if as_json:
        typer.echo(json.dumps({"file": str(path), **manifest.model_dump()}, indent=2))
        return
    console = Terminal()
    console.print(f"written: {sentence(path)}", highlight=False, soft_wrap=True)
    console.print(
        f"It holds the site as of {manifest.time}: {manifest.entries} entries of the log, {manifest.records} records "
        "of the ledger. Keep what encrypts it on another machine.",
        highlight=False,
        soft_wrap=True,
    )
