"""`medfedvqa tune`: learning rates and weight decays of systems, searched on validation rows."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfedvqa.cli import options
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from medfedvqa.research.benchmark.systems import System
    from medfedvqa.research.benchmark.tuning_search import Trial


def tune(
    methods: Annotated[str, typer.Option(help="Systems or methods, with commas between.")],
    data: options.DataOption = "",
    data_root: options.RootOption = None,
    rates: Annotated[str, typer.Option(help="Learning rates to try, with commas between.")] = "0.0003,0.001,0.003,0.01",
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
    """Search each system's learning rate and weight decay by successive halving. Stop at any time; it resumes."""
    import json

    from medfedvqa.cli.run import announced

    progress = announced("medfedvqa tune: loading PyTorch and the data", quiet)
    from medfedvqa.cli.benchmark import check_folder, planned_grid
    from medfedvqa.cli.terminal import Terminal, plain, sentence
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
        raise ConfigError(f"{option} takes numbers with commas between, as 0.001,0.01") from None
