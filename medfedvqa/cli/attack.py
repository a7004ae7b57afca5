"""`medfedvqa audit attack` and `controls`: attacks on a job, compared with the epsilon in its ledger."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from medfedvqa.cli import options
from medfedvqa.cli.terminal import Terminal, plain, sentence

ConfidenceOption = Annotated[float, typer.Option(help="Confidence of all bounds together.")]


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
    canaries: Annotated[int, typer.Option(help="Synthetic patients at each site; half of them are trained with.")] = 64,
    rows: Annotated[int, typer.Option(help="Rows of each synthetic patient.")] = 8,
    guessed: Annotated[float, typer.Option(help="Share of the canaries that the attacker makes a guess about.")] = 0.5,
    seeds: Annotated[int, typer.Option(help="Independent runs, whose canaries count together.", min=1)] = 1,
    confidence: ConfidenceOption = 0.95,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = 1,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Train a job with synthetic patients and attack it; exit code 1 if the findings refute its ledger's epsilon.

    Trains on the data from the beginning, and charges no site's ledger but those that it makes: use open data.
    """
    from medfedvqa.cli.run import announced

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
    canaries: Annotated[int, typer.Option(help="Synthetic patients in each training.")] = 256,
    repetitions: Annotated[int, typer.Option(help="Trainings with each fault.", min=1)] = 20,
    published: Annotated[
        bool, typer.Option("--published", help="Mechanisms as others publish them, at their own epsilon, instead.")
    ] = False,
    trials: Annotated[
        int, typer.Option(help="With --published: releases with a patient, and without.", min=200)
    ] = 20000,
    confidence: ConfidenceOption = 0.95,
    as_json: options.JsonOption = False,
) -> None:
    """How often known faults of the mechanism are caught, and the sound one accused: what an audit can see at all."""
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
