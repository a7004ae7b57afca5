"""`medfedvqa ingest review`: the sheet of a store's pictures, and the decisions of persons."""

import re
from pathlib import Path
from typing import Annotated

import typer

from medfedvqa.cli.options import QuietOption
from medfedvqa.cli.terminal import Terminal, sentence
from medfedvqa.errors import ConfigError

_Finds = Annotated[list[str] | None, typer.Option(metavar="FIND", help="A find on the sheet; repeatable.")]
_ADDED = re.compile(r"([0-9a-f]{32}):(\d{1,5}),(\d{1,5}),(\d{1,5}),(\d{1,5})")


def review(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The store; the sheet is made in STORE.review.")],
    keep: _Finds = None,
    blank: _Finds = None,
    quarantine: _Finds = None,
    add: Annotated[
        list[str] | None,
        typer.Option(metavar="PICTURE:LEFT,TOP,RIGHT,BOTTOM", help="A box to blank besides; repeatable."),
    ] = None,
    accept: Annotated[
        list[str] | None, typer.Option(metavar="PICTURE|all", help="A picture that is as it should be; repeatable.")
    ] = None,
    by: Annotated[str, typer.Option(metavar="NAME", help="Who decides; recorded with the time.")] = "",
    quiet: QuietOption = False,
) -> None:
    """Write the sheet of a store's pictures and finds, or record what a person decides about them."""
    from medfedvqa.ingest.review import ReviewVerdict, decide
    from medfedvqa.ingest.review_sheet import write_sheet

    console = Terminal(quiet=quiet)
    verdicts = {
        ReviewVerdict.KEEP: keep or [],
        ReviewVerdict.BLANK: blank or [],
        ReviewVerdict.QUARANTINE: quarantine or [],
    }
    added = [_parsed(text) for text in add or ()]
    if any(verdicts.values()) or added or accept:
        count = decide(store, by, verdicts, added, accept or ())
        console.print(f"Recorded {count}. The next medfedvqa ingest applies what was decided.")
    sheet, finds, flags = write_sheet(store)
    console.print(f"{finds} finds, {flags} of them open flags: [bold]{sentence(sheet)}[/]", soft_wrap=True)
    console.print("The sheet shows identifiers of patients: it stays on this site.")


def _parsed(text: str) -> tuple[str, tuple[int, ...]]:
    """The picture's id and the box in a value of `--add`. Raises `ConfigError`."""
    match = _ADDED.fullmatch(text)
    if match is None:
        raise ConfigError("--add is PICTURE:LEFT,TOP,RIGHT,BOTTOM, with the picture's id as the sheet has it")
    return match[1], tuple(map(int, match.groups()[1:]))
