"""Runs of the benchmark beside a paper's tables: selects their systems and sites, and writes the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from audits.escaping import NAME, for_markdown
from medfedvqa.core import method_type
from medfedvqa.data import SiteData, phantom
from medfedvqa.data.data_roots import PHANTOM
from medfedvqa.errors import ConfigError
from medfedvqa.federation.serve import check_sites
from medfedvqa.models import load_backbone
from medfedvqa.near_miss import check_name
from medfedvqa.research.benchmark.benchmark_table import (
    ABSENT,
    TRUNK_HEAD,
    TRUNK_SPLIT,
    beside_printed,
    beside_tables_2_and_3,
    listed,
    server_models,
    settings_and_systems,
    table,
    trunk_tests,
)
from medfedvqa.research.benchmark.grid import Grid
from medfedvqa.research.benchmark.printed import PrintedTable
from medfedvqa.research.benchmark.statistics import Comparison
from medfedvqa.research.benchmark.systems import BUDGET, TRUNKS, System
from medfedvqa.research.reproduce.entries import (
    FACT,
    PaperEntry,
    PaperPicture,
    PaperTable,
    PrintedCounts,
    PrintedSetting,
    Protocol,
    Scale,
    Trunks,
)

# Compares the settings that a paper prints with a run's, and applies them to a table's rows.

Settings = Sequence[PrintedSetting]


@dataclass(frozen=True)
class Difference:
    """One setting that differs between a run and the paper."""

    setting: PrintedSetting
    here: str

    def __str__(self) -> str:
        return f"{self.setting.words}: {self.here} in place of {self.setting.printed} ({self.setting.section})"


def as_printed(grid: Grid, settings: Settings, changes: Mapping[str, Any]) -> Grid:
    """The grid with the paper's settings in the rows that have these options; those in `changes` take precedence.

    A row keeps a value that sets it apart from other rows, such as its lambda in a figure over lambda.
    """
    return replace(grid, systems=tuple(_printed(system, settings, changes) for system in grid.systems))


def _printed(system: System, settings: Settings, changes: Mapping[str, Any]) -> System:
    options = dict(system.options)
    for setting in _of(settings, system.method):
        if setting.option in method_type(system.method).config_type.model_fields and (
            options.get(setting.option, setting.instead) == setting.instead
        ):
            options[setting.option] = changes.get(setting.option, setting.value)
    return replace(system, options=options)


def _of(settings: Settings, method: str) -> list[PrintedSetting]:
    return [each for each in settings if not each.methods or method in each.methods]


def fitted(grid: Grid, settings: Settings, changes: Mapping[str, Any]) -> Grid:
    """The grid with at most as many tuned blocks as each tower of its backbone has; `differences` states the number.

    A number in `changes`, or one that sets a row apart, stays: a backbone without these blocks refuses it.
    """
    printed = {each.value for each in settings if each.option == "blocks" and "blocks" not in changes}
    if not any(each.options.get("blocks") in printed for each in grid.systems):
        return grid
    towers = load_backbone(grid.job(grid.systems[0], 0).backbone, grid.files).shape.towers.values()
    most = min((tower.layers for tower in towers), default=1)
    return replace(
        grid,
        systems=tuple(
            replace(each, options=each.options | {"blocks": min(most, each.options["blocks"])})
            if each.options.get("blocks") in printed
            else each
            for each in grid.systems
        ),
    )


def differences(grid: Grid, settings: Settings) -> dict[str, list[Difference]]:
    """For each row's system, by label, the settings in which its job differs from the paper."""
    return {system.label: list(_differences(grid, system, settings)) for system in grid.systems}


def _differences(grid: Grid, system: System, settings: Settings) -> Sequence[Difference]:
    job, unseen = grid.job(system, 0), len(grid.regime.unseen)
    options = job.build().config.model_dump(mode="json")
    facts = (
        options
        | {FACT + name: value for name, value in options.items()}
        | {
            f"{FACT}data": grid.reader,
            f"{FACT}backbone": job.backbone.partition("@")[0],
            f"{FACT}questions": grid.questions,
            f"{FACT}split": grid.split,
            f"{FACT}cut": grid.regime.cut,
            f"{FACT}training sites": len(grid.sites) - unseen,
            f"{FACT}unseen sites": unseen,
        }
    )
    differing = []
    for setting in _of(settings, system.method):
        if not setting.option:
            differing.append(Difference(setting, setting.instead))
        elif setting.option in facts and not _same(setting, here := facts[setting.option]):
            differing.append(Difference(setting, "none" if here in (None, "") else str(here)))
    return differing


def _same(setting: PrintedSetting, here: Any) -> bool:
    if setting.option.startswith(FACT) and isinstance(setting.value, str):
        return setting.value in str(here).lower()
    return bool(here == (list(setting.value) if isinstance(setting.value, tuple) else setting.value))


def common(by_row: Mapping[str, Sequence[Difference]]) -> list[Difference]:
    """The differences that all rows have in common."""
    first, *others = by_row.values()
    return [each for each in first if all(each in other for other in others)]


def sentences(by_row: Mapping[str, Sequence[Difference]], changes: Mapping[str, Any], printed: bool) -> list[str]:
    """Sentences on what differs in all rows, and on whether the paper's settings and the user's own apply."""
    lines, alike = [], common(by_row)
    if printed:
        own = f"; your own count first: {', '.join(changes)}" if changes else ""
        lines.append(f"Rows have the settings that the paper prints, as far as options set them{own}.")
    if alike:
        lines += ["What differs in all rows, by the options of these runs:", "\n".join(f"- {each}" for each in alike)]
    return lines


# Rows by site beside the numbers that a paper prints.

COUNTS_HEAD = ["paper's site", "training (paper)", "test (paper)", "site here", "training", "validation", "test"]


def counts_page(entry: PaperEntry, protocol: PrintedCounts, data: Mapping[str, SiteData]) -> str:
    """The page in Markdown. It pairs the paper's sites with those here by position only: they are different sites."""
    rows = []
    for printed, site in zip_longest(protocol.printed, data):
        there = [printed[0], *(f"{count:,}" for count in printed[1:])] if printed else [ABSENT] * 3
        here = [ABSENT] * 4
        if site is not None:
            here = [for_markdown(site, NAME), *(f"{len(part):,}" for part in data[site].parts)]
        rows.append([*there, *here])
    return f"# {entry.title.capitalize()}\n\n{table(COUNTS_HEAD, rows)}\n\nWhat differs: {entry.differs}.\n"


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
        parts = [f"# {entry.title.capitalize()}", table(TRUNK_HEAD, lines)]
        parts += [trunk_tests(comparison)] if TRUNK_SPLIT in protocol.columns else []
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
