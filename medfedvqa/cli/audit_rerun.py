"""`medfedvqa audit rerun`: whether a finished run, run again from its own record, sends the same tensors."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfedvqa.cli.options import QuietOption
from medfedvqa.cli.plugins import ModuleOption, PluginOption, allow_plugins, import_modules
from medfedvqa.cli.run import announced
from medfedvqa.cli.terminal import Terminal, plain, sentence

if TYPE_CHECKING:
    from medfedvqa.federation.rerun import LogComparison


def rerun_command(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    plugin: PluginOption = None,
    module: ModuleOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run a finished run again from its own record, and compare every digest of a tensor in its sites' logs.

    It trains as long as the run did, in this process, and keeps nothing. Exit code 1: a tensor differs. A run under
    differential privacy or on shares is refused, since its randomness is fresh and secret.
    """
    progress = announced(f"medfedvqa audit rerun {run}: loading PyTorch and reading the run's record", quiet)
    from medfedvqa.cli.progress import Stages
    from medfedvqa.federation.rerun import changes, compare, planned_rerun, recorded_run, rerun

    allow_plugins(plugin)
    import_modules(module, "local")
    launch, rounds = recorded_run(run)
    console = Terminal()
    with planned_rerun(launch) as again:
        for change in changes(launch, again):
            console.print(f"[bold yellow]Note:[/] {sentence(change)}", highlight=False, soft_wrap=True)
        with Stages(progress, len(launch.sites), rounds, baseline=False) as stages:
            rerun(again, rounds, stages.watch)
        comparison = compare(launch, again)
    _show(console, comparison)
    raise typer.Exit(0 if comparison.first is None else 1)


def _show(console: Terminal, comparison: "LogComparison") -> None:
    """Print how many digests are equal, by site, and the first tensor that differs."""
    equal = sum(comparison.equal.values())
    of_sites = ", ".join(f"{plain(site)} {count}" for site, count in comparison.equal.items())
    if (first := comparison.first) is None:
        console.write_line(0, f"[green]equal[/]: all {equal} digests of tensors in {len(comparison.equal)} logs")
    else:
        place = f"site {plain(first.site)}, round {first.round}, task {plain(first.task or '')}"
        console.write_line(0, f"[bold red]DIFFERENT[/]: {comparison.total - equal} of {comparison.total} digests")
        console.write_line(
            2, f"first tensor that differs: {place}, tensor {plain(first.tensor)}, direction {first.direction}"
        )
        if not (comparison.logged and comparison.repeated):
            console.write_line(2, f"only the log of {'the run' if comparison.logged else 'the rerun'} has this tensor")
    console.write_line(2, f"equal digests by site: {of_sites}")
