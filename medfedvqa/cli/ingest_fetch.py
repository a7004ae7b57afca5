"""`medfedvqa ingest fetch`: fetches the images that questions name from an archive, for `medfedvqa ingest`."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from medfedvqa.cli.image_counts import MEMORY, print_counts
from medfedvqa.cli.options import OwnOrganOption, QuietOption, writable
from medfedvqa.cli.terminal import Terminal, sentence
from medfedvqa.errors import ConfigError


def fetch(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The archive's DICOMweb service, the only address that is asked.")
    ],
    questions: Annotated[Path, typer.Option(help="The table of questions: which images are fetched.")],
    into: Annotated[Path, typer.Option(help="The folder that `medfedvqa ingest` will read.", callback=writable)],
    organ: OwnOrganOption = None,
    plain_http: Annotated[bool, typer.Option("--plain-http", help="Let images cross the network in clear.")] = False,
    login: Annotated[
        Path | None, typer.Option(help="A file that only you may read, with USER:PASSWORD for the archive.")
    ] = None,
    answer_mib: Annotated[int, typer.Option(help="MiB of one answer of the archive, at most.", min=1)] = 256,
    answer_seconds: Annotated[float, typer.Option(help="Seconds for one whole answer, at most.", min=1)] = 300,
    memory: Annotated[int, typer.Option(help="MiB of address space.", min=1024)] = MEMORY,
    quiet: QuietOption = False,
) -> None:
    """Fetch the images that questions name by SOP instance UID or accession number from an archive with DICOMweb."""
    if find_spec("dicomweb_client") is None:
        raise ConfigError("fetching needs more packages: pip install 'medfedvqa[ingest]'")
    from medfedvqa.dicomweb import FetchOutcome
    from medfedvqa.dicomweb import fetch as fetch_images
    from medfedvqa.guarded_http import AnswerLimits

    limits = AnswerLimits(answer_mib << 20, answer_seconds)
    print_counts(
        lambda watch: fetch_images(url, questions, into, watch, organ or (), plain_http, login, limits),
        "fetching images",
        {
            FetchOutcome.FETCHED: "fetched",
            FetchOutcome.PRESENT: "in the folder before",
            FetchOutcome.NONE: "names of no image in the archive",
            FetchOutcome.SEVERAL: "names of several images",
            FetchOutcome.DAMAGED: "images that the archive sent damaged, or in the place of others",
        },
        memory,
        quiet,
    )
    Terminal(quiet=quiet).print(
        f"The folder {sentence(into)} holds names of patients. Next: medfedvqa ingest {sentence(into)} --questions "
        f"{sentence(questions)} --out STORE",
        soft_wrap=True,
    )
