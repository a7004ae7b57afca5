"""The `medfedvqa` command."""

import sys
from typing import Annotated

import typer

from medfedvqa.cli.lazy import NAMES_OF_HELP, Source, group_of
from medfedvqa.cli.missing import SENTENCE, is_missing_extra

COMMANDS = {
    "demo": Source(
        "run",
        "demo",
        "Three organ sites train on VQA-RAD through FLARE's simulator (on the phantom set where no data is given).",
    ),
    "run": Source(
        "run", "run", "Train a method over one site per organ and write results, table, plots and each site's log."
    ),
    "methods": Source(
        "methods", "methods", "List the methods; with NAME, a method's options with types, defaults and sources."
    ),
    "plugins": Source(
        "plugins",
        "plugins_command",
        "Installed distributions with methods, readers or backbones, as site.yml allows them: by name and digest.",
    ),
    "benchmark": Source(
        "benchmark",
        "benchmark",
        "Compare systems on the same data, backbone, budget and statistics. Stop at any time; it resumes.",
    ),
    "attention": Source(
        "attention",
        "attention",
        "Draw where a model looks in one of the site's own pictures. Patient data: nothing is sent, and nothing may "
        "be.",
    ),
    "ingest": Source(
        "ingest",
        "ingest",
        "De-identify the images that a file of questions is about, and keep both as a store for `run --data OUT`.",
    ),
    "pretrain": Source(
        "pretrain",
        "pretrain",
        "Train the small CLIP on open data. Resumes if interrupted; uses a GPU where there is one.",
    ),
    "identity": Source(
        "identity",
        "identity",
        "Show the fingerprint of a site's key for secure aggregation; the key is made at first use and stays.",
    ),
    "doctor": Source(
        "doctor",
        "doctor",
        "Check all that a party needs to take part, without starting it; exit code 1 if it should not join.",
    ),
}
"""Commands of no group."""
JOBS = {"export": Source("jobs", "export_command", "Write a configuration-only job folder.")}
KIT = {
    "prepare": Source(
        "kit",
        "prepare_command",
        "Do to a kit from FLARE's dashboard what our builder does in provisioning, before its first start.",
    ),
    "root": Source(
        "kit",
        "root_command",
        "Write a provisioned project's root certificate and key for `nvflare cert approve`: new sites keep their keys.",
    ),
}
AUDIT = {
    "verify": Source(
        "audit",
        "verify_command",
        "Three verdicts on every log below FOLDER: integrity, completeness, consistency with what others hold.",
    ),
    "show": Source(
        "audit",
        "show_command",
        "Which tensors left, with shapes and bytes, to whom and when; then totals. Whether it is true is for `verify`.",
    ),
    "proof": Source(
        "audit",
        "proof_command",
        "Write a bundle that shows one entry to somebody who has no log: `medfedvqa audit check` reads it.",
    ),
    "check": Source(
        "audit",
        "check_command",
        "Check a bundle without the log, and print its entry; exit code 1 if it does not hold.",
    ),
    "key": Source(
        "audit_site",
        "key_command",
        "Show the verifier key of a site's log, which others pin or give to `check`; it is made at first use.",
    ),
    "publish": Source(
        "audit_site",
        "publish_command",
        "Sign a site's log, and bring its public form up to the last entry: the folder `tlog` for standard clients.",
    ),
    "expire": Source(
        "audit_site",
        "expire_command",
        "Delete lines of a site's log that are past their retention; their hashes stay, and the log says so.",
    ),
    "attack": Source(
        "attack",
        "attack_command",
        "Train a job with synthetic patients and attack it; exit code 1 if the findings refute its ledger's epsilon.",
    ),
    "controls": Source(
        "attack",
        "controls_command",
        "How often known faults of the mechanism are caught, and the sound one accused: what an audit can see at all.",
    ),
    "export": Source(
        "audit_export",
        "export_command",
        "Write every entry of the logs below FOLDER into a file for an archive or a SIEM; nothing if a log is broken.",
    ),
    "ui": Source(
        "audit_ui",
        "ui_command",
        "Browse releases, budgets and verdicts in a browser on this machine, until Ctrl-C; nothing is changed or sent.",
    ),
}
PRIVACY = {
    "report": Source(
        "report",
        "report_command",
        "What a job released from this site and what it cost its patients: JSON, HTML and PDF, signed with the site's "
        "key.",
    ),
    "verify-report": Source(
        "report_verify",
        "verify_command",
        "Check who signed a report, its proofs, and every figure in it, anywhere and offline.",
    ),
    "join-reports": Source(
        "report",
        "join_command",
        "Put sites' reports on one job side by side, without what is a site's alone; none that is broken is taken.",
    ),
    "verify-joined": Source(
        "report_verify",
        "verify_joined_command",
        "Check that a joined report is what these reports, each of which is checked, come to; exit code 1 if it is "
        "not.",
    ),
    "registry-entry": Source(
        "report_verify",
        "registry_command",
        "Write an entry for the Differential Privacy Deployments Registry; what only the curator knows is left empty.",
    ),
    "settings": Source("privacy", "settings_command", "List the settings of differential privacy with their defaults."),
    "plan": Source(
        "privacy_plan",
        "plan_command",
        "What a job would cost each patient, before anything runs; exit code 1 if the site would refuse it.",
    ),
    "spent": Source(
        "privacy", "spent_command", "What every cohort of a site has spent and reserved, and which job spent what."
    ),
    "ledger": Source(
        "privacy",
        "ledger_command",
        "Check a site's ledger against itself and against the audit log; export, import, or free a dead job's share.",
    ),
}
GROUPS = {
    "jobs": (JOBS, "Job folders for `nvflare job submit`."),
    "kit": (KIT, "FLARE startup kits: those of the dashboard, and keys that stay."),
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


def show_version(wanted: bool) -> None:
    """Prints the version, and ends the command."""
    if wanted:
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
    """Run the command; an error that a user can act on is one sentence and exit code 1, or 2 for a wrong command."""
    try:
        code = app(standalone_mode=False, prog_name="medfedvqa")
    except typer.Abort:
        code = _failed("the command was aborted", 1)
    except typer.TyperException as error:
        from medfedvqa.cli.usage import explained

        code = _failed(explained(error), 2)
    except Exception as error:
        # Most commands end well, and the modules that define the errors take longer to import than they take to run.
        from medfedvqa.cli.usage import place_of
        from medfedvqa.federation.error_codes import ACTIONABLE

        if is_missing_extra(error):
            code = _failed(SENTENCE, 1)
        elif isinstance(error, ACTIONABLE):
            code = _failed(str(error), 1)
        elif isinstance(error, OSError) and (place := place_of(error)):
            code = _failed(place, 1)
        else:
            raise
    sys.exit(code)


def _failed(text: str, code: int) -> int:
    """Prints why the command failed; the exit code."""
    from medfedvqa.cli.terminal import Terminal, sentence

    Terminal(stderr=True).print(f"[bold red]Error:[/] {sentence(text)}", highlight=False, soft_wrap=True)
    return code
