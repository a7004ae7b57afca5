"""`medfedvqa ingest fetch`: fetches the images that questions name from an archive, for `medfedvqa ingest`."""

import resource
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from medfedvqa.cli.options import QuietOption, writable
from medfedvqa.cli.terminal import Terminal, sentence
from medfedvqa.errors import ConfigError

MEMORY = 3072
"""MiB of address space, so that an answer without end cannot fill the machine's memory."""


def fetch(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The archive's DICOMweb service; the login is in ~/.netrc.")
    ],
    questions: Annotated[Path, typer.Option(help="The table of questions: which images are fetched.")],
    into: Annotated[Path, typer.Option(help="The folder that `medfedvqa ingest` will read.", callback=writable)],
    organ: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An organ of your own that questions name; repeatable.")
    ] = None,
    plain_http: Annotated[bool, typer.Option("--plain-http", help="Let images cross the network in clear.")] = False,
    memory: Annotated[int, typer.Option(help="MiB of address space.", min=1024)] = MEMORY,
    quiet: QuietOption = False,
) -> None:
    """Fetch the images that questions name by SOP instance UID or accession number from an archive with DICOMweb."""
    from rich.progress import Progress

    if find_spec("dicomweb_client") is None:
        raise ConfigError("fetching needs more packages: pip install 'medfedvqa[ingest]'")
    from medfedvqa.dicomweb import Outcome
    from medfedvqa.dicomweb import fetch as fetch_images

    resource.setrlimit(resource.RLIMIT_AS, (memory * 2**20, memory * 2**20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    progress, console = Terminal(stderr=True, quiet=quiet), Terminal(quiet=quiet)
    with Progress(console=progress, disable=not progress.is_terminal) as bars:
        bar = bars.add_task("fetching images", total=None)
        outcomes = fetch_images(
            url,
            questions,
            into,
            lambda done, total: bars.update(bar, completed=done, total=total),
            organ or (),
            plain_http,
        )
    meanings = {
        Outcome.FETCHED: "fetched",
        Outcome.PRESENT: "in the folder before",
        Outcome.NONE: "names of no image in the archive",
        Outcome.SEVERAL: "names of several images",
        Outcome.DAMAGED: "images that the archive sent damaged, or in the place of others",
    }
    for outcome, meaning in meanings.items():
        if outcomes[outcome]:
            console.print(f"{outcomes[outcome]} {meaning}")
    console.print(
        f"The folder {sentence(into)} holds names of patients. Next: medfedvqa ingest {sentence(into)} --questions "
        f"{sentence(questions)} --out STORE",
        soft_wrap=True,
    )
