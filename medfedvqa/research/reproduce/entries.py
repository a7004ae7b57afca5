"""Descriptions of how a paper's tables and figures are reproduced: what runs, or why nothing does."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from medfedvqa.data import Questions
from medfedvqa.research.benchmark.printed import PrintedTable

FACT = "@"
"""The prefix for properties of a run that are not options: data, backbone, questions, split or sites."""
Drawn = Literal["labels", "samples", "forgotten", "prompts", "similarity", "attention"]


@dataclass(frozen=True)
class PrintedSetting:
    """A setting that a paper prints."""

    option: str
    """The option that sets it; `FACT` and the name of a property, or of an option that `--as-printed` does not set;
    empty if nothing here corresponds to it."""
    value: Any
    """The option's value that matches the paper; for a property that is text, a part of the text suffices."""
    words: str
    printed: str
    """The value as the paper has it."""
    section: str
    instead: Any = None
    """The value that this project's rows have instead; without an option, a description of what is here."""
    methods: tuple[str, ...] = ()
    """The methods that the setting applies to; empty: all with the option."""


@dataclass(frozen=True)
class Absent:
    """Stands for an entry that nothing runs, and says why."""

    reason: str


@dataclass(frozen=True)
class Program:
    """A program of the source tree's folder `benchmarks`, with its options; `OUT` stands for the folder of the run."""

    name: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class PaperTable:
    """Systems of the benchmark beside a printed table. The table's rows name the systems."""

    printed: PrintedTable
    budget: Mapping[str, Any] = field(default_factory=dict)
    """Options of all systems, as the paper has them."""
    sites: int = 0
    """The number of sites of the phantom set, which can have any number; 0: its own three."""
    unseen: int = 0
    """The number of sites that never train: the last ones, at most a third of all, or one."""
    first_unseen: bool = False
    """Whether the first sites never train instead, for a table of the same paper with other unseen sites."""
    curve: bool = False
    """Whether the paper shows accuracy by round."""


@dataclass(frozen=True)
class Trunks:
    """UniCon's Tables 2 and 3: all trunks, in these columns."""

    columns: tuple[str, ...]
    budget: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """Accuracy by number of sites. Only the phantom set can have any number of them."""

    systems: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class PrintedCounts:
    """Rows by site beside the printed numbers: name, training rows, test rows."""

    printed: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class PaperPicture:
    """A figure that shows each site's rows, or a system's results on them. It stays on this machine."""

    draws: Drawn
    system: str = ""
    """The label of the system that is trained first; empty for none."""
    budget: Mapping[str, Any] = field(default_factory=dict)


Protocol = Absent | Program | PaperTable | Trunks | Scale | PrintedCounts | PaperPicture


@dataclass(frozen=True)
class PaperEntry:
    """A table, a figure, or a paragraph of a paper."""

    name: str
    """Such as `table2` or `fig5`; a word for a paragraph or an appendix."""
    title: str
    protocol: Protocol
    differs: str = ""
    """How it differs from the paper; empty for a table of runs, where this is computed."""
    data: str = ""
    """Its data set, if that is available; empty for the command's default."""
    data_root: bool = False
    """Whether it runs only with a data folder that the user gives."""
    questions: Questions = "closed"
    sites: str = "organ"
    """The cut into sites that the entry is about."""
    fractions: tuple[float, float, float] | None = None
    """The split by patient as printed; None: the published one."""
    settings: tuple[PrintedSetting, ...] = ()
    """Settings of this entry, besides those of the paper."""


@dataclass(frozen=True)
class Paper:
    """A founding paper."""

    name: str
    number: int
    """Its place among the five, from 0."""
    title: str
    entries: tuple[PaperEntry, ...]
    settings: tuple[PrintedSetting, ...] = ()
    """The training settings that the paper prints."""
