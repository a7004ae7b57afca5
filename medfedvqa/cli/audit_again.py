"""`medfedvqa audit neighbours` and `audit rerun`: runs with one patient more, and a finished run again as it was."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medfedvqa.cli import options
from medfedvqa.cli.options import QuietOption, config_of
from medfedvqa.cli.plugins import ModuleOption, PluginOption, allow_plugins, import_modules
from medfedvqa.cli.run import announced
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from medfedvqa.attack.neighbours import TaskFinding
    from medfedvqa.federation.job import JobSpec
    from medfedvqa.federation.rerun import LogComparison

DRAWN = "site-001"
"""A site of the phantom set with twelve patients."""
CASES = ({"sample_rate": 1.0, "patient_rows": 8}, {"sample_rate": 0.5, "patient_rows": 4})
"""Settings with every patient in every step, and with half of them, where some have more rows than are kept."""


def neighbours_command(
    method: options.MethodArgument,
    option: options.MethodOptions = None,
    dp: options.DPOption = None,
    backbone: options.BackboneOption = "auto",
    backbone_file: options.BackboneFileOption = None,
    plugin: PluginOption = None,
    module: ModuleOption = None,
    site: Annotated[
        Path | None,
        typer.Option(
            help="A site.yml, whose plug-ins are loaded, and beside which it is noted whether this one passed."
        ),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Leave out each patient of a drawn site in turn; exit code 1 if more changes than the charged noise hides.

    The private tasks of the method run with and without the patient, under the same randomness.
    """
    announced(f"medfedvqa audit neighbours {method}: loading PyTorch and checking the job", quiet=as_json)
    from medfedvqa.attack.neighbours import Neighbours, findings
    from medfedvqa.core.registry import is_built_in
    from medfedvqa.data import phantom
    from medfedvqa.models import load_backbone
    from medfedvqa.plugins import allow, offering, remember_passed

    if site is not None:
        allow(config_of(site).plugins)
    allow_plugins(plugin)
    import_modules(module, "local")
    if site is not None and (is_built_in(method) or not [*offering("methods", method)]):
        raise ConfigError(
            "--site notes the digest of an installed distribution, and none brings this method: leave it out"
        )
    jobs = _jobs(method, option, dp, backbone)
    files = options.check_backbone_file(backbone, backbone_file)
    neighbours = Neighbours(phantom.read((DRAWN,)), DRAWN, load_backbone(jobs[0].backbone, files, "cpu"))
    by_job = [(job, findings(neighbours, job.build())) for job in jobs]
    passed = all(finding.passed for _, each in by_job for finding in each)
    if site is not None:
        remember_passed(site.parent, method, passed)
    if as_json:
        cases = [
            {"sample_rate": job.dp and job.dp.sample_rate, "tasks": [asdict(f) | {"passed": f.passed} for f in each]}
            for job, each in by_job
        ]
        typer.echo(json.dumps({"method": method, "passed": passed, "cases": cases}, indent=2))
    else:
        _show(method, by_job, passed)
    raise typer.Exit(0 if passed else 1)


def _jobs(method: str, option: list[str] | None, dp: list[str] | None, backbone: str) -> "list[JobSpec]":
    """The jobs that are tried, short ones unless the options say otherwise."""
    from medfedvqa.attack.neighbours import QUICK
    from medfedvqa.core import method_type
    from medfedvqa.library.training_job import backbone_for, check_method, checked_job

    check_method(method)
    quick = {name: value for name, value in QUICK.items() if name in method_type(method).config_type.model_fields}
    given = options.named_values(dp or [])
    noise = {} if "epsilon" in given else {"noise": 1.0, "count_noise": 1.0}
    job: dict[str, Any] = {"method": method, "options": quick | options.named_values(option or []), "data": "phantom"}
    job["backbone"] = backbone_for(backbone, "phantom", job["options"])
    settings = [{**noise, **case, **given} for case in CASES]
    return [checked_job(job | {"dp": each}) for number, each in enumerate(settings) if each not in settings[:number]]


def _show(method: str, by_job: "list[tuple[JobSpec, list[TaskFinding]]]", passed: bool) -> None:
    """Print a line for each task and sampling rate, and the verdict."""
    from rich.table import Table

    words = {True: "same", False: "[bold red]CHANGED[/]"}
    table = Table(
        "task", "rate", "steps", "sum, of C", "counts", "others, of C", "if not drawn", "draws, parts", "rest"
    )
    for job, findings in by_job:
        for each in findings:
            moved = (f"{each.sum_moved:.4f}", f"{each.counts_moved:.4f}", f"{each.others_moved:.1g}")
            rate = f"{job.dp.sample_rate:g}" if job.dp else ""
            steps = f"{each.steps}" if each.charged_as_seen else f"[bold red]{each.steps}, not as charged[/]"
            same = words[each.others_alike], words[each.uploads_alike]
            table.add_row(plain(each.task), rate, steps, *moved, f"{each.undrawn_moved:.1g}", *same)
    console = Terminal()
    console.print(table)
    verdict = (
        "[green]passed[/]: leaving out a patient changes what is charged, and nothing else"
        if passed
        else "[bold red]FAILED[/]: a patient changes more than the charged noise hides; its epsilon does not hold"
    )
    console.print(f"{plain(method)} {verdict}", highlight=False, soft_wrap=True)


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
    _show_rerun(console, comparison)
    raise typer.Exit(0 if comparison.first is None else 1)


def _show_rerun(console: Terminal, comparison: "LogComparison") -> None:
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
