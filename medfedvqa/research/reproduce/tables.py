"""Runs of the benchmark beside a paper's tables: selects their systems and sites, and writes the page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from audits.escaping import for_markdown
from medfedvqa.data import phantom
from medfedvqa.data.data_roots import PHANTOM
from medfedvqa.errors import ConfigError
from medfedvqa.federation.serve import check_sites
from medfedvqa.models import load_backbone
from medfedvqa.near_miss import check_name
from medfedvqa.research.benchmark.benchmark_table import (
    beside_printed,
    listed,
    server_models,
    settings_and_systems,
    table,
)
from medfedvqa.research.benchmark.grid import Grid
from medfedvqa.research.benchmark.printed import PrintedTable
from medfedvqa.research.benchmark.statistics import Comparison
from medfedvqa.research.benchmark.systems import BUDGET, TRUNKS
from medfedvqa.research.benchmark.trunk_table import HEAD, SPLIT, beside_tables_2_and_3, tests
from medfedvqa.research.reproduce.entries import PaperEntry, PaperPicture, PaperTable, Protocol, Scale, Trunks
from medfedvqa.research.reproduce.printed_settings import Difference, Settings, common, differences, sentences

UNTRAINED = "bag of words"
"""A placeholder for entries without a system: it determines which data are read, and is not run."""


def labels_of(protocol: Protocol, rows: str = "") -> list[str]:
    """The systems of an entry. `rows` lists printed names or numbers from 1, separated by commas; empty: all.

    The rows of UniCon's tables are trunks. Raises `ConfigError` for other names, also where there are no rows.
    """
    by_row: dict[str, list[str]] = {}
    if isinstance(protocol, PaperTable):
        by_row = {row.name: [row.label] for row in protocol.printed.rows if row.label}
    elif isinstance(protocol, Trunks):
        by_row = {trunk: [f"{column} {trunk}" for column in protocol.columns] for trunk in TRUNKS}
    elif isinstance(protocol, Scale):
        by_row = {label: [label] for label in protocol.systems}
    elif isinstance(protocol, PaperPicture) and protocol.system:
        by_row = {protocol.system: [protocol.system]}
    chosen = _chosen(rows, list(by_row)) if rows.strip() else by_row
    return list(dict.fromkeys(label for row in chosen for label in by_row[row])) or [UNTRAINED]


def _chosen(text: str, names: Sequence[str]) -> list[str]:
    """The names in a text, separated by commas; a name may itself have commas. Raises `ConfigError`."""
    parts, chosen = text.split(","), []
    while parts:
        lengths = [count for count in range(len(parts), 0, -1) if ",".join(parts[:count]).strip() in names]
        name, length = parts[0].strip(), lengths[0] if lengths else 1
        if lengths:
            name = ",".join(parts[:length]).strip()
        elif name.isdecimal() and 1 <= int(name) <= len(names):
            name = names[int(name) - 1]
        rows = "; ".join(f"{number} {row}" for number, row in enumerate(names, 1))
        check_name("row", name, names, f"its rows are {rows or 'none'}", " of this table")
        if name in chosen:
            raise ConfigError(f"the row '{name}' is named twice in --rows: name it once")
        chosen.append(name)
        parts = parts[length:]
    return chosen


def on_backbone(printed: PrintedTable, backbone: str) -> PrintedTable:
    """The table with systems only in rows of the run's backbone; the other rows name the backbone they need."""
    named = {row.backbone for row in printed.rows}
    architecture = backbone.partition("@")[0]
    chosen = architecture if architecture in named else ""
    rows = tuple(
        row
        if row.backbone == chosen or not row.label
        else replace(row, label="", differs=f"a run of its own: --backbone {row.backbone or 'vilt-b32'}@LABEL")
        for row in printed.rows
    )
    return replace(printed, rows=rows)


def with_differences(printed: PrintedTable, by_row: Mapping[str, Sequence[Difference]]) -> PrintedTable:
    """The table with each row's own differences from the paper, besides those that all rows have."""
    alike = common(by_row)
    rows = tuple(
        replace(row, differs="; ".join(filter(None, (row.differs, *(str(d) for d in own if d not in alike)))))
        for row in printed.rows
        for own in [by_row.get(row.label, ())]
    )
    return replace(printed, rows=rows)


def with_budget(grid: Grid, protocol: Protocol, changes: Mapping[str, Any]) -> Grid:
    """The grid with the paper's budget, unless `changes` sets another. `decay_every` in it replaces `decay_after`."""
    own = {
        name: value
        for name, value in getattr(protocol, "budget", {}).items()
        if name != "decay_after" or "decay_every" not in changes
    }
    return replace(grid, budget={**BUDGET, **own, **changes})


def on_paper_s_sites(grid: Grid, protocol: Protocol, printed: bool = False) -> Grid:
    """The grid with the paper's numbers of sites and of unseen sites, as far as the data allow them.

    `printed`: of a set with more sites than the paper, only the first ones take part.
    """
    if not isinstance(protocol, PaperTable):
        return grid
    if protocol.sites and grid.reader == PHANTOM:
        grid = replace(grid, organs=phantom.organs(protocol.sites))
    elif protocol.sites and printed:
        grid = replace(grid, organs=grid.organs[: protocol.sites])
    unseen = min(protocol.unseen, max(1, len(grid.organs) // 3)) if protocol.unseen else 0
    begin = 0 if protocol.first_unseen else len(grid.organs) - unseen
    return replace(grid, regime=replace(grid.regime, unseen=grid.organs[begin : begin + unseen]))


def runnable(grid: Grid) -> tuple[Grid, list[str]]:
    """The grid with the systems that its sites and backbone allow, and a remark on each of the others.

    Raises `ConfigError` if none is left, or `BackboneError`.
    """
    kept, remarks = [], []
    for system in grid.systems:
        try:
            job = grid.job(system, 0)
            check_sites(job, 1 if system.centralised else len(grid.sites))
            job.build().exchange(load_backbone(job.backbone, grid.files).shape)
            kept.append(system)
        except ConfigError as error:
            remarks.append(f"Left out: {system.label}. {str(error)[:1].upper()}{str(error)[1:]}.")
    if not kept:
        raise ConfigError(f"no row of this table can run so: {remarks[0]}")
    return replace(grid, systems=tuple(kept)), remarks


def page(
    entry: PaperEntry,
    protocol: PaperTable | Trunks,
    comparison: Comparison,
    remarks: Sequence[str],
    grid: Grid,
    settings: Settings = (),
    changes: Mapping[str, Any] | None = None,
) -> str:
    """The page in Markdown: the paper's figures beside this run's, what differs, and the whole table of the run.

    `settings`: what the paper prints. `changes`: the user's own options beside `--as-printed`; None without it.
    """
    by_row = differences(grid, settings)
    if isinstance(protocol, Trunks):
        lines = [line for line in beside_tables_2_and_3(comparison) if line[1] in protocol.columns]
        parts = [f"# {entry.title.capitalize()}", table(HEAD, lines)]
        parts += [tests(comparison)] if SPLIT in protocol.columns else []
    else:
        printed = with_differences(on_backbone(protocol.printed, grid.backbone), by_row)
        parts = [f"# {printed.title}", beside_printed(printed, comparison.rows, comparison.unseen)]
    parts += sentences(by_row, changes or {}, changes is not None)
    if entry.differs:
        parts.append(f"What differs beside: {entry.differs}.")
    ran = {label: listed(options) for label, options in comparison.options.items() if options}
    parts += [
        "Options of each row, as its runs recorded them:",
        "\n".join(f"- {for_markdown(f'{label}: {each}')}" for label, each in ran.items()),
    ]
    parts += ["\n".join(f"- {remark}" for remark in remarks), "## All systems of this run"]
    return (
        "\n\n".join(part for part in (*parts, settings_and_systems(comparison), *server_models(comparison)) if part)
        + "\n"
    )
