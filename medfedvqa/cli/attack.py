"""`medfedvqa audit attack`, `controls`, `neighbours` and `rerun`: attacks on a job, and runs that are made again."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

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

ConfidenceOption = Annotated[float, typer.Option(help="Joint confidence of all bounds.")]


def attack_command(
    method: options.MethodArgument,
    out: Annotated[
        Path, typer.Option(help="Folder for the findings and the runs; new or empty.", callback=options.writable)
    ],
    data: options.DataOption = "",
    data_root: options.RootOption = None,
    rounds: options.RoundsOption = None,
    local_epochs: options.EpochsOption = None,
    option: options.MethodOptions = None,
    backbone: options.BackboneOption = "auto",
    backbone_file: options.BackboneFileOption = None,
    site: options.OrgansOption = None,
    epsilon: options.EpsilonOption = None,
    dp: options.DPOption = None,
    canaries: Annotated[int, typer.Option(help="Synthetic patients at each site; half are in the training rows.")] = 64,
    rows: Annotated[int, typer.Option(help="Rows of each synthetic patient.")] = 8,
    guessed: Annotated[float, typer.Option(help="Share of the canaries that the attacker guesses about.")] = 0.5,
    seeds: Annotated[int, typer.Option(help="Independent runs, whose canaries are pooled.", min=1)] = 1,
    confidence: ConfidenceOption = 0.95,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = 1,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Train a job with synthetic patients and attack it; exit code 1 if the findings refute its ledger's epsilon.

    Trains on the data from the beginning, and charges no site's ledger but those that it makes: use open data.
    """

    progress = announced(f"medfedvqa audit attack {method}: loading PyTorch and checking the job", quiet)
    from medfedvqa.attack.empirical_audit import AuditPlan, audit, write
    from medfedvqa.cli.progress import Stages
    from medfedvqa.data import organs
    from medfedvqa.data.data_roots import find_root
    from medfedvqa.devices import resolved
    from medfedvqa.federation.launch import Launch, check_new, plan
    from medfedvqa.library.training_job import backbone_for, check_site_names, checked_job

    sites, files = tuple(site or ()), options.check_backbone_file(backbone, backbone_file)
    reader, root = find_root(data, data_root)
    device = resolved(device)
    audit_plan = AuditPlan(canaries, rows, guessed, confidence, tuple(range(seeds)))
    check_new(out)
    check_site_names(reader, root, sites)

    def launch_of(seed: int) -> Launch:
        job = {
            "method": method,
            "options": options.named_values(option or [], rounds=rounds, local_epochs=local_epochs),
            "data": reader,
            "seed": seed,
            "split": {"seed": seed},
            "backbone": backbone_for(backbone, reader),
            "dp": options.named_values(dp or [], epsilon=epsilon) or None,
        }
        return plan(checked_job(job), root, out / f"run-{seed}", sites, threads, files, device=device)

    count = len(sites or organs(reader, root))
    with Stages(progress, count, launch_of(0).job.build().config.rounds, baseline=False) as stages:
        findings = audit(launch_of, audit_plan, stages.watch)
    path = write(findings, out)
    if as_json:
        typer.echo(json.dumps(findings, indent=2))
    else:
        console = Terminal(quiet=quiet)
        show(console, findings)
        console.print(f"The findings are in [bold]{sentence(path)}[/]", soft_wrap=True)
    raise typer.Exit(1 if findings["contradicted"] else 0)


def controls_command(
    epsilon: Annotated[float, typer.Option(help="The epsilon that each mechanism claims.")] = 1.0,
    canaries: Annotated[int, typer.Option(help="Synthetic patients in each training run.")] = 256,
    repetitions: Annotated[int, typer.Option(help="Training runs with each fault.", min=1)] = 20,
    published: Annotated[
        bool, typer.Option("--published", help="Test mechanisms that others published, at their own epsilon.")
    ] = False,
    trials: Annotated[
        int, typer.Option(help="With --published: number of releases with a patient, and as many without.", min=200)
    ] = 20000,
    confidence: ConfidenceOption = 0.95,
    as_json: options.JsonOption = False,
) -> None:
    """Show how often an audit catches known faults of the mechanism, and accuses the sound one."""
    if published:
        _show_published(trials, confidence, as_json)
        return
    from audits.epsilon_lower_bound import epsilon_lower_bound
    from medfedvqa.attack.controls import ControlRun, Fault

    rows = []
    for fault in Fault:
        trial = ControlRun.claiming(epsilon, fault, canaries)
        bounds = [epsilon_lower_bound(trial.run(fault, seed), trial.delta, confidence) for seed in range(repetitions)]
        refuted = sum(bound > epsilon for bound in bounds)
        rows.append({"fault": fault.value, "claimed": epsilon, "refuted": refuted, "mean": sum(bounds) / repetitions})
    if as_json:
        typer.echo(json.dumps({"repetitions": repetitions, "faults": rows}, indent=2))
        return
    table = Table(
        "fault", "claimed", "refuted", "lower bound, mean", title="The project's own DP-SGD, broken on purpose"
    )
    for row in rows:
        counted = f"{row['refuted']} of {repetitions}"
        table.add_row(str(row["fault"]), f"{row['claimed']:g}", counted, f"{row['mean']:.2f}")
    Terminal().print(table)


def _show_published(trials: int, confidence: float, as_json: bool) -> None:
    """Print each published mechanism's claimed and re-accounted epsilon, and the lower bound that is measured."""
    from medfedvqa.attack.controls import DELTA, published

    columns = ("mechanism", "source", "protects a", "claimed", "re-accounted", "by RDP", "measured, at least")
    rows = [
        (
            each.name,
            each.source,
            each.unit,
            each.claimed,
            each.accounted,
            each.by_rdp,
            each.measured(trials, confidence),
        )
        for each in published()
    ]
    if as_json:
        # An infinite epsilon is null: JSON has no number for it.
        finite = [[None if value == float("inf") else value for value in row] for row in rows]
        mechanisms = [dict(zip(columns, row, strict=True)) for row in finite]
        typer.echo(json.dumps({"delta": DELTA, "trials": trials, "mechanisms": mechanisms}, indent=2))
        return
    table = Table(*columns, title=f"Epsilon at delta {DELTA:g}, as published and as it is")
    for row in rows:
        figures = [f"{value:.2f}" if value < float("inf") else "none" for value in row[3:]]
        table.add_row(*row[:3], *figures)
    Terminal().print(table)


def show(console: Console, findings: Mapping[str, Any]) -> None:
    """Print the findings as tables, and what they mean."""
    claimed, facts = findings["claimed"], findings["canaries"]
    claim = f"{claimed['epsilon']:.3g} at delta {claimed['delta']:g}" if claimed else "none: no differential privacy"
    console.print(f"Claimed epsilon by patient, from the ledger: [bold]{claim}[/]", highlight=False)
    counted = f"{facts['inserted']} of {facts['total']} canaries, {facts['rows_each']} rows each, were trained with"
    console.print(f"{counted}; all bounds hold together with {findings['confidence']:.0%} confidence", highlight=False)
    table = Table("artefact", "attack", "right", "accuracy [interval]", "epsilon at least", "provable", "claim")
    for attack in findings["attacks"]:
        low, high = attack["accuracy_interval"]
        table.add_row(
            plain(attack["artefact"]),
            plain(attack["attack"]),
            f"{attack['correct']} of {attack['guessed']}",
            f"{attack['accuracy']:.2f} \\[{low:.2f}, {high:.2f}]",
            f"{attack['epsilon_lower_bound']:.2f}",
            f"{attack['most_provable']:.2f}",
            {None: "none made", True: "[bold red]REFUTED[/]", False: "stands"}[attack["contradicts_claim"]],
        )
    console.print(table)
    if inversion := findings["inversion"]:
        rate, chance = f"{inversion['rate']:.2f}", f"{inversion['random_guess']:.2f}"
        count = f"{inversion['right']} of {inversion['patients']}"
        line = f"Answers inverted from the first release: {count} right ({rate})"
        console.print(f"{line}; by chance {chance}, p = {inversion['p_value_of_random_guess']:.2g}", highlight=False)
    console.print("A lower bound that is small proves nothing about safety: better attacks may exist.")


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
        typer.Option(help="A site.yml: loads its plug-ins, and records a passed check beside it."),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Leave out each patient of a synthetic site in turn; exit code 1 if more changes than the charged noise hides.

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
            "--site records a pass for an installed distribution, and none offers this method: leave it out"
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
        _show_neighbours(method, by_job, passed)
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


def _show_neighbours(method: str, by_job: "list[tuple[JobSpec, list[TaskFinding]]]", passed: bool) -> None:
    """Print a line for each task and sampling rate, and the verdict."""

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
