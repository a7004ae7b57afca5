"""`medfedvqa ingest`, its parts `check`, `review` and `withdraw`: a store from images and questions, and its care."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from audits.bounded_files import open_plain
from medfedvqa.cli.options import (
    EncodingOption,
    HiddenOption,
    JsonOption,
    OwnOrganOption,
    QuietOption,
    config_of,
    writable,
)
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.image_options import Options

if TYPE_CHECKING:
    from medfedvqa.ingest.ingest import Watch
    from medfedvqa.ingest.store import Counts

LINE_SECONDS = 60
"""Seconds between two lines about the pace of a stage, without a terminal."""


def ingest(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="DICOM, PNG, JPEG, TIFF, at any depth; only read.")],
    questions: Annotated[
        Path, typer.Option(help="CSV, xlsx or JSON file with the columns image, question, answer, and more.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the store, created or updated.", callback=writable)],
    key: Annotated[
        Path | None,
        typer.Option(help="Key of the pseudonyms, created at first use. Default: OUT.key, beside the store."),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Folder of the ledger that these patients are charged to. Default: OUT.ledger.")
    ] = None,
    organ: OwnOrganOption = None,
    patients: Annotated[
        Path | None,
        typer.Option(help="Table of patients with several numbers; columns: patient, person. It is not stored."),
    ] = None,
    encoding: EncodingOption = None,
    hidden: HiddenOption = "refuse",
    side: Annotated[
        int, typer.Option(help="Largest length of a stored picture's longer side, in pixels.")
    ] = Options.side,
    frames: Annotated[
        str, typer.Option(metavar="all|middle|first|every:N", help="Which frames of a multi-frame file are kept.")
    ] = Options.frames,
    retain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="characteristics|dates",
            help="Keep patient characteristics, or dates shifted by patient; repeatable.",
        ),
    ] = None,
    identifiers: Annotated[
        Literal["leave-out", "replace"],
        typer.Option(help="Leave out a question with an identifier, or replace the identifier."),
    ] = "leave-out",
    unread: Annotated[
        Literal["blank", "flag"], typer.Option(help="Blank illegible marks near the border, or flag them for review.")
    ] = "blank",
    masks: Annotated[
        Path | None, typer.Option(help="Regions to blank for each device model, as a script of CTP's pixel anonymiser.")
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="window=CENTRE,WIDTH|meta=UID|uid=content",
            help="Value to use where a DICOM header lacks it (window.CT=... for one modality); repeatable.",
        ),
    ] = None,
    max_pixels: Annotated[
        int, typer.Option(help="Largest number of pixels (rows times columns) of a file.")
    ] = Options.max_pixels,
    memory: Annotated[int, typer.Option(help="MiB of address space per worker.")] = Options.memory,
    seconds: Annotated[int, typer.Option(help="Time limit for one picture, in seconds.")] = Options.seconds,
    workers: Annotated[int | None, typer.Option(help="Worker processes. Default: one per processor.", min=1)] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """De-identify the images that a file of questions is about, and keep both as a store for `run --data OUT`."""
    from medfedvqa.ingest.device_masks import read_masks
    from medfedvqa.ingest.ingest import ingest as ingest_folder
    from medfedvqa.ingest.ledger_binding import read_binding
    from medfedvqa.ingest.table_finds import TableOptions

    kept, script = tuple(sorted(set(retain or ()))), read_masks(masks) if masks else ""
    assumed = tuple(sorted(set(assume or ())))
    options = Options(side, frames, kept, max_pixels, memory, seconds, identifiers, unread, script, assumed)
    key = key or out.with_name(out.name + ".key")
    progress = Terminal(stderr=True, quiet=quiet)
    with _stage_bars(progress) as watch:
        processes = workers or os.cpu_count() or 1
        table = TableOptions(encoding, hidden)
        notes = list[str]()
        manifest = ingest_folder(
            folder, questions, out, key, options, processes, watch, ledger, organ or (), patients, table, notes
        )
    console = Terminal(quiet=quiet or as_json)
    for note in notes:
        console.print(note, soft_wrap=True)
    if as_json:
        typer.echo(json.dumps(manifest.counts.model_dump(mode="json"), indent=2))
    _show(console, manifest.counts)
    if manifest.counts.nameless:
        console.print(
            f"Of {manifest.counts.nameless} pictures neither header nor table names the patient: text in them and in "
            "their questions was compared with numbers, dates and patterns alone. Give the table a column 'name'.",
            soft_wrap=True,
        )
    if read_binding(out) is None:
        console.print(
            "An earlier version made this store: its first site under differential privacy binds it to that site's "
            "ledger. Give that ledger's folder by --ledger, so that the same patients are recognised elsewhere.",
            soft_wrap=True,
        )
    if not manifest.counts.rows:
        raise DataError("no question could be kept: the store lists the questions left out, with reasons")
    console.print(
        f"The store is [bold]{sentence(out)}[/]; train with: medfedvqa run METHOD --data {sentence(out)}",
        soft_wrap=True,
    )


@contextmanager
def _stage_bars(console: Terminal, seconds: Callable[[], float] = monotonic) -> "Iterator[Watch]":
    """A function that shows the progress of each stage, with its pace: as a bar on a terminal, as a line a minute
    elsewhere. `seconds`: the clock."""
    from rich.progress import MofNCompleteColumn, Progress, TaskID, TimeElapsedColumn

    description, bar, _, time_left = Progress.get_default_columns()
    columns = (description, bar, MofNCompleteColumn(), TimeElapsedColumn(), time_left)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bars: dict[str, TaskID] = {}
        begun: dict[str, float] = {}
        shown: dict[str, float] = {}

        def watch(stage: str, done: int, total: int) -> None:
            now = seconds()
            if stage not in bars:
                bars[stage], begun[stage], shown[stage] = progress.add_task(stage, total=None), now, now
                if not console.is_terminal:
                    console.print(stage)
            pace = _pace(done - 1, total - done, now - begun[stage]) if total else ""
            progress.update(bars[stage], completed=done, total=total or None, description=f"{stage}{pace}")
            if pace and not console.is_terminal and now - shown[stage] >= LINE_SECONDS:
                shown[stage] = now
                console.print(f"{stage}: {done:,} of {total:,}{pace}", soft_wrap=True)

        yield watch


def _pace(done: int, left: int, seconds: float) -> str:
    """The number done per hour and the time left, as the end of a line; empty before one is done."""
    if done < 1 or seconds <= 0:
        return ""
    minutes = round(left * seconds / done / 60)
    return f", {done / seconds * 3600:,.0f} an hour, {minutes // 60}:{minutes % 60:02} hours left"


def _show(console: Terminal, counts: "Counts") -> None:
    """Print counts and reasons, and no names."""
    from rich.table import Table

    table = Table("", "count", "meaning")
    table.add_row("files", str(counts.files), "in the folder")
    pictures = f"{counts.pictures} pictures of {counts.patients} patients"
    table.add_row("stored", str(counts.stored), f"{pictures}; text blanked in {counts.redacted}")
    if counts.flagged:
        table.add_row("flagged", str(counts.flagged), "pictures with marks that nobody could read: review them")
    table.add_row("unasked", str(counts.unasked), "no question is about them: nothing of them is kept")
    for reason, number in counts.quarantined.items():
        table.add_row(f"quarantined: {reason}", str(number), reason.meaning)
    table.add_row("questions", str(counts.rows), f"kept; an identifier replaced in {counts.rows_replaced}")
    for row_reason, number in counts.rows_left_out.items():
        table.add_row(f"left out: {row_reason}", str(number), row_reason.meaning)
    console.print(table)
    console.print("quarantine.jsonl in the store names the files: it stays on this site.")


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
                _show_table(
                    console,
                    "text in each encoding that fits: choose one",
                    ("--encoding", "text"),
                    samples(file, FILE),
                )
        notes = tuple(finds.notes)
    else:
        console.print(f"{len(read.rows)} rows would be read, as {read.encoding}.")
        classes = ((name, " | ".join(map(repr, texts))) for name, texts in spellings(read.rows).items())
        _show_table(console, "one answer in several ways", ("class", "written as"), classes)
        notes = read.notes
    changes = ((column, repr(held), repr(kept), str(count)) for (column, held, kept), count in finds.changes.items())
    _show_table(console, "stored otherwise than it stands in the file", ("column", "file", "stored", "rows"), changes)
    for note in dict.fromkeys(notes):
        console.print(plain(note, 300), soft_wrap=True)
    for refusal in finds.refusals[:SHOWN]:
        console.print(f"refused: {plain(str(refusal), 400)}", soft_wrap=True)
    if finds.refusals:
        raise DataError(f"an ingestion would refuse this table, for {len(finds.refusals)} reasons: see the list")


def _show_table(console: Terminal, title: str, columns: Iterable[str], entries: Iterable[tuple[str, ...]]) -> None:
    """Print a table of the first entries, if there are any."""
    from rich.table import Table

    listed = list(entries)
    if listed:
        shown = Table(*columns, title=f"{title} ({len(listed)})", title_justify="left")
        for entry in listed[:SHOWN]:
            shown.add_row(*map(plain, entry))
        console.print(shown)


_Finds = Annotated[
    list[str] | None, typer.Option(metavar="FIND", help="The id of a mark on the review sheet; repeatable.")
]
_ADDED = re.compile(r"([0-9a-f]{32}):(\d{1,5}),(\d{1,5}),(\d{1,5}),(\d{1,5})")


def review(
    store: Annotated[
        Path, typer.Argument(metavar="STORE", help="The store; the review sheet is written to STORE.review.")
    ],
    keep: _Finds = None,
    blank: _Finds = None,
    quarantine: _Finds = None,
    add: Annotated[
        list[str] | None,
        typer.Option(metavar="PICTURE:LEFT,TOP,RIGHT,BOTTOM", help="A further box to blank; repeatable."),
    ] = None,
    accept: Annotated[
        list[str] | None, typer.Option(metavar="PICTURE|all", help="A picture to accept as it is; repeatable.")
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the person who decides; recorded with the time.")
    ] = "",
    quiet: QuietOption = False,
) -> None:
    """Write the review sheet of a store's pictures and the marks in them, or record a person's decisions."""
    from medfedvqa.ingest.review import ReviewVerdict, decide, write_sheet

    console = Terminal(quiet=quiet)
    verdicts = {
        ReviewVerdict.KEEP: keep or [],
        ReviewVerdict.BLANK: blank or [],
        ReviewVerdict.QUARANTINE: quarantine or [],
    }
    added = [_parsed(text) for text in add or ()]
    if any(verdicts.values()) or added or accept:
        count = decide(store, by, verdicts, added, accept or ())
        console.print(f"Recorded {count}. The next medfedvqa ingest applies the decisions.")
    sheet, finds, flags = write_sheet(store)
    console.print(
        f"{finds} finds in pictures, {flags} with an open flag; the review sheet is [bold]{sentence(sheet)}[/]",
        soft_wrap=True,
    )
    console.print("The sheet shows identifiers of patients: it stays on this site.")


def _parsed(text: str) -> tuple[str, tuple[int, ...]]:
    """The picture's id and the box in a value of `--add`. Raises `ConfigError`."""
    match = _ADDED.fullmatch(text)
    if match is None:
        raise ConfigError("--add must be PICTURE:LEFT,TOP,RIGHT,BOTTOM, with the picture's id from the review sheet")
    return match[1], tuple(map(int, match.groups()[1:]))


REMAINS = (
    "What cannot be undone: models that these jobs trained, and what left the site for them, hold what they learned of "
    "the patient, here and wherever they went; nothing here makes them forget it.",
    "Charges to the privacy budget and entries of the log stay.",
    "What is left to do: delete or train anew the models in the 'state' of the sites; remove the patient from the "
    "folder of images and the table, from other stores, from backups and from caches of features.",
)


class PatientUse(NamedTuple):
    """A job that used, or may have used, a patient."""

    job: str
    site: str
    method: str
    known_from: str
    """`ledger`: the job was charged for this patient. `log`: it ran at a site that held rows of the patient."""
    exported: bool
    """Whether a model of the job was exported from the site."""


def withdraw(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The store to remove the patient from.")],
    patient: Annotated[
        str,
        typer.Option(
            metavar="NUMBER", prompt="Number of the patient", help="The patient's number; without it, the command asks."
        ),
    ],
    key: Annotated[Path | None, typer.Option(help="Key of the pseudonyms. Default: STORE.key.")] = None,
    patients: Annotated[Path | None, typer.Option(help="The table of patients that the store was made with.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="The store's ledger. Default: STORE.ledger.")] = None,
    site: Annotated[
        list[Path] | None, typer.Option(help="The site.yml of a site of this store, to read its log; repeatable.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Remove a patient from a store for good, and say which jobs had used the patient and what cannot be undone."""
    from medfedvqa.ingest.ledger_binding import check_binding, default_ledger
    from medfedvqa.ingest.withdrawal import withdraw as withdraw_patient
    from privacy.ledger_accounts import jobs_on

    folder = ledger or default_ledger(store)
    check_binding(store, folder)
    withdrawn = withdraw_patient(store, patient, key or store.with_name(store.name + ".key"), patients)
    charged = jobs_on(folder, withdrawn.patients)
    uses = {(job.job, job.site): PatientUse(*job, "ledger", False) for job in charged}
    for path in site or ():
        for use, is_private in _logged(path, withdrawn.organs):
            charge = uses.get((use.job, use.site))
            if charge or not is_private:
                uses[use.job, use.site] = (charge or use)._replace(exported=use.exported)
    if as_json:
        counts = {"pictures": withdrawn.pictures, "questions": withdrawn.questions}
        typer.echo(json.dumps({**counts, "jobs": [use._asdict() for use in uses.values()]}, indent=2))
    _show_withdrawn(
        Terminal(quiet=quiet or as_json), withdrawn.pictures, withdrawn.questions, list(uses.values()), bool(site)
    )


def _logged(path: Path, organs: frozenset[str]) -> Iterator[tuple[PatientUse, bool]]:
    """The jobs that opened at a site which held rows of the patient, and whether they ran under differential privacy.

    For those that did, the ledger knows the patients.
    """
    from audits import Event, read
    from audits.log_files import segments
    from medfedvqa.federation import site_status

    config = config_of(path)
    if not segments(config.audit) or config.data.organ not in organs:
        return
    methods, private, exported = dict[str, str](), set[str](), set[str]()
    for entry in read(config.audit):
        if entry.job is None or entry.method == site_status.NAME:
            continue
        if entry.event is Event.OPEN and entry.outcome is None:
            methods[entry.job] = entry.method or ""
        elif entry.event is Event.EXPORTED:
            exported.add(entry.job)
        if entry.dp_event is not None:
            private.add(entry.job)
    for job, method in methods.items():
        yield PatientUse(job, config.name, method, "log", job in exported), job in private


def _show_withdrawn(console: Terminal, pictures: int, questions: int, uses: list[PatientUse], has_logs: bool) -> None:
    from rich.table import Table

    console.print(f"Removed {pictures} pictures and {questions} questions. Later ingestions leave the patient out.")
    if not pictures:
        console.print("The store had no picture of a patient with this number: check it if you expected one.")
    if uses:
        table = Table("job", "site", "method", "how it is known", "a model was exported")
        for use in uses:
            reason = "it was charged for this patient" if use.known_from == "ledger" else "the site held the patient"
            table.add_row(use.job, use.site, use.method, reason, "yes" if use.exported else "no")
        console.print(table)
    else:
        console.print("No job is known to have used the patient.")
    if not has_logs:
        console.print("Only the sites' logs name jobs without differential privacy: pass each site.yml as --site.")
    for text in REMAINS:
        console.print(text, soft_wrap=True)
