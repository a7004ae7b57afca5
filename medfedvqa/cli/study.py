"""`medfedvqa study`: where sharing pays."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from medfedvqa.cli import options
from medfedvqa.cli.terminal import Terminal, sentence
from medfedvqa.errors import ConfigError

PAGE, PLOT = "study.md", "study.svg"


def study(
    regimes: Annotated[
        str,
        typer.Option(
            help="What to vary, with commas between: rows (10, 25, 50 and 100 % of each site's training rows), "
            "hospitals (one to four for each organ), joining (each of two hospitals per organ in turn joins "
            "the others' model with few labelled patients)."
        ),
    ] = "rows,hospitals,joining",
    methods: Annotated[
        str, typer.Option(help="Systems or methods as in `medfedvqa benchmark`. Default: eleven that tell.")
    ] = "",
    data: options.DataOption = "",
    data_root: options.RootOption = None,
    seeds: options.SeedsOption = 3,
    backbone: options.UnseenBackboneOption = "auto",
    rounds: options.RoundsOption = None,
    local_epochs: options.EpochsOption = None,
    option: options.MethodOptions = None,
    questions: options.QuestionsOption = "closed",
    workers: options.WorkersOption = 1,
    device: options.DeviceOption = "auto",
    cache: options.CacheOption = None,
    tuned: options.TunedOption = None,
    out: options.RunsOption = Path("study"),
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Show where sharing pays: few rows, several hospitals per organ, a hospital that joins. It resumes."""
    from medfedvqa.cli.benchmark import check_folder, complete, planned_grid
    from medfedvqa.cli.run import announced

    check_folder(out)
    progress = announced("medfedvqa study: loading PyTorch and the data", quiet)
    from medfedvqa.atomic_files import write_whole
    from medfedvqa.near_miss import check_name
    from medfedvqa.research.benchmark.grid import results
    from medfedvqa.research.benchmark.results_file import RESULTS
    from medfedvqa.research.benchmark.study import REGIMES, SYSTEMS, draw, findings, page, sentences, systems_of

    names = [name.strip() for name in regimes.split(",") if name.strip()]
    for name in names:
        check_name("regime", name, REGIMES, "docs/comparison.md describes them")
    if not names:
        raise ConfigError(f"--regimes names what to vary: {', '.join(REGIMES)}")
    changes = options.named_values(option or [], rounds=rounds, local_epochs=local_epochs)
    listed = methods or ",".join(SYSTEMS)
    base = planned_grid(listed, data, data_root, backbone, changes, seeds, device, cache, out, tuned, questions)
    grids = [systems_of(base, regime) for name in dict.fromkeys(names) for regime in REGIMES[name]]
    for grid in grids:
        complete(progress, grid, workers)
    found = findings([result for grid in grids for result in results(grid)])
    write_whole(out / PAGE, page(found).encode())
    draw(out / PLOT, found)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    console = Terminal(quiet=quiet)
    for text in sentences(found):
        console.print(sentence(text), soft_wrap=True)
    console.print(f"Table, plot and runs are in [bold]{sentence(out)}[/]; all results in {sentence(out / RESULTS)}")
