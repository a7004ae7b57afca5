"""`medfedvqa benchmark`: systems compared on the same data."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from medfedvqa.cli import options
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from medfedvqa.research.benchmark.grid import Grid
    from medfedvqa.research.benchmark.results_file import Result
    from medfedvqa.research.benchmark.single_run import Regime
    from medfedvqa.research.benchmark.statistics import Comparison
    from medfedvqa.research.benchmark.systems import System

TABLE = "benchmark.md"


def benchmark(
    methods: Annotated[str, typer.Option(help="Systems or methods, separated by commas. Default: all.")] = "",
    data: options.DataOption = "",
    data_root: options.RootOption = None,
    seeds: options.SeedsOption = 3,
    backbone: options.UnseenBackboneOption = "auto",
    backbone_file: options.BackboneFileOption = None,
    rounds: options.RoundsOption = None,
    local_epochs: options.EpochsOption = None,
    option: options.MethodOptions = None,
    questions: options.QuestionsOption = "closed",
    sites: options.CutOption = "organ",
    unseen: Annotated[
        str, typer.Option(help="Sites, separated by commas, that never train, and only test the others' last mean.")
    ] = "",
    scale: Annotated[
        str, typer.Option(help="Compare accuracy at these numbers of sites, such as 5,10,25, on the phantom set.")
    ] = "",
    from_files: Annotated[
        str, typer.Option("--from", help="Results files, separated by commas: print their table without any run.")
    ] = "",
    workers: options.WorkersOption = 1,
    device: options.DeviceOption = "auto",
    cache: options.CacheOption = None,
    tuned: options.TunedOption = None,
    out: options.RunsOption = Path("benchmark"),
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Compare systems on the same data, backbone, budget and statistics. Stop at any time; it resumes."""
    check_folder(out)
    if from_files:
        given: dict[str, object] = {"--methods": methods, "--data": data, "--data-root": data_root, "--scale": scale}
        given |= {"--rounds": rounds, "--local-epochs": local_epochs, "-O": option, "--tuned": tuned}
        given |= {"--questions": questions != "closed", "--unseen": unseen, "--sites": sites != "organ"}
        _from_files(from_files, [name for name, value in given.items() if value], out, as_json, quiet)
        return
    from medfedvqa.cli.run import announced

    progress = announced("medfedvqa benchmark: loading PyTorch and the data", quiet)
    from medfedvqa.research.benchmark.grid import results

    changes = options.named_values(option or [], rounds=rounds, local_epochs=local_epochs)
    grid = planned_grid(methods, data, data_root, backbone, changes, seeds, device, cache, out, tuned, questions, sites)
    grid = replace(grid, files=options.check_backbone_file(backbone, backbone_file))
    grid = replace(grid, regime=regime_with(unseen, grid))
    if scale:
        path = scaled(progress, numbers(scale), replace(grid, organs=()), workers)
        Terminal(quiet=quiet or as_json).print(f"The plot is in [bold]{sentence(path)}[/]", soft_wrap=True)
        return
    complete(progress, grid, workers)
    _finish(results(grid), out, as_json, quiet)


def planned_grid(
    methods: str,
    data: str,
    data_root: Path | None,
    backbone: str,
    changes: Mapping[str, Any],
    seeds: int,
    device: str,
    cache: Path | None,
    out: Path,
    tuned: Path | None = None,
    questions: options.QuestionsName = "closed",
    cut: str = "organ",
) -> "Grid":
    """The runs that a command's options ask for; `changes` are changes to the common budget.

    Raises `ConfigError`, `DataError` or `BackboneError`.
    """
    from medfedvqa.data.data_roots import find_root
    from medfedvqa.data.labelled import classes
    from medfedvqa.data.site_cuts import Cut, sites_of
    from medfedvqa.devices import resolved
    from medfedvqa.library.training_job import backbone_for
    from medfedvqa.research.benchmark.grid import Grid
    from medfedvqa.research.benchmark.single_run import Regime
    from medfedvqa.research.benchmark.systems import BUDGET

    device = resolved(device)
    reader, root = find_root(data, data_root)
    systems = named_systems(methods)
    name = "" if backbone == "auto" else backbone
    systems = chosen(systems, tuned, data=reader, backbone=backbone_for(name, reader))
    check_budget(systems, changes)
    sites, budget = sites_of(Cut.of(cut), reader, root, questions), BUDGET | dict(changes)
    answers = classes(root) if reader == "image-classes" and root is not None else ()
    return Grid(
        reader,
        root,
        out,
        systems,
        seeds,
        budget,
        sites,
        name,
        cache,
        devices=device,
        questions=questions,
        answers=answers,
        regime=Regime(cut=cut),
    )


def _from_files(listed: str, given: list[str], out: Path, as_json: bool, quiet: bool) -> None:
    """The table of results files. Raises `ConfigError` if they hold none, or if options choose what to run."""
    from medfedvqa.research.benchmark.results_file import read

    if given:
        raise ConfigError(f"with --from, the files set everything: leave out {', '.join(given)}")
    results, remarks = read([Path(name.strip()) for name in listed.split(",") if name.strip()])
    warnings = Terminal(stderr=True)
    for remark in remarks:
        warnings.print(sentence(remark), soft_wrap=True)
    _finish(results, out, as_json, quiet)


def _finish(results: "list[Result]", out: Path, as_json: bool, quiet: bool) -> None:
    """Write the table and the plot, and show the averages."""
    from medfedvqa.atomic_files import write_whole
    from medfedvqa.research.benchmark.benchmark_table import draw_convergence, markdown
    from medfedvqa.research.benchmark.statistics import compared

    comparison = compared(results)
    write_whole(out / TABLE, markdown(comparison).encode())
    plot = draw_convergence(out, comparison.rows)
    if as_json:
        typer.echo(json.dumps(_record(comparison), indent=2))
        return
    console = Terminal(quiet=quiet)
    console.print(f"Table{', plot' if plot else ''} and runs are in [bold]{sentence(out)}[/]", soft_wrap=True)
    _show(console, comparison)


def check_folder(out: Path) -> None:
    """Raises `ConfigError` unless `out` is a folder that can be written, or can be made."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"'{out}' is a file: choose a folder for the runs")
    options.writable(out)


def named_systems(listed: str) -> "tuple[System, ...]":
    """The systems with these labels, or of these methods. Raises `ConfigError`, with the nearest names."""
    from medfedvqa.near_miss import check_name
    from medfedvqa.research.benchmark.systems import AT_REQUEST, SYSTEMS, systems_named, without_picture

    names = [name.strip() for name in listed.split(",") if name.strip()]
    systems = (*SYSTEMS, *AT_REQUEST)
    choices = {choice for system in systems for choice in (system.label, system.method)}
    choices |= {without_picture(system).label for system in systems if system.pictures}
    for name in names:
        check_name("system or method", name, choices, "docs/comparison.md lists them")
    return systems_named(names)


def regime_with(listed: str, grid: "Grid") -> "Regime":
    """The grid's regime in which the listed sites never train. Raises `ConfigError` for other names, or if none
    is left."""
    from medfedvqa.near_miss import check_name

    sites = grid.organs
    unseen = tuple(dict.fromkeys(name.strip() for name in listed.split(",") if name.strip()))
    for name in unseen:
        check_name("site", name, sites, f"the sites are {', '.join(sites)}", " in this data")
    if len(unseen) == len(sites):
        raise ConfigError("--unseen names all sites: leave at least one to train")
    return replace(grid.regime, unseen=unseen)


def check_budget(systems: "tuple[System, ...]", changes: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for an option that none of the methods has, or for which a row has its own value.

    A row with a schedule of its own counts other things than the budget does, and keeps its values. A method ignores
    options that it lacks; those of a table's common budget are never refused for that, so that split learning alone
    can run at the others' budget.
    """
    from medfedvqa.core import method_type
    from medfedvqa.near_miss import check_name
    from medfedvqa.research.benchmark.systems import COMMON

    supported = {name for system in systems for name in method_type(system.method).config_type.model_fields}
    choices = sorted(supported.union(COMMON))
    for name in changes:
        check_name("option", name, choices, "`medfedvqa methods NAME` lists a method's options", " of these methods")
    if "unseen" in changes:
        raise ConfigError("'unseen' cannot be set by -O: name the sites that never train by --unseen")
    for name, value in changes.items():
        rows = [system for system in systems if "schedule" not in system.options]
        fixed = {system.label: system.options[name] for system in rows if name in system.options}
        others = [f"'{label}' has {own!r}" for label, own in fixed.items() if own != value]
        if others:
            more = f" and {len(others) - 3} more rows have their own" if len(others) > 3 else ""
            raise ConfigError(
                f"{name}={value!r} would not reach every row: {', '.join(others[:3])}{more}. Leave out the option, or "
                "name other rows; `medfedvqa run` takes any value"
            )


def scaled(progress: Terminal, counts: list[int], grid: "Grid", workers: int) -> Path:
    """Run the grid at each number of sites, and plot accuracy by number of sites. Raises `ConfigError`."""

    from medfedvqa.data import phantom
    from medfedvqa.data.data_roots import PHANTOM
    from medfedvqa.research.benchmark.benchmark_table import draw_scale
    from medfedvqa.research.benchmark.grid import results
    from medfedvqa.research.benchmark.statistics import average, compared

    if grid.reader != PHANTOM:
        raise ConfigError("only the phantom set can be drawn for any number of sites: use --data phantom")
    accuracies: dict[str, dict[int, float]] = {system.label: {} for system in grid.systems}
    for count in counts:
        sized = replace(grid, out=grid.out / f"{count}-sites", organs=phantom.organs(count))
        complete(progress, sized, workers)
        for label, each in compared(results(sized)).rows.items():
            if label in accuracies:
                accuracies[label][count] = average(each).mean
    return draw_scale(grid.out, accuracies)


def numbers(listed: str) -> list[int]:
    """The numbers of sites in a text such as `5,10,25`. Raises `ConfigError` for other texts."""
    parts = [part.strip() for part in listed.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError("--scale needs numbers of sites separated by commas, such as 5,10,25")
    return [int(part) for part in parts]


def complete(console: Terminal, grid: "Grid", workers: int) -> None:
    """Run the missing runs of the grid, with a bar on a terminal and a line per run elsewhere."""
    from rich.progress import Progress

    from medfedvqa.research.benchmark.grid import run

    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("runs", total=len(grid.systems) * grid.seeds)
        for system, seed in run(grid, workers):
            progress.update(bar, advance=1, description=f"{system.label}, seed {seed}")
            if not console.is_terminal:
                console.print(f"finished: {plain(system.label)}, seed {seed}", highlight=False, soft_wrap=True)
        progress.update(bar, completed=len(grid.systems) * grid.seeds, description="runs")


def _record(comparison: "Comparison") -> dict[str, Any]:
    from medfedvqa.research.benchmark.benchmark_table import corrected, gains
    from medfedvqa.research.benchmark.statistics import average

    tested = corrected(comparison)
    record = {}
    for label, runs in comparison.rows.items():
        names = ("gain_from_pictures", "gain_from_federation")
        differences = zip(names, gains(comparison, label), strict=True)
        parts = dict(list(comparison.averages(label).items())[:-1])
        record[label] = {
            "average": average(runs).mean,
            "interval": average(runs).interval,
            **{part: {"average": each.mean, "interval": each.interval} for part, each in parts.items()},
            "runs": len(runs),
            "trained": runs[0].parameters,
            "p": tested.get(label),
            **{name: gain and {"mean": gain.mean, "interval": gain.interval} for name, gain in differences},
        }
    return record


def _show(console: Console, comparison: "Comparison") -> None:
    from rich.table import Table

    from medfedvqa.research.benchmark.benchmark_table import cell, gain_cell, gains

    averages = [f"{heading}, %" for heading in comparison.averages(comparison.reference)]
    table = Table("system", *averages, "from pictures", "from federation", "trained")
    for label, each in comparison.rows.items():
        cells = (*map(cell, comparison.averages(label).values()), *map(gain_cell, gains(comparison, label)))
        table.add_row(plain(label), *map(plain, cells), f"{each[0].parameters:,}")
    console.print(table)


def chosen(systems: "tuple[System, ...]", tuned: Path | None, **searched: Any) -> "tuple[System, ...]":
    """The systems with the choices of a file of `medfedvqa tune`, if one is given. Raises `ConfigError`."""
    if tuned is None:
        return systems
    from medfedvqa.research.benchmark.tuning_search import read_tuned, with_choices

    return with_choices(systems, read_tuned(tuned), **searched)
