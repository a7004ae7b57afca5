"""`medfedvqa kit`: prepares startup kits of FLARE's dashboard, and certificates for sites that keep their keys."""

from pathlib import Path
from typing import Annotated

import typer

from medfedvqa.cli.options import writable
from medfedvqa.cli.terminal import Terminal, sentence


def prepare_command(
    folder: Annotated[Path, typer.Argument(help="A site's or server's startup kit, unpacked.")],
    storage: Annotated[
        Path | None, typer.Option(help="Of a server: its folder for jobs and results. Default: FLARE's, under /tmp.")
    ] = None,
) -> None:
    """Do to a kit from FLARE's dashboard what our builder does in provisioning, before its first start."""
    from medfedvqa.federation.flare.kits import prepare_kit

    console, written = Terminal(), prepare_kit(folder, str(storage.resolve()) if storage else None)
    for path in written:
        console.print(f"written: {sentence(path)}", highlight=False, soft_wrap=True)
    if not written:
        console.print("The kit is prepared already; nothing was changed.")


def root_command(
    project: Annotated[Path, typer.Argument(help="A project's folder as `nvflare provision` made it, with `state`.")],
    out: Annotated[
        Path,
        typer.Option(
            help="The folder to write; must not exist. It holds the root key: keep it safe.", callback=writable
        ),
    ],
) -> None:
    """Write a provisioned project's root certificate and key for `nvflare cert approve`: new sites keep their keys."""
    from medfedvqa.federation.flare.kits import root_folder

    Terminal().print(f"root certificate: {sentence(root_folder(project, out))}", highlight=False, soft_wrap=True)
