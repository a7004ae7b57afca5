"""The figures of a report: each is a row with an id, a unit, a source and a value. `figures.txt` lists all of them.

A line of the list is `id | unit | source | label`. In an id, `*` stands for the positions of a list. `?` after a name
or a unit: the value may be null. `~` after a name: reports of earlier versions may lack it. `[]` after a unit: a list
of scalars. A unit with slashes is a closed vocabulary. Lines that begin with a sign, and ids that begin with
`evidence`, tell `medfedvqa.report` how the pages are laid out.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, Final

from audits.escaping import NAME, bounded
from privacy.report.facts import NewerReport, ReportError
from privacy.report.replay import same
from privacy.report.report_evidence import ReportEvidence

Scalar = str | int | float | bool | None
Value = Scalar | tuple[Scalar, ...]
Rows = Mapping[str, Value]

FLOATS = frozenset(("epsilon", "least epsilon", "delta", "mu", "share", "number", "norm", "limit"))
TEXTS = frozenset(("name", "code", "time", "sha256", "sent sha256", "words", "letters"))
SUPPORT = "supports/partly supports/not provided"
WORDING = frozenset(("words", "letters", SUPPORT))
"""Units of rows that change from one version to the next. No figure depends on them, and nobody parses them."""
RANGES = {"summary.wrongly": (0.01, 0.5), "summary.most_counted": (1, 100)}
"""Bounds of the two parameters that a version chooses. They belong to the format: the pages would round away a share of
accused people below one in 100, and a longer count would keep a verifier busy."""
_COLUMNS = ("id", "unit", "source", "label")
_SIGNS = re.compile(r"[?~]")
_POSITION = re.compile(r"(?<=\.)\d+(?=\.|$)", re.ASCII)
NEWER = "the report was written by a newer version of this software: use that version"


@dataclass(frozen=True)
class Figure:
    """One line of `figures.txt`: the id, unit, source and label of a figure."""

    id: str
    section: str
    unit: str
    source: str
    label: str
    nullable: bool
    many: bool

    @classmethod
    def parse(cls, line: str, section: str) -> "Figure":
        path, unit, source, label = line.split(" | ")
        kind = unit.removesuffix("?").removesuffix("[]")
        nullable = unit.endswith("?") or "?" in path
        return cls(_SIGNS.sub("", path), section, kind, source, label, nullable, "[]" in unit)

    @property
    def wording(self) -> bool:
        return self.unit in WORDING

    def check(self, value: object, where: str) -> Value:
        """The value, a list as a tuple. Raises `ReportError` if it does not fit, `NewerReport` for an unknown word."""
        if value is None and self.nullable:
            return None
        if self.many and not isinstance(value, list | tuple):
            raise ReportError(f"row '{where}' has no list")
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        for item in values:
            self._check(item, where)
        return values if self.many else values[0]

    def _check(self, item: object, where: str) -> None:
        if item is None and self.nullable and self.many:
            return
        closed = "/" in self.unit
        kind = str if closed or self.unit in TEXTS else float if self.unit in FLOATS else int
        if type(item) is not (bool if self.unit.endswith("yes or no") else kind):
            raise ReportError(f"row '{where}' has a value of another type than {self.unit}")
        if closed and item not in self.unit.split("/"):
            raise NewerReport(f"row '{where}' has an unknown word: {NEWER}")
        low, high = RANGES.get(self.id, (item, item))
        if not low <= item <= high:  # type: ignore[operator]
            raise ReportError(f"row '{where}' is not in the range from {low} to {high}")


@dataclass
class Node:
    """A part of a report: a figure, or parts by name; with `many`, a list of such parts."""

    figure: Figure | None = None
    parts: dict[str, "Node"] = field(default_factory=dict)
    many: bool = False
    nullable: bool = False
    optional: bool = False
    """Whether reports of earlier versions may lack it."""


class Listing:
    """A list of figures, from a file of this folder."""

    def __init__(self, name: str) -> None:
        self.lines = files(__package__).joinpath(name).read_text("utf-8").splitlines()
        self.tree = Node()
        self.figures: dict[str, Figure] = {}
        section = ""
        for line in self.lines:
            if line.startswith("# "):
                section = line.split(" ")[1]
            elif line.count(" | ") == len(_COLUMNS) - 1 and not line.startswith(("evidence.", "*", "%", "-")):
                self._add(line.partition(" | ")[0], Figure.parse(line, section))

    def _add(self, path: str, figure: Figure) -> None:
        node = self.tree
        for step in path.split("."):
            if step == "*":
                node.many = True
                continue
            node = node.parts.setdefault(_SIGNS.sub("", step), Node())
            node.nullable |= "?" in step
            node.optional |= "~" in step
        node.figure = node.figure or figure
        self.figures.setdefault(figure.id, figure)

    def figure_of(self, row: str) -> Figure | None:
        """The figure with a row's id; None if this version has none."""
        return self.figures.get(_POSITION.sub("*", row))


REPORT, JOINED = Listing("figures.txt"), Listing("joined.txt")
FIGURES = REPORT.figures
"""All figures of a report, by id."""
figure_of = REPORT.figure_of


def rows_of_tree(content: object, lacks: list[str] | None = None, listing: Listing = REPORT) -> dict[str, Value]:
    """The rows of nested values, such as `{"claim": {"epsilon": 1.0}}`, in the order of the list.

    `lacks` collects the names of absent parts that reports of earlier versions may lack; without it all parts are
    required. Raises `ReportError`, which names the missing or wrong part, or `NewerReport` for an unknown part.
    """
    return dict(_rows(listing.tree, content, "", lacks))


def _rows(node: Node, content: Any, where: str, lacks: list[str] | None) -> Iterator[tuple[str, Value]]:
    if node.figure:
        yield where, node.figure.check(content, where)
    elif node.many:
        if not isinstance(content, list | tuple):
            raise ReportError(f"part '{where}' has no list")
        for place, item in enumerate(content):
            yield from _members(node, item, f"{where}.{place}", lacks)
    elif content is None and node.nullable:
        yield from _members(node, dict.fromkeys(node.parts), where, lacks)
    else:
        yield from _members(node, content, where, lacks)


def _members(node: Node, content: Any, where: str, lacks: list[str] | None) -> Iterator[tuple[str, Value]]:
    members = content._asdict() if hasattr(content, "_asdict") else content
    if not isinstance(members, dict):
        raise ReportError(f"part '{where}' has no members")
    if unknown := [name for name in members if name not in node.parts]:
        raise NewerReport(f"row '{bounded(f'{where}.{unknown[0]}'.lstrip('.'), NAME)}' is unknown: {NEWER}")
    for name, part in node.parts.items():
        place = f"{where}.{name}".lstrip(".")
        if name in members:
            yield from _rows(part, members[name], place, lacks)
        elif part.optional and lacks is not None:
            lacks.append(place)
        else:
            raise ReportError(f"row '{place}' is missing")


def tree_of_rows(rows: Rows, listing: Listing = REPORT) -> dict[str, Any]:
    """The inverse of `rows_of_tree`: nested values, with lists where a report has lists."""
    root: dict[str, Any] = {}
    for row, value in rows.items():
        *steps, last = row.split(".")
        place = root
        for step in steps:
            place = place.setdefault(step, {})
        place[last] = value
    tree: dict[str, Any] = _with_lists(listing.tree, root)
    return tree


def _with_lists(node: Node, content: Any) -> Any:
    if node.figure or not isinstance(content, dict):
        return content
    if node.many:
        items = [content.get(str(place)) for place in range(len(content))]
        return [_with_lists(Node(parts=node.parts), item) for item in items]
    empty: dict[str, Any] = {name: [] for name, part in node.parts.items() if part.many and not part.figure}
    return empty | {name: _with_lists(node.parts[name], part) for name, part in content.items()}


def view(rows: Rows, listing: Listing = REPORT) -> SimpleNamespace:
    """The rows by their names, such as `view(rows).claim.epsilon`; None where an earlier version wrote none."""
    view: SimpleNamespace = _view(listing.tree, tree_of_rows(rows, listing))
    return view


def _view(node: Node, content: Any) -> Any:
    if node.figure:
        return content
    if node.many:
        return tuple(_view(Node(parts=node.parts), item) for item in content or ())
    members = {name: _view(part, (content or {}).get(name)) for name, part in node.parts.items()}
    empty = node.nullable and all(member is None for member in members.values())
    return None if empty else SimpleNamespace(**members)


def read_rows(content: object) -> dict[str, Value]:
    """The rows in a report's file, each once and in order. Raises `ReportError`, `NewerReport` for an unknown row."""
    if not isinstance(content, list):
        raise ReportError("the report has no list of rows")
    rows: dict[str, Value] = {}
    for row in content:
        if not isinstance(row, dict) or row.keys() != {"id", "section", "unit", "source", "value"}:
            raise ReportError("a row has other members than id, section, unit, source and value")
        where = bounded(str(row["id"]), NAME)
        figure = figure_of(str(row["id"]))
        if figure is None:
            raise NewerReport(f"row '{where}' is unknown: {NEWER}")
        if row["id"] in rows:
            raise ReportError(f"row '{where}' appears twice")
        for name in ("section", "unit", "source"):
            if row[name] != getattr(figure, name):
                raise ReportError(f"row '{where}' has another {name} than '{getattr(figure, name)}'")
        rows[row["id"]] = figure.check(row["value"], where)
    expected = rows_of_tree(tree_of_rows(rows))
    for row, place in zip(rows, expected, strict=False):
        if row != place:
            raise ReportError(f"row '{bounded(row, NAME)}' is in the place of '{place}'")
    if len(rows) != len(expected):
        raise ReportError("the report has rows that belong to no list")
    return rows


def written(rows: Rows) -> list[dict[str, Any]]:
    """The rows in the form of a report's file."""
    return [
        {"id": row, "section": figure.section, "unit": figure.unit, "source": figure.source, "value": value}
        for row, value in rows.items()
        if (figure := figure_of(row))
    ]


def differences(
    rows: Rows, fresh: Rows, lacks: tuple[str, ...] = (), words: bool = False, listing: Listing = REPORT
) -> Iterator[str]:
    """Rows that differ from the recomputed ones: missing, additional, or with another value.

    Floats may differ as in `same_value`. `lacks`: parts that a report of an earlier version does not have. Wording is
    compared only if `words` is true.
    """
    absent = tuple(f"{part}." for part in lacks)
    for row in {**rows, **fresh}:
        figure = listing.figure_of(row)
        if figure is None or (figure.wording and not words) or (row not in rows and f"{row}.".startswith(absent)):
            continue
        if row not in rows or row not in fresh or not same_value(rows[row], fresh[row]):
            yield row


def same_value(first: object, second: object) -> bool:
    """Whether two values are equal; floats up to the last digits, in which machines may differ."""
    if type(first) is not type(second):
        return False
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(same_value, first, second))
    return same(first, second) if isinstance(first, float) and isinstance(second, float) else first == second


FORMAT: Final = "medfedvqa.privacy-report/2"
FORMER: Final = "medfedvqa.privacy-report/1"
Sections = SimpleNamespace
"""Rows by their names, such as `sections.claim.epsilon`."""


@dataclass(frozen=True)
class Report:
    """One site's report on one job."""

    rows: Rows
    """Values by the ids of their rows, such as `claim.epsilon`."""
    evidence: ReportEvidence
    format: str = FORMAT
    lacks: tuple[str, ...] = ()
    """The parts that a report of an earlier format lacks, by the beginnings of their ids."""

    @cached_property
    def sections(self) -> Sections:
        """The rows by their names."""
        return view(self.rows)

    def changed(self, values: dict[str, Value]) -> "Report":
        """The report with other values in some of its rows."""
        return replace(self, rows={**self.rows, **values})
