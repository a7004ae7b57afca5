"""`medfedvqa benchmark`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from medfedvqa.atomic_files import write_whole
from medfedvqa.benchmark.benchmark_plots import draw_convergence, draw_scale
from medfedvqa.benchmark.benchmark_table import Outcomes, cell, markdown
from medfedvqa.benchmark.grid import Grid, outcomes, run
from medfedvqa.benchmark.statistics import average
from medfedvqa.benchmark.systems import BUDGET, chosen
from medfedvqa.cli.run import DataOption, RootOption, named_values
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.data import organs, phantom
from medfedvqa.data.data_roots import PHANTOM, find_root
from medfedvqa.errors import ConfigError

TABLE = "benchmark.md"


def benchmark(
    methods: Annotated[str, typer.Option(help="Systems or methods, with commas between; by default all.")] = "",
    data: DataOption = "",
    data_root: RootOption = None,
    seeds: Annotated[int, typer.Option(help="Runs of each system, with seeds 0, 1, ...", min=1)] = 3,
    backbone: Annotated[str, typer.Option(help="By default the bundled one that has not seen the data.")] = "",
    budget: Annotated[
        list[str] | None, typer.Option("--budget", help="NAME=VALUE for all systems, as rounds=10; repeatable.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="Numbers of sites, as 5,10,25: accuracy by number of sites, on the phantom set.")
    ] = "",
    workers: Annotated[int, typer.Option(help="Runs at a time, each on one thread.", min=1)] = 1,
    out: Annotated[
        Path, typer.Option(help="Folder of all runs; what is there is not run again.", file_okay=False)
    ] = Path("benchmark"),
) -> None:
    """Compare systems on the same data, backbone, budget and statistics. Stop and go on at any time."""
    reader, root = find_root(data, data_root)
    systems = chosen([name.strip() for name in methods.split(",") if name.strip()])
    spent = BUDGET | named_values(budget or [])
    console = Terminal()
    if scale:
        if reader != PHANTOM:
            raise ConfigError("only the phantom set can be drawn for any number of sites: use --data phantom")
        found: dict[str, dict[int, float]] = {system.label: {} for system in systems}
        for count in numbers(scale):
            sites = phantom.organs(count)
            grid = Grid(reader, root, out / f"{count}-sites", systems, seeds, spent, sites, backbone)
            _complete(console, grid, workers)
            for label, each in outcomes(grid).items():
                if label in found:
                    found[label][count] = average(each).mean
        console.print(f"The plot is in [bold]{sentence(draw_scale(out, found))}[/]", soft_wrap=True)
        return
    grid = Grid(reader, root, out, systems, seeds, spent, organs(reader, root), backbone)
    _complete(console, grid, workers)
    results = outcomes(grid)
    text = markdown(grid, results)
    write_whole(out / TABLE, text.encode())
    draw_convergence(out, results)
    _show(console, results)
    console.print(f"Table, plot and runs are in [bold]{sentence(out)}[/]", soft_wrap=True)


def numbers(listed: str) -> list[int]:
    """Numbers of sites, as `5,10,25`. Raises `ConfigError` for anything else."""
    parts = [part.strip() for part in listed.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError("--scale takes numbers of sites with commas between, as 5,10,25")
    return [int(part) for part in parts]


def _complete(console: Console, grid: Grid, workers: int) -> None:
    with Progress(console=console) as progress:
        bar = progress.add_task("runs", total=len(grid.systems) * grid.seeds)
        for system, seed in run(grid, workers):
            progress.update(bar, advance=1, description=f"{system.label}, seed {seed}")
        progress.update(bar, completed=len(grid.systems) * grid.seeds, description="runs")


def _show(console: Console, results: Outcomes) -> None:
    table = Table("system", "average, %", "trained")
    for label, each in results.items():
        table.add_row(label, plain(cell(average(each))), f"{each[0].parameters:,}")
    console.print(table)
