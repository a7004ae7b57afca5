"""`medfedvqa study` and `tune`: where sharing pays, and the search for learning rates and weight decays."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfedvqa.cli import options
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from medfedvqa.research.benchmark.systems import System
    from medfedvqa.research.benchmark.tuning_search import Trial

PAGE, PLOT = "study.md", "study.svg"


def study(
    regimes: Annotated[
        str,
        typer.Option(
            help="What to vary, separated by commas: rows (10, 25, 50 and 100 % of each site's training rows), "
            "hospitals (one to four for each organ), joining (each of two hospitals per organ in turn joins "
            "the others' model with few labelled patients)."
        ),
    ] = "rows,hospitals,joining",
    methods: Annotated[
        str, typer.Option(help="Systems or methods as in `medfedvqa benchmark`. Default: eleven informative ones.")
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
    """Measure where sharing pays: few rows, several hospitals per organ, a joining hospital; runs resume."""
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
        raise ConfigError(f"--regimes must name what to vary: {', '.join(REGIMES)}")
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


def tune(
    methods: Annotated[str, typer.Option(help="Systems or methods, separated by commas.")],
    data: options.DataOption = "",
    data_root: options.RootOption = None,
    rates: Annotated[str, typer.Option(help="Learning rates to try, separated by commas.")] = "0.0003,0.001,0.003,0.01",
    decays: Annotated[str, typer.Option(help="Weight decays to try with each of them.")] = "0,0.05",
    backbone: options.UnseenBackboneOption = "auto",
    rounds: options.RoundsOption = None,
    local_epochs: options.EpochsOption = None,
    option: options.MethodOptions = None,
    questions: options.QuestionsOption = "closed",
    workers: options.WorkersOption = 1,
    device: options.DeviceOption = "auto",
    cache: options.CacheOption = None,
    out: options.RunsOption = Path("tuning"),
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Search each system's learning rate and weight decay by successive halving; an interrupted search resumes."""
    from medfedvqa.cli.run import announced

    progress = announced("medfedvqa tune: loading PyTorch and the data", quiet)
    from medfedvqa.cli.benchmark import check_folder, planned_grid
    from medfedvqa.research.benchmark.tuning_search import candidates, full_rounds, search

    check_folder(out)
    pairs = candidates(decimals(rates, "--rates"), decimals(decays, "--decays"))
    changes = options.named_values(option or [], rounds=rounds, local_epochs=local_epochs)
    if searched := changes.keys() & {"learning_rate", "weight_decay"}:
        raise ConfigError(f"the search tries its own values of {', '.join(sorted(searched))}: use --rates and --decays")
    grid = planned_grid(methods, data, data_root, backbone, changes, 1, device, cache, out, questions=questions)
    for system in grid.systems:
        full_rounds(grid, system)

    def watch(trial: "Trial", system: "System") -> None:
        pair = f"rate {trial.candidate.learning_rate:g}, decay {trial.candidate.weight_decay:g}"
        figures = f"{100 * trial.validation:.1f} % of validation rows, {trial.seconds:.0f} processor seconds"
        text = f"{plain(system.label)}, {pair}, {trial.rounds} rounds: {figures}"
        progress.print(text, highlight=False, soft_wrap=True)

    record = search(grid, pairs, workers, watch)
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    console = Terminal(quiet=quiet)
    for label, choice in record["choices"].items():
        line = f"learning_rate={choice['learning_rate']:g}, weight_decay={choice['weight_decay']:g}"
        console.print(f"{plain(label)}: {line}; {record['seconds'][label]:.0f} processor seconds", highlight=False)
    console.print(f"`medfedvqa benchmark --tuned {sentence(out / 'tuned.json')}` uses these choices", soft_wrap=True)


def decimals(listed: str, option: str) -> list[float]:
    """The numbers of a text such as `0.001,0.01`. Raises `ConfigError` for other texts."""
    try:
        return [float(part) for part in listed.split(",")]
    except ValueError:
        raise ConfigError(f"{option} needs numbers separated by commas, such as 0.001,0.01") from None
