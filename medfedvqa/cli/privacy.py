"""`medfedvqa privacy settings`, `spent` and `ledger`: what patients have spent, according to the site's ledger."""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from audits import read
from audits.log_files import segments
from medfedvqa.cli.options import JsonOption, writable
from medfedvqa.cli.sites import SiteFile, config_of
from medfedvqa.cli.terminal import Terminal, plain, sentence
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from medfedvqa.federation.site_config import SiteConfig
    from privacy import JobAccount, Ledger, PrivacyCost
    from privacy.ledger_accounts import Account
    from privacy.withdrawn import CodeIdentity, Withdrawal

SPENT = ("epsilon", "RDP accountant", "PRV accountant", "GDP mu", "delta")
"""The columns of a cost. Mu is exact without sampling, and a central limit with it."""


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
    """What every cohort of a site has spent and reserved, and which job spent what."""
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
        Path | None, typer.Option("--import", help="Take over what an exported ledger charged; restores an empty one.")
    ] = None,
    take_over: Annotated[
        Path | None, typer.Option(help="Take over the charges of this folder's ledger, which this site had before.")
    ] = None,
    free: Annotated[str | None, typer.Option(help="Give back what this job reserved and never began.")] = None,
) -> None:
    """Check a site's ledger against itself and against the audit log; export, import, or free a dead job's share."""
    from medfedvqa.federation.job_budget import check_ledger, require_ledger, store_of
    from medfedvqa.ingest.ledger_binding import check_binding

    config, console = config_of(site), Terminal()
    if import_ is None and take_over is None:
        require_ledger(config)
    with _ledger(config, shared=take_over is not None) as ledger:
        if import_ is not None:
            console.print(f"{ledger.import_(import_)} records were taken over")
        if take_over is not None:
            console.print(f"{_take_over(config, ledger, take_over)} records were taken over")
        if free is not None:
            console.print(f"{ledger.free(free)} tasks of the job were given back")
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
    from privacy.ledger_folder import read_folder

    store = store_of(config)
    if store is None:
        raise ConfigError("charges are taken over for the patients of a store, and this data set is none: use --import")
    if read_folder(folder) is None:
        raise ConfigError("there is no ledger to take over in that folder: give the folder that site.yml named before")
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
