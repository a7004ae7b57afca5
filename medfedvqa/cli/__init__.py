"""The `medfedvqa` command."""

import sys

import typer

from medfedvqa.cli import attention, audit, benchmark, doctor, identity, ingest, jobs, kit, pretrain, privacy, run
from medfedvqa.cli.terminal import Terminal, sentence
from medfedvqa.federation.failures import ACTIONABLE

app = typer.Typer(
    name="medfedvqa",
    help="Federated learning for medical visual question answering, with every release logged.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(run.demo)
app.command()(run.run)
app.command()(run.methods)
app.command()(benchmark.benchmark)
app.command()(attention.attention)
app.command()(ingest.ingest)
app.command()(pretrain.pretrain)
app.command()(identity.identity)
app.command()(doctor.doctor)
app.add_typer(jobs.app, name="jobs")
app.add_typer(kit.app, name="kit")
app.add_typer(audit.app, name="audit")
app.add_typer(privacy.app, name="privacy")


def main() -> None:
    """Run the command; an error that a user can act on is one sentence and exit code 1."""
    try:
        app()
    except ACTIONABLE as error:
        Terminal(stderr=True).print(f"[bold red]Error:[/] {sentence(error)}", highlight=False, soft_wrap=True)
        sys.exit(1)
