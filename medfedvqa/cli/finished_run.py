"""`medfedvqa groups` and `contribution`: who pays for privacy, and what each part of the models does to answers."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from medfedvqa.cli.answer import JobIdOption, SiteOption
from medfedvqa.cli.options import JsonOption
from medfedvqa.cli.terminal import Terminal, plain


def groups(
    run: Annotated[Path, typer.Argument(help="A finished run's folder, with its results.json.")],
    site: SiteOption,
    baseline: Annotated[Path | None, typer.Option(help="The folder of the same run without privacy.")] = None,
    job: JobIdOption = None,
    baseline_job: Annotated[
        str | None, typer.Option(help="The job without privacy, where the site keeps several.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show who pays for privacy at a site: accuracies and clipped gradients by groups of at least 20 patients.

    Groups are by sex, age and modality, as far as the site's data tell. Nothing is trained, and nothing is sent.
    """
    from rich.table import Table

    from medfedvqa.answering.accuracy_by_group import by_group
    from medfedvqa.answering.kept_run import load_kept

    figures = by_group(load_kept(run, site, job), load_kept(baseline, site, baseline_job) if baseline else None)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
        return
    terminal, names = Terminal(), ("accuracy with privacy", "without") if figures["private"] else ("accuracy", "")
    table = Table("group", "patients", "model", *names, "points lost, 95 %")
    for each in figures["groups"]:
        shares = [f"{100 * share['accuracy']:.1f} %" if share else "" for share in (each["private"], each["without"])]
        table.add_row(_name(each), str(each["patients"]), each["model"], *shares, _cost(each["cost"]))
    terminal.print(table)
    if figures["clipped"]:
        clipped = Table("group", "patients in training", "gradients clipped")
        for each in figures["clipped"]:
            share = "none drawn" if each["clipped"] is None else f"{each['clipped']:.1%} of {each['gradients']}"
            clipped.add_row(_name(each), str(each["patients"]), share)
        terminal.print(clipped)
    terminal.print("\n".join(figures["notes"]), highlight=False, soft_wrap=True, markup=False)


def _name(group: dict[str, Any]) -> str:
    return f"{plain(group['by'])}: {plain(group['group'])}"


def _cost(cost: dict[str, Any] | None) -> str:
    if cost is None:
        return ""
    interval = cost["interval"] and " [{:.1f}, {:.1f}]".format(*(100 * bound for bound in cost["interval"]))
    return f"{100 * cost['mean']:.1f}{interval or ''}"


STAYS = "The figures count answers about test patients: they stay with whoever may see the sites' rows."
PRIVATE = "The job trained under differential privacy: its epsilon covers none of these figures."
NO_OTHERS = "Another site's prompts are not at hand: only a run whose sites are all on this machine has that row."


def contribution(
    run: Annotated[Path, typer.Argument(help="A finished run's folder, with its results.json.")],
    site: Annotated[
        str, typer.Option(help="One site's name in the run, or the path of its site.yml; default: all sites of a run.")
    ] = "",
    job: JobIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how many answers change, and how many points of accuracy are lost, without each part of the sites' models.

    Parts are prompts, n-grams, the picture and all that is tuned. Nothing is trained, and nothing is sent.
    """
    from rich.table import Table

    from medfedvqa.answering.kept_run import load_kept
    from medfedvqa.core.contribution import PARTS, contributions, tests_of
    from medfedvqa.library.run_results import Results

    results = Results.read(run).document
    kept = {name: load_kept(run, name, job) for name in ([site] if site else results["sites"])}
    sites = {name: (each.site(tests_of(each.own_data())), each.state) for name, each in kept.items()}
    parts = contributions(next(iter(kept.values())).job.build(), sites)
    lacking = [NO_OTHERS] if len(sites) == 1 and "shared_prompts" in parts else []
    notes = [STAYS, *[PRIVATE] * (results["dp"] is not None), *lacking]
    if as_json:
        typer.echo(json.dumps({"method": results["method"], "sites": list(sites), "parts": parts, "notes": notes}))
        return
    table = Table("the model answers", "answers that change", "points lost, mean over sites, 95 % interval")
    for part, figures in parts.items():
        lost, (low, high) = figures["lost"], figures["interval"] or (figures["lost"],) * 2
        changed = f"{figures['changed']} of {figures['rows']} ({figures['changed'] / figures['rows']:.1%})"
        table.add_row(PARTS[part], changed, f"{100 * lost:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
    Terminal().print(table)
    Terminal().print("\n".join(notes), highlight=False, soft_wrap=True)
