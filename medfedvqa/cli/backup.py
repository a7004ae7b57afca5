"""`medfedvqa backup`: an encrypted copy of a site."""

import json
from pathlib import Path
from typing import Annotated

import typer

from medfedvqa.cli.backup_secret import KeyFile, PassphraseFile, secret_of
from medfedvqa.cli.options import JsonOption, writable
from medfedvqa.cli.sites import SiteFile, config_of
from medfedvqa.cli.terminal import Terminal, sentence


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
