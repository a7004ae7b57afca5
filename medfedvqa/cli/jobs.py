"""`medfedvqa jobs export`: job folders for `nvflare job submit`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfedvqa.cli import options
from medfedvqa.cli.backbone import read_card
from medfedvqa.cli.job_options import NO_CHOICES, Choices, with_job_options
from medfedvqa.cli.plugins import PluginOption, allow_plugins
from medfedvqa.cli.terminal import Terminal, sentence
from medfedvqa.errors import ConfigError

if TYPE_CHECKING:
    from medfedvqa.federation.job import JobSpec, Terms


@with_job_options()
def export_command(
    method: options.MethodArgument,
    out: Annotated[Path, typer.Option(help="The folder to write; must not exist.", callback=options.writable)],
    rounds: options.RoundsOption = None,
    local_epochs: options.EpochsOption = None,
    option: options.MethodOptions = None,
    data: Annotated[str, typer.Option(help="Reader that every site must hold, or 'any'.")] = "any",
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
    kit: Annotated[Path | None, typer.Option(help="Your administrator's kit: the job is then fresh.")] = None,
    site: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="With --kit: a site that may take part; repeatable.")
    ] = None,
    days: Annotated[float, typer.Option(help="With --kit: days until the job expires.", min=0.01, max=31)] = 7.0,
    plugin: PluginOption = None,
) -> None:
    """Write a configuration-only job folder.

    With --kit and --site the job names its federation, its sites, an expiry and a nonce. Other sites do not hear of it.
    Once it is submitted, and so signed, it runs once: jobs under differential privacy need that. Without them a site
    runs the folder as often a day as its policy says.
    """
    from medfedvqa.federation.flare.recipe import export_job
    from medfedvqa.library.job_options import checked_job

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
        raise ConfigError("a site's name has letters, digits, '-', '_' and '.', and no more than 63 of them") from None
