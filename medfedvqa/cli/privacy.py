"""`medfedvqa privacy settings`, `spent` and `ledger`: what patients have spent, according to the site's ledger."""

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, fields
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from audits import read
from audits.log_files import segments
from medfedvqa.cli import options
from medfedvqa.cli.options import JsonOption, SiteFile, config_of, writable
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from audits import SitePolicy
    from medfedvqa.federation.job import JobSpec
    from medfedvqa.federation.site_config import SiteConfig
    from privacy import DPEvent, JobAccount, Ledger, PrivacyCost
    from privacy.forecast import Pilot
    from privacy.ledger_accounts import Account
    from privacy.withdrawn import CodeIdentity, Withdrawal

SPENT = ("epsilon", "RDP accountant", "PRV accountant", "GDP mu", "delta")
"""The columns of a cost. Mu is exact without sampling, and a central limit with it."""
HEADS, FEW = ((8, 96), (8, 48), (4, 24)), 0.4
"""Principal components of picture and question in the heads that a plan proposes, the largest first; and the ratio of
noise to signal up to which the larger one is proposed: at most a fifth of the gain is lost there."""


def settings_command(as_json: JsonOption = False) -> None:
    """List the settings of differential privacy with their defaults."""
    from privacy import DPSettings

    if as_json:
        typer.echo(json.dumps({field.name: field.default for field in fields(DPSettings)}, indent=2))
        return
    table = Table("setting", "default")
    for field in fields(DPSettings):
        table.add_row(field.name, json.dumps(field.default))
    Terminal().print(table)


def spent_command(site: SiteFile, as_json: JsonOption = False) -> None:
    """Show what every cohort of a site has spent and reserved, and which job spent what."""
    from medfedvqa.federation.job_budget import require_ledger

    config = config_of(site)
    require_ledger(config)
    accounts: tuple[Account, ...] = ()
    if config.ledger.is_dir():
        with _ledger(config) as ledger:
            accounts = ledger.accounts(config.policy.delta)
    withdrawn = _withdrawn(config, {job.job for account in accounts for job in account.jobs})
    if as_json:
        void = {job: withdrawal.sentence for job, withdrawal in withdrawn.items()}
        cohorts = [asdict(account) for account in accounts]
        typer.echo(json.dumps({"cohorts": cohorts, "withdrawn": void}, indent=2))
    else:
        _show_spent(config, accounts, withdrawn)


def _show_spent(config: "SiteConfig", accounts: "tuple[Account, ...]", withdrawn: "Mapping[str, Withdrawal]") -> None:
    console = Terminal()
    if not config.ledger.is_dir():
        console.print("No job under differential privacy has run here.")
    for account in accounts:
        console.print(f"[bold]cohort {plain(account.cohort[:16])}[/], {account.patients} patients", highlight=False)
        table = Table("", *SPENT)
        table.add_row("spent", *cells(account.spent))
        table.add_row("with what is reserved", *cells(account.authorised))
        console.print(table)
        if config.policy.epsilon_limit is not None:
            remaining = max(0.0, config.policy.epsilon_limit - account.authorised.epsilon)
            console.print(f"{remaining:.4g} left of {config.policy.epsilon_limit:g} allowed", highlight=False)
        console.print(_jobs(account.jobs))
    for job, withdrawal in withdrawn.items():
        console.print(
            f"[bold red]job {plain(job)} has no valid epsilon[/]: {sentence(withdrawal.sentence)}", highlight=False
        )


def ledger_command(
    site: SiteFile,
    export: Annotated[
        Path | None, typer.Option(help="Write all records to this new file, as JSON lines.", callback=writable)
    ] = None,
    import_: Annotated[
        Path | None,
        typer.Option("--import", help="Import the charges of an exported ledger, as to restore a lost one."),
    ] = None,
    take_over: Annotated[
        Path | None, typer.Option(help="Import the charges of the ledger in this folder, which this site used before.")
    ] = None,
    free: Annotated[
        str | None, typer.Option(help="Free the budget that this job reserved for tasks that never began.")
    ] = None,
) -> None:
    """Check a site's ledger against itself and the audit log; export it, import one, or free a dead job's budget."""
    from medfedvqa.federation.job_budget import check_ledger, require_ledger, store_of
    from medfedvqa.ingest.ledger_binding import check_binding

    config, console = config_of(site), Terminal()
    if import_ is None and take_over is None:
        require_ledger(config)
    with _ledger(config, shared=take_over is not None) as ledger:
        if import_ is not None:
            console.print(f"{ledger.import_(import_)} records were imported")
        if take_over is not None:
            console.print(f"{_take_over(config, ledger, take_over)} records were imported")
        if free is not None:
            console.print(f"{ledger.free(free)} tasks of the job were freed")
        ledger.verify()
        if segments(config.audit):
            check_ledger(ledger, config.audit)
        if store := store_of(config):
            check_binding(store, config.ledger)
        seq, head = ledger.head()
        console.print(f"[green]intact[/], {seq} records, head {head[:16]}", highlight=False)
        if export is not None:
            ledger.export(export)


def _take_over(config: "SiteConfig", ledger: "Ledger", folder: Path) -> int:
    """Copy the charges of a site's earlier ledger to the ledger of its store; returns the number of records."""
    from medfedvqa.federation.job_budget import store_of
    from medfedvqa.ingest.ledger_binding import note_head
    from medfedvqa.ingest.store import read_store
    from privacy import Ledger
    from privacy.ledger_accounts import read_folder

    store = store_of(config)
    if store is None:
        raise ConfigError("only a store's charges can be taken over, but this data set is not a store: use --import")
    if read_folder(folder) is None:
        raise ConfigError("that folder has no ledger: give the folder that site.yml named before")
    _, images, _ = read_store(store)
    with closing(Ledger(folder, config.name)) as earlier:
        written = ledger.take_over(earlier, {image.patient for image in images.values()})
    note_head(store, ledger)
    return written


def _withdrawn(config: "SiteConfig", jobs: Collection[str]) -> "dict[str, Withdrawal]":
    """The jobs that ran under a withdrawn version, according to the audit log."""
    from privacy.withdrawn import WITHDRAWN, identities, withdrawal_of, withdrawals

    extra_list = config.ledger / WITHDRAWN
    listed = withdrawals(extra_list if extra_list.exists() else None)
    codes_of: dict[str, set[CodeIdentity]] = {}
    for entry in read(config.audit) if segments(config.audit) else ():
        if entry.job is not None and entry.job in jobs:
            codes_of.setdefault(entry.job, set()).update(identities(entry.code_version, entry.code_digest, entry.code))
    return {job: cause for job, codes in codes_of.items() if (cause := withdrawal_of(codes, listed))}


def _jobs(accounts: "tuple[JobAccount, ...]") -> Table:
    several = len({job.site for job in accounts}) > 1
    table = Table("job", *(["site"] if several else []), "method", "epsilon by itself", "tasks reserved", "state")
    for job in accounts:
        state = f"{job.state}, VOID: repeatable noise" if job.void else str(job.state)
        where = [plain(job.site)] if several else []
        outside = f", {job.epsilon_outside:.4f} if no site colludes" if job.epsilon_outside < job.epsilon else ""
        epsilon = f"{job.epsilon:.4f}{outside}"
        table.add_row(plain(job.job), *where, plain(job.method), epsilon, str(job.reserved), state)
    return table


def cells(cost: "PrivacyCost") -> list[str]:
    """The row of a table with the columns `SPENT`."""
    return [f"{cost.epsilon:.4f}", f"{cost.rdp:.4f}", f"{cost.prv:.4f}", f"{cost.mu:.4f}", f"{cost.delta:g}"]


@contextmanager
def _ledger(config: "SiteConfig", shared: bool = False) -> "Iterator[Ledger]":
    """The site's ledger; with `shared` it is bound to the site's store, as by the site's next job."""
    from medfedvqa.federation.job_budget import ledger_of, look_into

    if not config.ledger.parent.is_dir():
        raise ConfigError("the folder that should hold the ledger does not exist: check 'ledger' in site.yml")
    with closing(ledger_of(config) if shared else look_into(config)) as ledger:
        yield ledger


def plan_command(
    method: options.MethodArgument,
    rounds: options.RoundsOption = None,
    local_epochs: options.EpochsOption = None,
    option: options.MethodOptions = None,
    epsilon: options.EpsilonOption = None,
    dp: options.DPOption = None,
    secagg: Annotated[
        Literal["masks", "crypten"] | None,
        typer.Option(help="Plan the job on shares, as `medfedvqa run --secagg` runs it."),
    ] = None,
    site: Annotated[Path | None, typer.Option(help="A site.yml, to check the job against its policy.")] = None,
    federation: Annotated[
        str | None,
        typer.Option(
            metavar="SITESxPATIENTS",
            help="Forecast the cost of noise for this many sites with this many patients each.",
        ),
    ] = None,
    pilot: Annotated[
        Path | None,
        typer.Option(help="A run without privacy, to estimate how many patients a federation needs to pay off."),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show what a job would cost each patient, before anything runs; exit code 1 if the site would refuse it."""
    from medfedvqa.library.training_job import checked_job

    private = options.named_values(dp or [], epsilon=epsilon) or None
    method_options = options.named_values(option or [], rounds=rounds, local_epochs=local_epochs)
    job = checked_job({"method": method, "options": method_options, "dp": private, "secagg": secagg or False})
    if job.dp is None:
        raise ConfigError("a job without differential privacy has no epsilon: give --epsilon, or --dp noise=...")
    planned = [task.events for task in job.build().plan()]
    forecast = _forecast(job, planned, federation, pilot)
    if as_json:
        typer.echo(json.dumps(_plan_record(planned, job.dp.delta) | {"forecast": forecast}, indent=2))
    else:
        _show_plan(planned, job.dp.delta)
        for line in _forecast_words(forecast):
            Terminal().print(line, highlight=False)
    if site is not None:
        policy = config_of(site).policy
        _check_policy(policy, job, [tuple(e.against(policy.colluders or 0) for e in events) for events in planned])
        if not as_json:
            allowed = (
                "The policy allows it to a cohort that has spent nothing; `privacy spent` shows the remaining budget."
            )
            Terminal().print(allowed)


def _milestones(tasks: int) -> list[int]:
    """The numbers of tasks after which the cost is shown: the first, each quarter, the last."""
    return sorted({1, -(-tasks // 4), -(-tasks // 2), tasks})


def _plan_record(planned: list[tuple["DPEvent", ...]], delta: float) -> dict[str, Any]:
    from privacy import merge_steps, spent

    costs = [
        {"tasks": done, **asdict(spent(list(chain(*planned[:done])), delta))} for done in _milestones(len(planned))
    ]
    mechanisms = [event.to_dict() for event in merge_steps(chain(*planned))]
    outside = spent([event.against(0) for event in chain(*planned)], delta).epsilon
    return {"tasks": len(planned), "mechanisms": mechanisms, "costs": costs, "epsilon_outside": outside}


def _show_plan(planned: list[tuple["DPEvent", ...]], delta: float) -> None:

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
            raise ConfigError("--pilot also needs the size of the planned federation, such as --federation 10x100")
        return None
    size = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,6})", federation)
    if size is None:
        raise ConfigError("--federation must be sites x training patients per site, such as 10x100")
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
        "smaller_head": _smaller_head(job, numbers, ratio),
    }
    if pilot is None:
        return forecast
    before = pilot_of(pilot)
    return forecast | {
        **asdict(before),
        "released": before.released(ratio),
        "patients_needed": before.patients_needed(ratio, patients),
    }


def _smaller_head(job: "JobSpec", numbers: int, ratio: float) -> dict[str, Any] | None:
    """The largest head of principal components whose noise is at most `FEW` times as long as the patients' steps can
    be, or else the smallest one; None where the job has no smaller head of this kind. `ratio`: that of its `numbers`.
    """
    from privacy.forecast import trained_numbers

    found: dict[str, Any] | None = None
    for pictures, questions in HEADS:
        head: dict[str, Any] = {"tuning": "classifier", "fusion": "components", "question_input": "tower"}
        head |= {"picture_components": pictures, "question_components": questions}
        try:
            fewer = trained_numbers(job.model_copy(update={"options": {**job.options, **head}}).exchange())
        except ConfigError:
            return None
        less = ratio * math.sqrt(fewer / numbers)
        if fewer < numbers:
            found = {"options": head, "numbers": fewer, "noise_over_signal": less}
            if less <= FEW:
                break
    return found


def pilot_of(run: Path) -> "Pilot":
    """The accuracies of a run, each the mean over its sites. Raises `ConfigError` for a run that does not give them."""
    from medfedvqa.library.run_results import Results
    from privacy.forecast import Pilot

    document = Results.read(run).document
    if document["dp"] is not None:
        raise ConfigError("the pilot was a private run: give the folder of a run without --epsilon")
    ways: list[list[float]] = []
    for site in document["sites"].values():
        majority, alone = site["baselines"]["majority"], site["baselines"]["alone"]
        if site["accuracy"] is None or majority is None or alone is None:
            raise ConfigError("the pilot lacks the sites' accuracies alone: run it with -O finish_epochs=1")
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
    if smaller := forecast["smaller_head"]:
        options = " ".join(f"-O {name}={value}" for name, value in smaller["options"].items())
        yield (
            f"A head of principal components would train {smaller['numbers']:,} numbers, with noise "
            f"{smaller['noise_over_signal']:.2g} times as long: {options}. It can answer less without noise: try both."
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
