"""`medfedvqa privacy plan`: the epsilon that a job would cost."""

import json
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from medfedvqa.cli import options
from medfedvqa.cli.sites import config_of
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from audits import SitePolicy
    from medfedvqa.federation.job import JobSpec
    from privacy import DPEvent


def plan_command(
    method: options.MethodArgument,
    rounds: options.RoundsOption = None,
    local_epochs: options.EpochsOption = None,
    option: options.MethodOptions = None,
    epsilon: options.EpsilonOption = None,
    dp: options.DPOption = None,
    secagg: Annotated[
        Literal["masks", "crypten"] | None, typer.Option(help="The job on shares, as `medfedvqa run --secagg` runs it.")
    ] = None,
    site: Annotated[Path | None, typer.Option(help="A site.yml, whose policy has to allow the job.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """What a job would cost each patient, before anything runs; exit code 1 if the site would refuse it."""
    from medfedvqa.library.job_options import checked_job

    private = options.named_values(dp or [], epsilon=epsilon) or None
    method_options = options.named_values(option or [], rounds=rounds, local_epochs=local_epochs)
    job = checked_job({"method": method, "options": method_options, "dp": private, "secagg": secagg or False})
    if job.dp is None:
        raise ConfigError("a job without differential privacy has no epsilon: give --epsilon, or --dp noise=...")
    planned = [task.events for task in job.build().plan()]
    if as_json:
        typer.echo(json.dumps(_record(planned, job.dp.delta), indent=2))
    else:
        _show(planned, job.dp.delta)
    if site is not None:
        policy = config_of(site).policy
        _check_policy(policy, job, [tuple(e.against(policy.colluders or 0) for e in events) for events in planned])
        if not as_json:
            allowed = "The policy allows it to a cohort that has spent nothing; `privacy spent` tells what is left."
            Terminal().print(allowed)


def _milestones(tasks: int) -> list[int]:
    """The numbers of tasks after which the cost is shown: the first, each quarter, the last."""
    return sorted({1, -(-tasks // 4), -(-tasks // 2), tasks})


def _record(planned: list[tuple["DPEvent", ...]], delta: float) -> dict[str, Any]:
    from dataclasses import asdict

    from privacy import merge_steps, spent

    costs = [
        {"tasks": done, **asdict(spent(list(chain(*planned[:done])), delta))} for done in _milestones(len(planned))
    ]
    mechanisms = [event.to_dict() for event in merge_steps(chain(*planned))]
    outside = spent([event.against(0) for event in chain(*planned)], delta).epsilon
    return {"tasks": len(planned), "mechanisms": mechanisms, "costs": costs, "epsilon_outside": outside}


def _show(planned: list[tuple["DPEvent", ...]], delta: float) -> None:
    from rich.table import Table

    from medfedvqa.cli.privacy import SPENT, cells
    from privacy import merge_steps, spent

    console = Terminal()
    for event in merge_steps(chain(*planned)):
        console.print(
            f"{sentence(event.noise_words)} on each {plain(event.applied_to)}, {event.steps} times", highlight=False
        )
    table = Table("after task", *SPENT)
    for done in _milestones(len(planned)):
        cost = spent(list(chain(*planned[:done])), delta)
        table.add_row(f"{done} of {len(planned)}", *cells(cost))
    outside = [event.against(0) for event in chain(*planned)]
    if any(event.observer for event in outside):
        table.add_row("all, if no site colludes", *cells(spent(outside, delta)))
    console.print(table)


def _check_policy(policy: "SitePolicy", job: "JobSpec", planned: list[tuple["DPEvent", ...]]) -> None:
    """Raises `ConfigError` with the reason why the site would refuse the job."""
    assert job.dp is not None
    refused = policy.refusal(job.offer())
    refusal = refused[1] if refused else _over(policy, planned, job.dp.delta)
    if refusal:
        raise ConfigError(f"the site would refuse this job: {refusal}")


def _over(policy: "SitePolicy", planned: list[tuple["DPEvent", ...]], delta: float) -> str | None:
    """Why a job exceeds a limit of the policy by itself, or None."""
    from privacy import fitting, spent

    limits = [limit for limit in (policy.epsilon_limit, policy.max_epsilon_per_job) if limit is not None]
    cost = spent(list(chain(*planned)), delta).epsilon
    if not limits or cost <= min(limits):
        return None
    fit = fitting(min(limits), delta, [], planned)
    return f"it costs epsilon {cost:.4g} of {min(limits):g}; {fit} of {len(planned)} tasks would fit"
