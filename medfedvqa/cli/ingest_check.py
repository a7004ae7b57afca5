"""`medfedvqa ingest check`: what an ingestion would read in a table, before it reads a picture."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from audits.bounded_files import open_plain
from medfedvqa.cli.options import EncodingOption, HiddenOption, OwnOrganOption
from medfedvqa.cli.terminal import Terminal, plain
from medfedvqa.errors import DataError

SHOWN = 20
"""The most entries of a kind that are shown."""


def check(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV, xlsx or JSON, as for `medfedvqa ingest`.")],
    encoding: EncodingOption = None,
    hidden: HiddenOption = "refuse",
    organ: OwnOrganOption = None,
) -> None:
    """Show how a table of questions would be read and all that is refused; it quotes the table, so it stays here."""
    from medfedvqa.ingest.organs import checked_organs
    from medfedvqa.ingest.questions import FILE, read_questions, spellings
    from medfedvqa.ingest.table_finds import TableFinds, TableOptions
    from medfedvqa.ingest.tables import samples

    console, finds = Terminal(), TableFinds(collects=True)
    try:
        read = read_questions(table, checked_organs(organ or ()), TableOptions(encoding, hidden), finds)
    except DataError as error:
        finds.refusals.append(error)
        if not encoding and table.is_file():
            with open_plain(table) as file:
                _show(
                    console,
                    "text in each encoding that fits: choose one",
                    ("--encoding", "text"),
                    samples(file, FILE),
                )
        notes = tuple(finds.notes)
    else:
        console.print(f"{len(read.rows)} rows would be read, as {read.encoding}.")
        classes = ((name, " | ".join(map(repr, texts))) for name, texts in spellings(read.rows).items())
        _show(console, "one answer in several ways", ("class", "written as"), classes)
        notes = read.notes
    changes = ((column, repr(held), repr(kept), str(count)) for (column, held, kept), count in finds.changes.items())
    _show(console, "stored otherwise than it stands in the file", ("column", "file", "stored", "rows"), changes)
    for note in dict.fromkeys(notes):
        console.print(plain(note, 300), soft_wrap=True)
    for refusal in finds.refusals[:SHOWN]:
        console.print(f"refused: {plain(str(refusal), 400)}", soft_wrap=True)
    if finds.refusals:
        raise DataError(f"an ingestion would refuse this table, for {len(finds.refusals)} reasons: mend what is listed")


def _show(console: Terminal, title: str, columns: Iterable[str], entries: Iterable[tuple[str, ...]]) -> None:
    """Print a table of the first entries, if there are any."""
    from rich.table import Table

    listed = list(entries)
    if listed:
        shown = Table(*columns, title=f"{title} ({len(listed)})", title_justify="left")
        for entry in listed[:SHOWN]:
            shown.add_row(*map(plain, entry))
        console.print(shown)
