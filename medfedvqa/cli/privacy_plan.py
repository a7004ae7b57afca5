"""`medfedvqa privacy plan`: the epsilon that a job would cost."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from statistics import fmean
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
    from privacy.forecast import Pilot


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
    federation: Annotated[
        str | None,
        typer.Option(
            metavar="SITESxPATIENTS", help="What the noise would cost this many sites, each with this many patients."
        ),
    ] = None,
    pilot: Annotated[
        Path | None,
        typer.Option(help="A run without privacy, by which to say from how many patients joining pays."),
    ] = None,
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
    forecast = _forecast(job, planned, federation, pilot)
    if as_json:
        typer.echo(json.dumps(_record(planned, job.dp.delta) | {"forecast": forecast}, indent=2))
    else:
        _show(planned, job.dp.delta)
        for line in _forecast_words(forecast):
            Terminal().print(line, highlight=False)
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


def _forecast(
    job: "JobSpec", planned: list[tuple["DPEvent", ...]], federation: str | None, pilot: Path | None
) -> dict[str, Any] | None:
    """The forecast of `privacy.forecast` for a federation; None if none is given. Raises `ConfigError`."""
    from privacy.errors import AccountingError
    from privacy.forecast import kept, noise_over_signal, trained_numbers

    if federation is None:
        if pilot is not None:
            raise ConfigError("a pilot says nothing without the size of the federation: give --federation 10x100 too")
        return None
    size = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,6})", federation)
    if size is None:
        raise ConfigError("--federation is sites and patients in training at each, as 10x100")
    sites, patients = map(int, size.groups())
    numbers = trained_numbers(job.exchange())
    try:
        ratio = noise_over_signal(list(chain(*planned)), numbers, sites, patients)
    except AccountingError as error:
        raise ConfigError(str(error)) from None
    forecast = {
        "sites": sites,
        "patients": patients,
        "numbers": numbers,
        "noise_over_signal": ratio,
        "kept": kept(ratio),
    }
    if pilot is None:
        return forecast
    before = pilot_of(pilot)
    return forecast | {
        **asdict(before),
        "released": before.released(ratio),
        "patients_needed": before.patients_needed(ratio, patients),
    }


def pilot_of(run: Path) -> "Pilot":
    """The accuracies of a run, each the mean over its sites. Raises `ConfigError` for a run that does not give them."""
    from medfedvqa.library.run_results import Results
    from privacy.forecast import Pilot

    document = Results.read(run).document
    if document["dp"] is not None:
        raise ConfigError("the pilot was private itself: give the folder of a run without --epsilon")
    ways: list[list[float]] = []
    for site in document["sites"].values():
        majority, alone = site["baselines"]["majority"], site["baselines"]["alone"]
        if site["accuracy"] is None or majority is None or alone is None:
            raise ConfigError("the pilot does not say what each site reaches alone: run it with -O finish_epochs=1")
        ways.append([majority["accuracy"], alone["accuracy"], site["accuracy"]])
    return Pilot(*(fmean(way) for way in zip(*ways, strict=True)))


def _forecast_words(forecast: dict[str, Any] | None) -> Iterator[str]:
    """The forecast in sentences."""
    if forecast is None:
        return
    least, most = forecast["kept"]
    yield (
        f"{forecast['sites']} sites with {forecast['patients']} patients each train {forecast['numbers']:,} numbers. "
        f"The noise is {forecast['noise_over_signal']:.2g} times as long as the patients' steps can be. That leaves "
        f"{least:.0%} to {most:.0%} of what the sites gain together over the most frequent answer."
    )
    if "released" not in forecast:
        return
    low, high = forecast["released"]
    yield (
        f"In the pilot the most frequent answer is right in {forecast['majority']:.1%}, sites alone in "
        f"{forecast['alone']:.1%}, together in {forecast['together']:.1%}. The released model would be in {low:.1%} to "
        f"{high:.1%}."
    )
    if forecast["patients_needed"] is None:
        yield "Not worth it: in the pilot the sites were as good alone, even without noise."
        return
    worth = (
        "Worth it" if low > forecast["alone"] else "Not worth it" if high <= forecast["alone"] else "It may be worth it"
    )
    few, many = forecast["patients_needed"]
    yield f"{worth}: the released model beats training alone from {few:,} to {many:,} patients a site."


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
