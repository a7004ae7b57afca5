"""The `medfedvqa` command."""

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from medfedvqa.cli.lazy import NAMES_OF_HELP, Source, group_of
from medfedvqa.cli.missing import SENTENCE, is_missing_extra
from medfedvqa.errors import BackboneError

COMMANDS = {
    "demo": Source("demo", "demo"),
    "run": Source("run", "run"),
    "join": Source("join", "join"),
    "methods": Source("methods", "methods"),
    "plugins": Source("plugins", "plugins_command"),
    "benchmark": Source("benchmark", "benchmark"),
    "tune": Source("tune", "tune"),
    "study": Source("study", "study"),
    "reproduce": Source("reproduce", "reproduce", {"list": Source("reproduce", "list_command")}),
    "answer": Source("answer", "answer"),
    "export": Source("export", "export"),
    "attention": Source("attention", "attention"),
    "similarity": Source("similarity", "similarity"),
    "contribution": Source("contribution", "contribution"),
    "ingest": Source(
        "ingest",
        "ingest",
        {
            "check": Source("ingest_check", "check"),
            "fetch": Source("ingest_fetch", "fetch"),
            "review": Source("ingest_review", "review"),
            "slices": Source("ingest_slices", "slices"),
            "withdraw": Source("ingest_withdraw", "withdraw"),
        },
    ),
    "pretrain": Source("pretrain", "pretrain"),
    "probe": Source("probe", "probe"),
    "identity": Source("identity", "identity"),
    "doctor": Source("doctor", "doctor"),
    "status": Source("status", "status"),
    "backup": Source("backup", "backup"),
    "restore": Source("restore", "restore"),
    "rotate": Source("rotate", "rotate"),
}
"""Commands outside of groups."""
JOBS = {"export": Source("jobs", "export_command")}
KIT = {
    "prepare": Source("kit", "prepare_command"),
    "root": Source("kit", "root_command"),
    "service": Source("kit", "service_command"),
    "containers": Source("kit", "containers_command"),
}
PEERS = {
    "add": Source("peers", "add_command"),
    "verify": Source("peers", "verify_command"),
}
AUDIT = {
    "verify": Source("audit", "verify_command"),
    "show": Source("audit", "show_command"),
    "proof": Source("audit", "proof_command"),
    "check": Source("audit", "check_command"),
    "key": Source("audit_site", "key_command"),
    "publish": Source("audit_site", "publish_command"),
    "expire": Source("audit_site", "expire_command"),
    "attack": Source("attack", "attack_command"),
    "controls": Source("attack", "controls_command"),
    "export": Source("audit_export", "export_command"),
    "rerun": Source("audit_rerun", "rerun_command"),
    "ui": Source("audit_ui", "ui_command"),
}
PRIVACY = {
    "report": Source("report", "report_command"),
    "verify-report": Source("report_verify", "verify_command"),
    "join-reports": Source("report", "join_command"),
    "verify-joined": Source("report_verify", "verify_joined_command"),
    "registry-entry": Source("report_verify", "registry_command"),
    "settings": Source("privacy", "settings_command"),
    "plan": Source("privacy_plan", "plan_command"),
    "spent": Source("privacy", "spent_command"),
    "ledger": Source("privacy", "ledger_command"),
}
DATA = {"check": Source("data_check", "check_command")}
BACKBONE = {
    "list": Source("backbone", "list_command"),
    "check": Source("backbone", "check_command"),
    "card": Source("backbone", "card_command"),
}
GROUPS = {
    "jobs": (JOBS, "Job folders for `nvflare job submit`."),
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
        from medfedvqa.cli.usage import explained

        code = _failed(explained(error), 2)
    except BackboneError as error:
        code = _failed(str(error), 1)
    except Exception as error:
        # The modules that define the errors take longer to import than most commands take to run.
        from medfedvqa.cli.usage import place_of
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
