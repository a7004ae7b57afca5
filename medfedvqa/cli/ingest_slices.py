"""`medfedvqa ingest slices`: the slices of NIfTI volumes that questions name, as pictures for `medfedvqa ingest`."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfedvqa.cli.image_counts import MEMORY, print_counts
from medfedvqa.cli.options import OwnOrganOption, QuietOption, writable
from medfedvqa.cli.terminal import Terminal, sentence
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from medfedvqa.ingest.volume_slices import Window


def slices(
    volumes: Annotated[Path, typer.Argument(metavar="FOLDER", help="NIfTI volumes, .nii or .nii.gz; only read.")],
    questions: Annotated[
        Path, typer.Option(help="The table of questions, whose images are named as PATH.nii.gz@axial-80.png.")
    ],
    into: Annotated[Path, typer.Option(help="The folder that `medfedvqa ingest` will read.", callback=writable)],
    window: Annotated[
        str, typer.Option(metavar="LOW,HIGH", help="The values that become black and white; else of each slice.")
    ] = "",
    organ: OwnOrganOption = None,
    memory: Annotated[int, typer.Option(help="MiB of address space.", min=1024)] = MEMORY,
    quiet: QuietOption = False,
) -> None:
    """Cut the slices that questions name out of NIfTI volumes, as pictures that lie as radiologists look at them."""
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
            SliceOutcome.DAMAGED: "of files that are no NIfTI volume of one moment and one channel, or are damaged",
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
        raise ConfigError("--window takes two numbers with a comma between: -160,240") from None
    return Window(black, white)
