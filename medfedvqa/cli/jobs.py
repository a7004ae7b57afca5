"""`medfedvqa jobs`: job folders for `nvflare job submit`, and the decision of a person of the hospital on a job."""

import json
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfedvqa.cli import options
from medfedvqa.cli.backbone import read_card
from medfedvqa.cli.options import JsonOption, SiteFile, config_of
from medfedvqa.cli.plugins import PluginOption, allow_plugins
from medfedvqa.cli.run import NO_CHOICES, Choices, with_job_options
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from medfedvqa.federation.approvals import Waiting
    from medfedvqa.federation.job import JobSpec, Terms
    from medfedvqa.federation.site_config import SiteConfig


@with_job_options()
def export_command(
    method: options.MethodArgument,
    out: Annotated[Path, typer.Option(help="The folder to write; must not exist.", callback=options.writable)],
    rounds: options.RoundsOption = None,
    local_epochs: options.EpochsOption = None,
    option: options.MethodOptions = None,
    data: Annotated[
        str, typer.Option(help="The data set that every site must have, by its reader's name, or 'any'.")
    ] = "any",
    backbone: Annotated[
        str, typer.Option(help="Name of the backbone that every site loads.", callback=options.checked_backbone)
    ] = "medclip2-slake",
    card: Annotated[
        Path | None, typer.Option(help="Shape card of a backbone in a local folder, by `medfedvqa backbone card`.")
    ] = None,
    questions: options.QuestionsOption = "closed",
    epsilon: options.EpsilonOption = None,
    dp: options.DPOption = None,
    choices: Choices = NO_CHOICES,
    start_from: options.StartFromOption = None,
    kit: Annotated[Path | None, typer.Option(help="Your administrator's kit, to make a job that runs once.")] = None,
    site: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="With --kit: a site that may take part; repeatable.")
    ] = None,
    days: Annotated[float, typer.Option(help="With --kit: days until the job expires.", min=0.01, max=31)] = 7.0,
    plugin: PluginOption = None,
) -> None:
    """Write a configuration-only job folder.

    With --kit and --site the job names its federation, its sites, an expiry and a nonce. Other sites do not receive it.
    Submitting signs it, and it runs once: jobs under differential privacy need that. Without --kit and --site, a site
    runs the folder as often a day as its policy allows.
    """
    from medfedvqa.federation.flare.recipe import export_job
    from medfedvqa.federation.shared_model import MODEL, SharedModel
    from medfedvqa.library.training_job import checked_job

    allow_plugins(plugin)
    job = {
        "method": method,
        "options": options.named_values(option or [], rounds=rounds, local_epochs=local_epochs),
        "data": data,
        "backbone": backbone,
        "split": {"questions": questions},
        "dp": options.named_values(dp or [], epsilon=epsilon) or None,
        **choices,
        **({"card": read_card(card)} if card else {}),
    }
    spec = checked_job(job)
    if start_from is not None:
        spec = SharedModel.read(start_from / MODEL).starting(spec)
    if kit or site:
        terms = fresh_terms(kit, site, days)
        if len(terms.sites) < spec.least_sites:
            raise ConfigError(
                f"the job needs at least {spec.least_sites} sites, and --site names {len(terms.sites)}: name more of "
                "them, or lower --min-sites"
            )
        spec = spec.model_copy(update={"terms": terms})
    export_job(spec, out)
    terminal = Terminal()
    _show_reads(terminal, spec)
    terminal.print(f"Submit it by: nvflare job submit -j {sentence(out)}", soft_wrap=True)


def _show_reads(terminal: Terminal, job: "JobSpec") -> None:
    """Print what the server can read of a site in this job, in a table that fits a terminal of 80 columns."""
    from rich import box
    from rich.table import Table

    from medfedvqa.federation.server_reads import COLUMNS, HEADING, server_reads

    table = Table(box=box.SIMPLE_HEAD, padding=0, show_lines=True)
    for column in (COLUMNS[0], *COLUMNS[3:]):
        table.add_column(column, overflow="fold", ratio=1)
    for row in server_reads(job):
        cells = [sentence(cell) for cell in row.cells]
        table.add_row("\n".join(cells[:3]), *cells[3:])
    terminal.print(HEADING, soft_wrap=True, highlight=False)
    terminal.print(table)


def fresh_terms(kit: Path | None, sites: list[str] | None, days: float) -> "Terms":
    """The terms of a fresh job. Raises `ConfigError`."""
    from medfedvqa.federation.job import Terms
    from medfedvqa.federation.job_signature import federation_of

    root = kit / "startup" / "rootCA.pem" if kit else None
    if root is None or not root.is_file() or not sites:
        raise ConfigError("a fresh job needs --kit, the folder of a startup kit, and each site's name by --site")
    try:
        return Terms.fresh(federation_of(root), tuple(sites), days)
    except ValueError:
        raise ConfigError("a site's name has letters, digits, '-', '_' and '.', and at most 63 characters") from None


JobName = Annotated[str, typer.Argument(help="A job's name, as `medfedvqa jobs pending` lists it.", show_default=False)]
Person = Annotated[str, typer.Option(help="Name of the person who decides, as in the key's line.")]
KeyFile = Annotated[Path, typer.Option("--key", help="The file of this person's key.")]


def pending_command(site: SiteFile, as_json: JsonOption = False) -> None:
    """List the jobs that wait for approval by a person of the site, and the decisions so far."""
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
        console.print("No job waits for a decision.")


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
    days: Annotated[float, typer.Option(help="Days for which the approval is valid.", min=0.01, max=366)] = 7.0,
) -> None:
    """Approve one run of a job, signed with your own key; its submitter then submits it again."""
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
    """Refuse a job, or withdraw its approval; a run of it stops at its next round."""
    from medfedvqa.federation.approvals import decide, waiting_job

    config = config_of(site)
    decide(config, waiting_job(config, name), "no", person, key, timedelta(days=1))
    Terminal().print("The job does not run here; if it runs already, it stops at its next round.")


def approver_command(
    person: Annotated[str, typer.Argument(help="The person's name, without blanks.", show_default=False)], key: KeyFile
) -> None:
    """Make a person's key, if the file is not there, and print the line for `approvers` in site.yml."""
    from audits import AuditKey

    typer.echo(str(AuditKey.at(key, person).public))


def _facts(config: "SiteConfig", waiting: "Waiting", job: "JobSpec") -> list[tuple[str, str]]:
    from medfedvqa.federation.approvals import forecast
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
    return [*facts, ("forecast", forecast(config, job))]


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
