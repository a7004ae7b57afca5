"""`medfedvqa jobs`: job folders for `nvflare job submit`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from medfedvqa.cli.run import (
    CommitteeOption,
    DPOption,
    EpsilonOption,
    GatherOption,
    MostNormOption,
    SecaggOption,
    asked_committee,
    named_values,
)
from medfedvqa.federation.job import ANY_DATA, JobSpec

app = typer.Typer(help="Job folders for `nvflare job submit`.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `export` a subcommand."""


@app.command()
def export(
    method: Annotated[str, typer.Argument(help="Name of a method, see `medfedvqa methods`.")],
    out: Annotated[Path, typer.Option(help="The folder to write; must not exist.")],
    option: Annotated[list[str] | None, typer.Option("--option", "-O", help="NAME=VALUE; repeatable.")] = None,
    data: Annotated[str, typer.Option(help="Reader that every site must hold, or 'any'.")] = ANY_DATA,
    backbone: Annotated[str, typer.Option(help="Name of the backbone that every site loads.")] = "medclip-slake",
    seed: Annotated[int, typer.Option(help="Seed of training.")] = 0,
    epsilon: EpsilonOption = None,
    dp: DPOption = None,
    secagg: SecaggOption = False,
    committee: CommitteeOption = None,
    gather: GatherOption = "mean",
    most_norm: MostNormOption = None,
    min_sites: Annotated[int, typer.Option(help="The job does not begin with fewer sites.", min=1)] = 1,
) -> None:
    """Write a configuration-only job folder."""
    from medfedvqa.federation.flare.recipe import export_job

    job = {
        "method": method,
        "options": named_values(option or []),
        "data": data,
        "backbone": backbone,
        "seed": seed,
        "dp": named_values(dp or [], epsilon=epsilon) or None,
        "secagg": secagg,
        "committee": asked_committee(committee),
        "gather": gather,
        "most_norm": most_norm,
        "min_sites": min_sites,
    }
    export_job(JobSpec.from_dict(job), out)
    Console().print(f"Submit it by: nvflare job submit -j {out}")
