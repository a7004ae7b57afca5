"""`medfedvqa data check`: describes the data set in a folder, from its tables and the headers of its files alone."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfedvqa.bounds import PUBLIC_FOLDER, PUBLIC_TABLE
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError, DataError

if TYPE_CHECKING:
    from medfedvqa.data.layouts import SetLayout
    from medfedvqa.data.schema import Row, VQAData

NO_ROW = "no row is read: download the set again"
MOST = 20
"""The most answers, and the most missing pictures, that are shown without --all."""


def check_command(
    root: Annotated[Path, typer.Argument(help="The folder of a data set.", metavar="ROOT")],
    data: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the data set, if the folder fits several.")
    ] = "",
    show_all: Annotated[bool, typer.Option("--all", help="List all missing pictures and all answers.")] = False,
) -> None:
    """Describe the questions, captions or table of patients in a folder, before any training: form, languages, parts,
    missing pictures, questions in two parts, answers.
    """
    from medfedvqa.data.published_files import HAN, other_languages
    from medfedvqa.public_answers import fold

    console = Terminal()
    if (root / PUBLIC_TABLE).is_file():
        _public_set(console, root)
        return
    layout = _layout(root, data)
    data_set = layout.read(root)
    rows, patients = list(data_set.rows), len({row.patient for row in data_set.rows})
    words = f"form: {layout.title}; train with `--data {layout.reader} --data-root {sentence(root)}`"
    console.print(words, soft_wrap=True)
    _counts(console, f"{layout.rows} by part", (row.split for row in rows))
    _counts(console, f"{layout.rows} by site", (row.organ for row in rows))
    if not data_set.features:
        scripts = ("Chinese" if HAN.search(row.question) else "English, or another in letters" for row in rows)
        _counts(console, "languages", scripts)
    if layout.reader == "slake" and (skipped := other_languages(root)):
        console.print(f"not read: {skipped} rows in Chinese", soft_wrap=True)
    pictures = f"pictures: {len({row.image for row in rows})}; patients or pictures as units: {patients}"
    features = f"features: {len(data_set.features)}, {', '.join(map(plain, data_set.features))}; patients: {patients}"
    console.print(features if data_set.features else pictures, soft_wrap=True)
    answers = Counter(fold(row.answer) for row in rows)
    frequent = _listed(answers.most_common(None if show_all else MOST))
    title = "answers" if layout.rows == "questions" else layout.rows
    console.print(f"{title}: {len(answers)} different ones; most frequent: {frequent}", soft_wrap=True)
    for note in (*_repeated(rows), *_dotted(answers)):
        console.print(f"note: {sentence(note)}", soft_wrap=True, highlight=False)
    problems = [*_absent(rows, layout, root, show_all), *_untrained(data_set)] if rows else [NO_ROW]
    for problem in problems:
        console.print(f"[bold red]problem:[/] {sentence(problem)}", soft_wrap=True, highlight=False)
    if problems:
        raise typer.Exit(1)
    console.print("no problem was found")


def _public_set(console: Terminal, root: Path) -> None:
    """Print what a folder of public pictures holds, and how to train with it."""
    from medfedvqa.data.public_sets import read_public

    digest, pairs = read_public(root)
    console.print(f"form: a public set of {len(pairs)} pictures and {len(pairs.questions)} questions", soft_wrap=True)
    console.print(f"train with `-O public={digest}`, and name the folder in ${PUBLIC_FOLDER}", soft_wrap=True)


def _layout(root: Path, data: str) -> "SetLayout":
    from medfedvqa.data import layouts

    if not root.is_dir():
        raise ConfigError(f"there is no folder '{root}': check its spelling")
    fitting = [each for each in layouts.fitting(root) if data in ("", each.reader)]
    if not fitting:
        forms = ", ".join(dict.fromkeys(f"{each.title} ({layouts.marks(each)})" for each in layouts.LAYOUTS))
        raise DataError(f"'{root}' is not a data set in a known form{layouts.hint(root)}. Known forms: {forms}")
    if len(fitting) > 1:
        raise ConfigError(f"'{root}' could be {' or '.join(each.title for each in fitting)}: name one by --data")
    return fitting[0]


def _counts(console: Terminal, title: str, values: Iterable[str]) -> None:
    console.print(f"{title}: {_listed(Counter(values).most_common())}", soft_wrap=True)


def _listed(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{plain(value) or 'none'} {count}" for value, count in counts)


def _absent(rows: "list[Row]", layout: "SetLayout", root: Path, show_all: bool) -> Iterable[str]:
    """A sentence on pictures that are missing, empty or still packed; a run would report one at a time."""
    from medfedvqa.data import layouts

    absent = [] if layout.reader in ("parquet", "table") else list(layouts.absent(rows))
    if not absent:
        return
    names = ", ".join(row.image.relative_to(root).as_posix() for row in absent[: None if show_all else MOST])
    more = "" if show_all or len(absent) <= MOST else ", ... (--all names all)"
    packed = layouts.archives(root)
    unpack = f" {', '.join(packed)} is still packed: unpack it." if packed else ""
    yield f"{len(absent)} pictures are missing or empty:{unpack} {names}{more}"


def _untrained(data: "VQAData") -> Iterable[str]:
    """A sentence on each site with test rows alone."""
    trained = {row.organ for row in data.rows if row.split == "train"}
    for site in dict.fromkeys(row.organ for row in data.rows):
        if site not in trained:
            yield f"the site '{site}' has no rows for training: give it some, or leave the site out"


def _repeated(rows: "list[Row]") -> Iterable[str]:
    """A note on test questions that train or validation rows ask of the same picture: they test nothing."""
    from medfedvqa.public_answers import fold

    trained = {(row.image, fold(row.question)) for row in rows if row.split != "test"}
    repeated = sum((row.image, fold(row.question)) in trained for row in rows if row.split == "test")
    if repeated:
        yield f"{repeated} test questions are asked of the same picture in the other parts: take them out of one"


def _dotted(answers: Iterable[str]) -> Iterable[str]:
    """A note on answers that differ from another one by a final dot alone."""
    classes = set(answers)
    if dotted := [answer for answer in classes if answer.endswith(".") and answer.rstrip(".") in classes]:
        yield f"{len(dotted)} answers differ from another by a final dot alone, and are classes of their own"
