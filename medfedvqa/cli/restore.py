"""`medfedvqa restore`: restores a site from a backup, or only reads the backup."""

import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from medfedvqa.cli.audit_options import Against
from medfedvqa.cli.backup_secret import KeyFile, PassphraseFile, secret_of
from medfedvqa.cli.options import JsonOption
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import BackupError

if TYPE_CHECKING:
    from medfedvqa.backup.restore import Restored


def restore(
    backup: Annotated[Path, typer.Argument(help="A file that `medfedvqa backup` wrote.")],
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="KIT", help="The site's kit, or a new folder that has the site's name. The site is stopped."
        ),
    ] = None,
    key: KeyFile = None,
    passphrase_file: PassphraseFile = None,
    against: Against = None,
    check: Annotated[bool, typer.Option("--check", help="Only read the whole backup, and say what it holds.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Restore a site from a backup: what is newer at the site stays, and nothing that was spent comes back."""
    if check == (to is not None):
        raise BackupError("say where to restore by --to, or give --check to only read the backup")
    secret = secret_of(key, passphrase_file, new=False)
    if to is not None:
        from medfedvqa.backup.restore import restore as restore_site

        done = restore_site(backup, to, secret, against or ())
        typer.echo(json.dumps(asdict(done), indent=2)) if as_json else _show(done, bool(against))
        return
    from medfedvqa.backup.unpacking import unpack

    with TemporaryDirectory() as scratch:
        manifest = unpack(backup, secret, Path(scratch) / "site").manifest
    if as_json:
        typer.echo(manifest.model_dump_json(indent=2))
    else:
        text = f"site {plain(manifest.site)} as of {manifest.time}, by version {plain(manifest.version)}"
        counts = f"{manifest.entries} entries of the log, {manifest.records} records of the ledger"
        Terminal().print(f"The backup holds: {text}; {counts}", highlight=False, soft_wrap=True)


def _show(done: "Restored", compared: bool) -> None:
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
