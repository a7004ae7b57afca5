"""Rows by site beside the numbers that a paper prints."""

from collections.abc import Mapping
from itertools import zip_longest

from audits.escaping import NAME, for_markdown
from medfedvqa.data import SiteData
from medfedvqa.research.benchmark.benchmark_table import ABSENT, table
from medfedvqa.research.reproduce.entries import PaperEntry, PrintedCounts

HEAD = ["paper's site", "training (paper)", "test (paper)", "site here", "training", "validation", "test"]


def page(entry: PaperEntry, protocol: PrintedCounts, data: Mapping[str, SiteData]) -> str:
    """The page in Markdown. It pairs the paper's sites with those here by position only: they are different sites."""
    rows = []
    for printed, site in zip_longest(protocol.printed, data):
        there = [printed[0], *(f"{count:,}" for count in printed[1:])] if printed else [ABSENT] * 3
        here = [ABSENT] * 4
        if site is not None:
            here = [for_markdown(site, NAME), *(f"{len(part):,}" for part in data[site].parts)]
        rows.append([*there, *here])
    return f"# {entry.title.capitalize()}\n\n{table(HEAD, rows)}\n\nWhat differs: {entry.differs}.\n"
