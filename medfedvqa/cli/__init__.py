"""The `medfedvqa` command."""

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from medfedvqa.cli.lazy import NAMES_OF_HELP, SENTENCE, CommandSource, explained, group_of, is_missing_extra, place_of
from medfedvqa.errors import BackboneError

COMMANDS = {
    "demo": CommandSource("demo", "demo"),
    "run": CommandSource("run", "run"),
    "join": CommandSource("join", "join"),
    "methods": CommandSource("methods", "methods"),
    "plugins": CommandSource("plugins", "plugins_command"),
    "benchmark": CommandSource("benchmark", "benchmark"),
    "tune": CommandSource("study", "tune"),
    "study": CommandSource("study", "study"),
    "reproduce": CommandSource("reproduce", "reproduce", {"list": CommandSource("reproduce", "list_command")}),
    "answer": CommandSource("answer", "answer"),
    "export": CommandSource("answer", "export"),
    "attention": CommandSource("attention", "attention"),
    "similarity": CommandSource("attention", "similarity"),
    "contribution": CommandSource("answer", "contribution"),
    "groups": CommandSource("answer", "groups"),
    "ingest": CommandSource(
        "ingest",
        "ingest",
        {
            "check": CommandSource("ingest", "check"),
            "fetch": CommandSource("ingest_images", "fetch"),
            "review": CommandSource("ingest", "review"),
            "slices": CommandSource("ingest_images", "slices"),
            "withdraw": CommandSource("ingest", "withdraw"),
        },
    ),
    "pretrain": CommandSource("pretrain", "pretrain"),
    "probe": CommandSource("pretrain", "probe"),
    "identity": CommandSource("keys", "identity"),
    "doctor": CommandSource("doctor", "doctor"),
    "status": CommandSource("doctor", "status"),
    "backup": CommandSource("backup", "backup"),
    "restore": CommandSource("backup", "restore"),
    "rotate": CommandSource("keys", "rotate"),
}
"""Commands outside of groups."""
JOBS = {
    "export": CommandSource("jobs", "export_command"),
    "pending": CommandSource("jobs", "pending_command"),
    "show": CommandSource("jobs", "show_command"),
    "approve": CommandSource("jobs", "approve_command"),
    "refuse": CommandSource("jobs", "refuse_command"),
    "approver": CommandSource("jobs", "approver_command"),
}
KIT = {
    "prepare": CommandSource("kit", "prepare_command"),
    "root": CommandSource("kit", "root_command"),
    "service": CommandSource("kit", "service_command"),
    "containers": CommandSource("kit", "containers_command"),
}
PEERS = {
    "add": CommandSource("keys", "add_command"),
    "verify": CommandSource("keys", "verify_command"),
}
AUDIT = {
    "verify": CommandSource("audit", "verify_command"),
    "show": CommandSource("audit", "show_command"),
    "proof": CommandSource("audit", "proof_command"),
    "check": CommandSource("audit", "check_command"),
    "receipt": CommandSource("audit_site", "receipt_command"),
    "key": CommandSource("audit_site", "key_command"),
    "publish": CommandSource("audit_site", "publish_command"),
    "expire": CommandSource("audit_site", "expire_command"),
    "witness": CommandSource("audit_site", "witness_command"),
    "serve-witness": CommandSource("audit_site", "serve_witness_command"),
    "attack": CommandSource("attack", "attack_command"),
    "controls": CommandSource("attack", "controls_command"),
    "neighbours": CommandSource("attack", "neighbours_command"),
    "export": CommandSource("audit", "export_command"),
    "curves": CommandSource("audit", "curves_command"),
    "rerun": CommandSource("attack", "rerun_command"),
    "ui": CommandSource("audit", "ui_command"),
}
PRIVACY = {
    "report": CommandSource("report", "report_command"),
    "verify-report": CommandSource("report", "verify_command"),
    "join-reports": CommandSource("report", "join_command"),
    "verify-joined": CommandSource("report", "verify_joined_command"),
    "registry-entry": CommandSource("report", "registry_command"),
    "settings": CommandSource("privacy", "settings_command"),
    "plan": CommandSource("privacy", "plan_command"),
    "spent": CommandSource("privacy", "spent_command"),
    "ledger": CommandSource("privacy", "ledger_command"),
}
DATA = {"check": CommandSource("data_check", "check_command")}
BACKBONE = {
    "list": CommandSource("backbone", "list_command"),
    "check": CommandSource("backbone", "check_command"),
    "card": CommandSource("backbone", "card_command"),
}
GROUPS = {
    "jobs": (JOBS, "Job folders for `nvflare job submit`, and approval of jobs at a site."),
    "data": (DATA, "Public data sets: what a folder holds, before any training."),
    "backbone": (BACKBONE, "Pretrained models: which load, and their shapes for servers and jobs."),
    "kit": (KIT, "FLARE startup kits: those of the dashboard, keys that stay, and kits that run as services."),
    "peers": (PEERS, "Other sites' keys for secure aggregation: pinned, and compared by phone."),
    "audit": (AUDIT, "What left each site, and whether its log is whole."),
    "privacy": (PRIVACY, "What jobs cost, and what each site has spent of its patients' privacy."),
}

app = typer.Typer(
    name="medfedvqa",
    cls=group_of(COMMANDS),
    context_settings=NAMES_OF_HELP,
    help="Federated learning for medical visual question answering, with every release logged.",
    pretty_exceptions_enable=False,
)
for _name, (_commands, _help) in GROUPS.items():
    app.add_typer(typer.Typer(cls=group_of(_commands), context_settings=NAMES_OF_HELP, help=_help), name=_name)


def show_version(flag: bool) -> None:
    """Prints the version and ends the command, if the flag is set."""
    if flag:
        from medfedvqa.version import code_version

        typer.echo(f"medfedvqa {code_version()}")
        raise typer.Exit


@app.callback()
def options_of_all(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the name of a command."""


def main() -> None:
    """Run the command. An error that a user can act on is one sentence and exit code 1, or 2 for a wrong command."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 shows the number of a character that it lacks.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=False, prog_name="medfedvqa")
    except typer.Abort:
        code = _failed("the command was aborted", 1)
    except typer.TyperException as error:
        code = _failed(explained(error), 2)
    except BackboneError as error:
        code = _failed(str(error), 1)
    except Exception as error:
        # The modules that define the errors take longer to import than most commands take to run.
        from medfedvqa.federation.error_codes import ACTIONABLE, is_full_disk

        if is_missing_extra(error):
            code = _failed(SENTENCE, 1)
        elif is_full_disk(error):
            code = _failed("no space is left on the disk: free some, or choose another place", 1)
        elif isinstance(error, ACTIONABLE):
            code = _failed(str(error), 1)
        elif isinstance(error, OSError) and (place := place_of(error)):
            code = _failed(place, 1)
        else:
            raise
    sys.exit(code)


def _failed(text: str, code: int) -> int:
    """Prints why the command failed, and returns the exit code."""
    from medfedvqa.cli.terminal import Terminal, sentence

    Terminal(stderr=True).print(f"[bold red]Error:[/] {sentence(text)}", highlight=False, soft_wrap=True)
    return code
