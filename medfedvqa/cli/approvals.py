"""`medfedvqa jobs pending`, `show`, `approve`, `refuse`, `approver`: a person of the hospital decides on a job."""

import json
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfedvqa.cli.options import JsonOption, SiteFile, config_of
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import DataError

if TYPE_CHECKING:
    from medfedvqa.federation.approvals import Waiting
    from medfedvqa.federation.job import JobSpec
    from medfedvqa.federation.site_config import SiteConfig

JobName = Annotated[str, typer.Argument(help="A job's name, as `medfedvqa jobs pending` lists it.", show_default=False)]
Person = Annotated[str, typer.Option(help="Who decides: the name in the key's line, without blanks.")]
KeyFile = Annotated[Path, typer.Option("--key", help="The file of this person's own key.")]


def pending_command(site: SiteFile, as_json: JsonOption = False) -> None:
    """List the jobs that were refused until a person of the site decides, and what was decided of each."""
    from medfedvqa.federation.approvals import waiting_jobs

    config = config_of(site)
    jobs = waiting_jobs(config)
    if as_json:
        typer.echo(json.dumps({"jobs": [_record(config, job) for job in jobs]}, indent=2))
        return
    console = Terminal()
    for job in jobs:
        console.print(
            f"[bold]{job.name}[/]  {plain(str(job.job['method']))}, asked {job.asked:%Y-%m-%d %H:%M} UTC by "
            f"{plain(job.submitter[:16] or 'this machine')}: {sentence(_state(config, job))}",
            highlight=False,
            soft_wrap=True,
        )
    if not jobs:
        console.print("No job waits.")


def show_command(name: JobName, site: SiteFile) -> None:
    """Show on one page what a waiting job would do: who asks, what leaves, and what it costs a patient."""
    from rich import box
    from rich.table import Table

    from medfedvqa.federation.approvals import waiting_job
    from medfedvqa.federation.job import JobSpec
    from medfedvqa.federation.server_reads import COLUMNS, server_reads

    config = config_of(site)
    waiting = waiting_job(config, name)
    job, console = JobSpec.from_dict(waiting.job), Terminal()
    for label, text in _facts(config, waiting, job):
        console.print(f"[bold]{label}[/]: {sentence(text)}", highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_lines=True)
    for column in (*COLUMNS[:3], COLUMNS[4]):
        table.add_column(column, overflow="fold", ratio=1)
    for row in server_reads(job, config.policy):
        cells = [sentence(cell) for cell in row.cells]
        table.add_row(*cells[:3], cells[4])
    console.print(table)
    console.print(f"[bold]decided[/]: {sentence(_state(config, waiting))}", highlight=False, soft_wrap=True)


def approve_command(
    name: JobName,
    site: SiteFile,
    person: Person,
    key: KeyFile,
    days: Annotated[float, typer.Option(help="Days for which the yes is valid, from now on.", min=0.01, max=366)] = 7.0,
) -> None:
    """Say yes to one run of a job, signed with your own key; its submitter then submits it again."""
    from medfedvqa.federation.approvals import decide, waiting_job

    config = config_of(site)
    made = decide(config, waiting_job(config, name), "yes", person, key, timedelta(days=days))
    Terminal().print(
        f"Permit [bold]{made.permit}[/]: one run until {made.until:%Y-%m-%d %H:%M} UTC. Ask the submitter to send the "
        "job again.",
        highlight=False,
        soft_wrap=True,
    )


def refuse_command(name: JobName, site: SiteFile, person: Person, key: KeyFile) -> None:
    """Say no to a job, or withdraw a yes; a run of it stops at its next round."""
    from medfedvqa.federation.approvals import decide, waiting_job

    config = config_of(site)
    decide(config, waiting_job(config, name), "no", person, key, timedelta(days=1))
    Terminal().print("The job does not run here, and a run of it stops at its next round.")


def approver_command(
    person: Annotated[str, typer.Argument(help="The person's name, without blanks.", show_default=False)], key: KeyFile
) -> None:
    """Make a person's key, if the file is not there, and print the line for `approvers` in site.yml."""
    from audits import AuditKey

    typer.echo(str(AuditKey.at(key, person).public))


def _facts(config: "SiteConfig", waiting: "Waiting", job: "JobSpec") -> list[tuple[str, str]]:
    from medfedvqa.federation.job_budget import look_into
    from medfedvqa.version import code_digest
    from privacy import spent

    facts = [
        ("job", f"{waiting.name}, definition {waiting.definition}"),
        ("method", f"{job.method}, on {job.data} data, backbone {job.backbone}"),
        ("options", ", ".join(f"{name}={value}" for name, value in sorted(job.options.items())) or "the defaults"),
        ("submitted by", waiting.submitter or "this machine"),
        (
            "valid",
            f"until {job.terms.expires:%Y-%m-%d %H:%M} UTC, for {', '.join(job.terms.sites)}"
            if job.terms
            else "without an end: it names no sites and no expiry",
        ),
        ("aggregation", "on shares" if job.secagg else "in clear at the server"),
        ("code", f"medfedvqa {code_digest()}"),
    ]
    if job.dp is None:
        return [*facts, ("differential privacy", "none: nothing bounds what can be learned of a patient")]
    cost = spent([event for task in job.build().plan() for event in task.events], job.dp.delta)
    facts.append(("differential privacy", f"epsilon {cost.epsilon:.4g} for each patient, at delta {job.dp.delta:g}"))
    if (limit := config.policy.epsilon_limit) is not None:
        before = 0.0
        if config.ledger.is_dir():
            with closing(look_into(config)) as ledger:
                before = ledger.together(config.policy.delta, reserved=True).epsilon
        facts.append(("budget", f"{before:.4g} of {limit:g} are spent or reserved before this job"))
    return [*facts, ("forecast", _forecast(config, job))]


def _forecast(config: "SiteConfig", job: "JobSpec") -> str:
    """A sentence on what the noise would leave of the gain if all sites were like this one. Counts its patients."""
    from medfedvqa.data import load_site
    from privacy.errors import AccountingError
    from privacy.forecast import kept, noise_over_signal, trained_numbers

    place, method = config.data, job.build()
    try:
        answers = method.answers_of(place.answers)
        train = load_site(place.reader, place.root, place.organ, job.split, job.seed, answers).train
        sites, patients = len(job.terms.sites) if job.terms else job.least_sites, len({*train.patients.tolist()})
        events = [event for task in method.plan() for event in task.events]
        ratio = noise_over_signal(events, trained_numbers(job.exchange()), sites, patients)
    except (DataError, AccountingError) as error:
        return f"none: {error}"
    least, most = kept(ratio)
    return (
        f"with {sites} sites like this one, which has {patients} patients in training, the noise is {ratio:.2g} times "
        f"as long as the patients' steps can be: {least:.0%} to {most:.0%} of what the sites gain together is left"
    )


def _state(config: "SiteConfig", job: "Waiting") -> str:
    from medfedvqa.federation.approvals import decisions_on

    made = decisions_on(config, job.definition, job.submitter)
    if not made:
        return "nobody has decided"
    last = made[-1]
    if last.answer == "no":
        return f"no, by {last.person}"
    return f"yes, by {last.person}, permit {last.permit}, until {last.until:%Y-%m-%d %H:%M} UTC"


def _record(config: "SiteConfig", job: "Waiting") -> dict[str, object]:
    return {
        "name": job.name,
        "definition": job.definition,
        "submitter": job.submitter,
        "method": job.job["method"],
        "asked": job.asked.isoformat(),
        "state": _state(config, job),
    }
