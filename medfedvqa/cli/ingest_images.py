"""`medfedvqa ingest fetch` and `slices`: images from an archive or from NIfTI volumes, for `medfedvqa ingest`."""

import resource
from collections.abc import Callable, Mapping
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from medfedvqa.cli.options import OwnOrganOption, QuietOption, writable
from medfedvqa.cli.terminal import Terminal, sentence
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from collections import Counter

    from medfedvqa.ingest.volume_slices import Window

MEMORY = 3072
"""MiB of address space, so that hostile content without end cannot fill the machine's memory."""
Watch = Callable[[int, int], None]
"""A function that receives the number of images done, and their total."""


Outcome = TypeVar("Outcome", bound=StrEnum)


def print_counts(
    work: "Callable[[Watch], Counter[Outcome]]",
    title: str,
    meanings: Mapping[Outcome, str],
    memory: int,
    quiet: bool,
) -> "Counter[Outcome]":
    """Do the work in at most `memory` MiB of address space, with a bar; print and return the counts of outcomes."""
    from rich.progress import Progress

    resource.setrlimit(resource.RLIMIT_AS, (memory * 2**20, memory * 2**20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    progress, console = Terminal(stderr=True, quiet=quiet), Terminal(quiet=quiet)
    with Progress(console=progress, disable=not progress.is_terminal) as bars:
        bar = bars.add_task(title, total=None)
        outcomes = work(lambda done, total: bars.update(bar, completed=done, total=total))
    for outcome, meaning in meanings.items():
        if outcomes[outcome]:
            console.print(f"{outcomes[outcome]} {meaning}")
    return outcomes


def slices(
    volumes: Annotated[Path, typer.Argument(metavar="FOLDER", help="NIfTI volumes, .nii or .nii.gz; only read.")],
    questions: Annotated[
        Path, typer.Option(help="The table of questions, with images named PATH.nii.gz@axial-80.png.")
    ],
    into: Annotated[Path, typer.Option(help="The folder that `medfedvqa ingest` will read.", callback=writable)],
    window: Annotated[
        str,
        typer.Option(metavar="LOW,HIGH", help="The values that become black and white. Default: those of each slice."),
    ] = "",
    organ: OwnOrganOption = None,
    memory: Annotated[int, typer.Option(help="MiB of address space.", min=1024)] = MEMORY,
    quiet: QuietOption = False,
) -> None:
    """Cut the slices that questions name out of NIfTI volumes, as pictures in radiological orientation."""
    if find_spec("nibabel") is None:
        raise ConfigError("volumes need more packages: pip install 'medfedvqa[ingest]'")
    from medfedvqa.ingest.volume_slices import SliceOutcome, cut_slices

    outcomes = print_counts(
        lambda watch: cut_slices(volumes, questions, into, watch, organ or (), _window(window)),
        "cutting slices",
        {
            SliceOutcome.CUT: "cut",
            SliceOutcome.PRESENT: "in the folder before",
            SliceOutcome.NO_VOLUME: "of volumes that are not in the folder",
            SliceOutcome.NO_SLICE: "beyond the last slice, or of more than 16 million pixels",
            SliceOutcome.NO_ORIENTATION: "of volumes that do not say where left is",
            SliceOutcome.DAMAGED: "of files that are not a NIfTI volume of one moment and one channel, or are damaged",
        },
        memory,
        quiet,
    )
    console = Terminal(quiet=quiet)
    if not outcomes:
        console.print("no question names a slice: name it as PATH.nii.gz@axial-80.png")
    console.print(
        f"Next: medfedvqa ingest {sentence(into)} --questions {sentence(questions)} --out STORE", soft_wrap=True
    )


def _window(text: str) -> "Window | None":
    """The window in a text such as `-160,240`; None if it is empty. Raises `ConfigError` or `DataError`."""
    from medfedvqa.ingest.volume_slices import Window

    if not text:
        return None
    try:
        black, white = map(float, text.split(","))
    except ValueError:
        raise ConfigError("--window takes two numbers separated by a comma: -160,240") from None
    return Window(black, white)


def fetch(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The archive's DICOMweb service, the only address that is contacted.")
    ],
    questions: Annotated[Path, typer.Option(help="The table of questions, which names the images to fetch.")],
    into: Annotated[Path, typer.Option(help="The folder that `medfedvqa ingest` will read.", callback=writable)],
    organ: OwnOrganOption = None,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Allow images to cross the network unencrypted.")
    ] = False,
    login: Annotated[
        Path | None, typer.Option(help="A file that only you may read, with USER:PASSWORD for the archive.")
    ] = None,
    answer_mib: Annotated[int, typer.Option(help="Limit of one answer of the archive, in MiB.", min=1)] = 256,
    answer_seconds: Annotated[float, typer.Option(help="Time limit of one whole answer, in seconds.", min=1)] = 300,
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
