"""`medfedvqa ingest review`: the sheet of what was found in a store's pictures, and the decisions of persons."""

from pathlib import Path
from typing import Annotated

import typer

from medfedvqa.cli.options import QuietOption
from medfedvqa.cli.terminal import Terminal, sentence

_Finds = Annotated[list[str] | None, typer.Option(metavar="ID", help="A find on the sheet; repeatable.")]


def review(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The store; the sheet is made in STORE.review.")],
    keep: _Finds = None,
    blank: _Finds = None,
    quarantine: _Finds = None,
    by: Annotated[str, typer.Option(metavar="NAME", help="Who decides; recorded with the time.")] = "",
    quiet: QuietOption = False,
) -> None:
    """Write the sheet of all finds in a store's pictures, or record what a person decides about them."""
    from medfedvqa.ingest.review import Verdict, decide, write_sheet

    console = Terminal(quiet=quiet)
    verdicts = {Verdict.KEEP: keep or [], Verdict.BLANK: blank or [], Verdict.QUARANTINE: quarantine or []}
    if any(verdicts.values()):
        count = decide(store, by, verdicts)
        console.print(f"Recorded {count}. The next medfedvqa ingest applies what was decided.")
    sheet, finds, flags = write_sheet(store)
    if not finds:
        console.print("Nothing was found in the pictures of this store.")
        return
    console.print(f"{finds} finds, {flags} of them open flags: [bold]{sentence(sheet)}[/]", soft_wrap=True)
    console.print("The sheet shows identifiers of patients: it stays on this site.")
