"""Compares the settings that a paper prints with a run's, and applies them to a table's rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from medfedvqa.core import method_type
from medfedvqa.models import load_backbone
from medfedvqa.research.benchmark.grid import Grid
from medfedvqa.research.benchmark.systems import System
from medfedvqa.research.reproduce.entries import FACT, PrintedSetting

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
