"""`medfedvqa kit`: prepares startup kits of FLARE's dashboard, certificates, and files that run a kit as a service."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from medfedvqa.atomic_files import write_whole
from medfedvqa.cli.options import writable
from medfedvqa.cli.terminal import Terminal, sentence
from medfedvqa.errors import ConfigError


def prepare_command(
    folder: Annotated[Path, typer.Argument(help="A site's or server's startup kit, unpacked.")],
    storage: Annotated[
        Path | None, typer.Option(help="For a server: its folder for jobs and results. Default: FLARE's, under /tmp.")
    ] = None,
) -> None:
    """Prepare a kit from FLARE's dashboard as provisioning does, before its first start."""
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


NewFolder = Annotated[Path, typer.Option(help="The folder to write into; existing files stay.", callback=writable)]


def service_command(
    kit: Annotated[Path, typer.Argument(help="The startup kit of a site or a server, in its final place.")],
    out: NewFolder,
    user: Annotated[str, typer.Option(help="The account that owns the kit and runs the party.")] = "medfedvqa",
    prometheus: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For a site: a timer writes its health into FILE each minute.")
    ] = None,
    backup: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For a site: a timer writes a backup into FOLDER each night.")
    ] = None,
    backup_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The age key file that encrypts these backups.")
    ] = None,
) -> None:
    """Write hardened systemd units for a kit, with timers for its health and its backups."""
    from medfedvqa.federation.flare.service_files import service_files

    if (backup is None) != (backup_key is None):
        raise ConfigError("give --backup and --backup-key together: a timer cannot ask for a passphrase")
    backups = (backup.resolve(), backup_key.resolve()) if backup and backup_key else None
    _write(out, service_files(kit, user, prometheus and prometheus.resolve(), backups))


def containers_command(
    kits: Annotated[list[Path], typer.Argument(help="Startup kits of sites and of a server.")],
    out: NewFolder,
    image: Annotated[str, typer.Option(help="The name of the image that the Dockerfile builds.")] = "medfedvqa",
) -> None:
    """Write a Dockerfile, and a compose file with a service for each kit: rootless, with a read-only root."""
    from medfedvqa.federation.flare.service_files import container_files

    _write(out, container_files(kits, image))


def _write(folder: Path, files: Mapping[str, str]) -> None:
    if existing := [name for name in files if (folder / name).exists()]:
        raise ConfigError(f"'{existing[0]}' is there already: choose another folder, or remove it")
    console = Terminal()
    for name, text in files.items():
        path = write_whole(folder / name, text.encode())
        console.print(f"written: {sentence(path)}", highlight=False, soft_wrap=True)
