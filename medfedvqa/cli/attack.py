"""`medfedvqa audit attack` and `controls`: attacks on a job, beside what its ledger claims."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from audits import epsilon_lower_bound
from medfedvqa.attack.audit import AuditPlan, audit, write
from medfedvqa.attack.controls import Fault, Trial
from medfedvqa.cli.display import Bars
from medfedvqa.cli.run import DataOption, DPOption, EpsilonOption, RootOption, named_values
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.data import organs
from medfedvqa.data.data_roots import find_root
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, check_new, plan
from medfedvqa.models import bundled_for

ConfidenceOption = Annotated[float, typer.Option(help="Of all bounds together.")]


def attack_command(
    method: Annotated[str, typer.Argument(help="Name of a method, see `medfedvqa methods`.")],
    out: Annotated[Path, typer.Option(help="Folder for the findings and the runs; new or empty.")],
    data: DataOption = "",
    data_root: RootOption = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-O", help="NAME=VALUE, any option of the method; repeatable.")
    ] = None,
    backbone: Annotated[str, typer.Option(help="auto, or a name as in `medfedvqa run`.")] = "auto",
    backbone_file: Annotated[Path | None, typer.Option(help="The checkpoint of a backbone ARCH@LABEL.")] = None,
    site: Annotated[list[str] | None, typer.Option(help="Only these organs; repeatable. Default: all.")] = None,
    epsilon: EpsilonOption = None,
    dp: DPOption = None,
    canaries: Annotated[int, typer.Option(help="Synthetic patients at each site; half of them are trained with.")] = 64,
    rows: Annotated[int, typer.Option(help="Rows of each.")] = 8,
    guessed: Annotated[float, typer.Option(help="Share of the canaries that the attacker speaks about.")] = 0.5,
    seeds: Annotated[int, typer.Option(help="Independent runs, whose canaries count together.", min=1)] = 1,
    confidence: ConfidenceOption = 0.95,
    threads: Annotated[int, typer.Option(help="Processor threads per site.", min=1)] = 1,
) -> None:
    """Train a job with synthetic patients and attack it; exit code 1 if the findings refute its ledger's epsilon.

    Trains on the data from the beginning, and charges no site's ledger but those that it makes: use open data.
    """
    reader, root = find_root(data, data_root)
    audited = AuditPlan(canaries, rows, guessed, confidence, tuple(range(seeds)))
    check_new(out)

    def launch_of(seed: int) -> Launch:
        facts = {"method": method, "options": named_values(option or []), "data": reader, "seed": seed}
        chosen = bundled_for(reader) if backbone == "auto" else backbone
        wanted = {"split": {"seed": seed}, "backbone": chosen, "dp": named_values(dp or [], epsilon=epsilon) or None}
        files = {backbone: backbone_file} if backbone_file else {}
        return plan(JobSpec.from_dict(facts | wanted), root, out / f"run-{seed}", tuple(site or ()), threads, files)

    console = Terminal()
    with Bars(console, tuple(site or organs(reader, root))) as bars:
        findings = audit(launch_of, audited, bars.watch)
    path = write(findings, out)
    show(console, findings)
    console.print(f"The findings are in [bold]{sentence(path)}[/]", soft_wrap=True)
    raise typer.Exit(1 if findings["contradicted"] else 0)


def controls_command(
    epsilon: Annotated[float, typer.Option(help="What each mechanism claims.")] = 1.0,
    canaries: Annotated[int, typer.Option(help="Synthetic patients in each training.")] = 256,
    repetitions: Annotated[int, typer.Option(help="Trainings with each fault.", min=1)] = 20,
    confidence: ConfidenceOption = 0.95,
) -> None:
    """How often known faults of the mechanism are caught, and the sound one accused: what an audit can see at all."""
    table = Table(
        "fault", "claimed", "refuted", "lower bound, mean", title="The project's own DP-SGD, broken on purpose"
    )
    for fault in Fault:
        trial = Trial.claiming(epsilon, fault, canaries)
        bounds = [epsilon_lower_bound(trial.run(fault, seed), trial.delta, confidence) for seed in range(repetitions)]
        refuted = sum(bound > epsilon for bound in bounds)
        mean = f"{sum(bounds) / repetitions:.2f}"
        table.add_row(fault.value, f"{epsilon:g}", f"{refuted} of {repetitions}", mean)
    Terminal().print(table)


def show(console: Console, findings: Mapping[str, Any]) -> None:
    """The findings as tables, and what they mean."""
    claimed, facts = findings["claimed"], findings["canaries"]
    claim = f"{claimed['epsilon']:.3g} at delta {claimed['delta']:g}" if claimed else "none: no differential privacy"
    console.print(f"Claimed epsilon by patient, from the ledger: [bold]{claim}[/]", highlight=False)
    counted = f"{facts['inserted']} of {facts['total']} canaries, {facts['rows_each']} rows each, were trained with"
    console.print(f"{counted}; all bounds hold together with {findings['confidence']:.0%} confidence", highlight=False)
    table = Table("artefact", "attack", "right", "accuracy [interval]", "epsilon at least", "provable", "claim")
    for one in findings["attacks"]:
        low, high = one["accuracy_interval"]
        table.add_row(
            plain(one["artefact"]),
            plain(one["attack"]),
            f"{one['correct']} of {one['guessed']}",
            f"{one['accuracy']:.2f} \\[{low:.2f}, {high:.2f}]",
            f"{one['epsilon_lower_bound']:.2f}",
            f"{one['most_provable']:.2f}",
            {None: "none made", True: "[bold red]REFUTED[/]", False: "stands"}[one["contradicts_claim"]],
        )
    console.print(table)
    if inversion := findings["inversion"]:
        rate, chance = f"{inversion['rate']:.2f}", f"{inversion['random_guess']:.2f}"
        count = f"{inversion['right']} of {inversion['patients']}"
        said = f"Answers inverted from the first release: {count} right ({rate})"
        console.print(f"{said}; by chance {chance}, p = {inversion['p_value_of_random_guess']:.2g}", highlight=False)
    console.print("A lower bound that is small proves nothing about safety: better attacks may exist.")
