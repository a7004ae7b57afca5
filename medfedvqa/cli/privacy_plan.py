"""`medfedvqa privacy plan`: what a job would cost."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from audits import SitePolicy
from medfedvqa.cli.privacy import SPENT, cells
from medfedvqa.cli.run import DPOption, EpsilonOption, named_values
from medfedvqa.cli.sites import config_of
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import JobSpec
from privacy import DPEvent, fitting, merge_steps, spent


def plan_command(
    method: Annotated[str, typer.Argument(help="Name of a method, see `medfedvqa methods`.")],
    option: Annotated[list[str] | None, typer.Option("--option", "-O", help="NAME=VALUE; repeatable.")] = None,
    epsilon: EpsilonOption = None,
    dp: DPOption = None,
    site: Annotated[Path | None, typer.Option("--site", help="A site.yml: would this policy allow the job?")] = None,
) -> None:
    """What a job would cost each patient, before anything runs; exit code 1 if the site would refuse it."""
    wanted = named_values(dp or [], epsilon=epsilon)
    job = JobSpec.from_dict({"method": method, "options": named_values(option or []), "dp": wanted or None})
    if job.dp is None:
        raise ConfigError("a job without differential privacy has no epsilon: give --epsilon, or --dp noise=...")
    built, console = job.build(), Terminal()
    rounds = [one.events for one in built.plan()]
    for event in merge_steps(event for events in rounds for event in events):
        console.print(
            f"{sentence(event.noise_words)} on each {plain(event.applied_to)}, {event.steps} times", highlight=False
        )
    table = Table("after task", *SPENT)
    for done in sorted({1, -(-len(rounds) // 4), -(-len(rounds) // 2), len(rounds)}):
        events = [event for one in rounds[:done] for event in one]
        table.add_row(f"{done} of {len(rounds)}", *cells(spent(events, job.dp.delta)))
    console.print(table)
    if site is not None:
        policy = config_of(site).policy
        refused = policy.refusal(job.offer())
        refusal = refused[1] if refused else _over(policy, rounds, job.dp.delta)
        if refusal:
            raise ConfigError(f"the site would refuse this job: {refusal}")
        console.print("The policy allows it to a cohort that has spent nothing; `privacy spent` tells what is left.")


def _over(policy: SitePolicy, rounds: list[tuple[DPEvent, ...]], delta: float) -> str | None:
    """Why a job goes over a policy's limit by itself, or None."""
    limits = [limit for limit in (policy.epsilon_limit, policy.max_epsilon_per_job) if limit is not None]
    cost = spent([event for one in rounds for event in one], delta).epsilon
    if not limits or cost <= min(limits):
        return None
    fit = fitting(min(limits), delta, [], rounds)
    return f"it costs epsilon {cost:.4g} of {min(limits):g}; {fit} of {len(rounds)} tasks would fit"
