"""What a table or a figure of a paper is here: what runs, with the paper's figures, or why nothing does."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from medfedvqa.data import Questions
from medfedvqa.research.benchmark.printed import PrintedTable

FACT = "@"
"""Begins the name of what a run is of, in place of an option: its data, backbone, questions, split and sites."""
Drawn = Literal["labels", "samples", "forgotten", "prompts", "similarity", "attention"]


@dataclass(frozen=True)
class PrintedSetting:
    """A setting that a paper prints."""

    option: str
    """The option that sets it, or `FACT` and what it is of; empty where nothing sets it here."""
    value: Any
    """The option's value for it; of a name a part of it."""
    words: str
    printed: str
    """The value as the paper has it."""
    section: str
    instead: Any = None
    """The value that this project's rows have in its place; without an option, what is here instead."""
    methods: tuple[str, ...] = ()
    """The methods whose option it is; empty: all that have it."""


@dataclass(frozen=True)
class Absent:
    """Nothing to run."""

    reason: str


@dataclass(frozen=True)
class Program:
    """A program of the source tree's folder `benchmarks`, with its options; `OUT` stands for the folder of the run."""

    name: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class PaperTable:
    """Systems of the benchmark beside a printed table, whose rows name them."""

    printed: PrintedTable
    budget: Mapping[str, Any] = field(default_factory=dict)
    """Options of all systems, as the paper has them."""
    sites: int = 0
    """How many sites of the phantom set run, which has as many as are wanted; 0: its three."""
    unseen: int = 0
    """How many sites never train: the last ones, and at most every third."""
    first_unseen: bool = False
    """Whether they are the first ones instead, for a table of the same paper with other unseen sites."""
    curve: bool = False
    """Whether accuracy by round is what the paper shows."""


@dataclass(frozen=True)
class Trunks:
    """UniCon's Tables 2 and 3, all trunks in these columns of theirs."""

    columns: tuple[str, ...]
    budget: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """Accuracy by number of sites, which the phantom set alone can have at will."""

    systems: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class PrintedCounts:
    """Rows by site beside the printed numbers: name, training rows, test rows."""

    printed: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class PaperPicture:
    """A picture of each site's rows, or of what a system made of them. It stays on this machine."""

    draws: Drawn
    system: str = ""
    """The label of the system that is trained before; empty for none."""
    budget: Mapping[str, Any] = field(default_factory=dict)


Protocol = Absent | Program | PaperTable | Trunks | Scale | PrintedCounts | PaperPicture


@dataclass(frozen=True)
class PaperEntry:
    """A table, a figure, or a paragraph of a paper."""

    name: str
    """As `table2`, `fig5`; paragraphs and appendices have a word."""
    title: str
    protocol: Protocol
    differs: str = ""
    """What differs from the paper, for an entry that is no table of runs: of these it is computed."""
    data: str = ""
    """The data set that it is about, where it is one that can be had; empty for the command's default."""
    data_root: bool = False
    """Whether nothing runs without a folder of the user's own."""
    questions: Questions = "closed"
    sites: str = "organ"
    """The cut into sites that the entry is about."""
    fractions: tuple[float, float, float] | None = None
    """The split by patient as printed; None: the published one."""
    settings: tuple[PrintedSetting, ...] = ()
    """Those of this entry beside those of the paper."""


@dataclass(frozen=True)
class Paper:
    """A founding paper."""

    name: str
    number: int
    """Its place among the five, from 0."""
    title: str
    entries: tuple[PaperEntry, ...]
    settings: tuple[PrintedSetting, ...] = ()
    """What the paper prints of how it trains."""
