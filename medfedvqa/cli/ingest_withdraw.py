"""`medfedvqa ingest withdraw`: removes a patient from a store, and says which jobs had used it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from medfedvqa.cli.options import JsonOption, QuietOption, config_of
from medfedvqa.cli.terminal import Terminal

REMAINS = (
    "What cannot be undone: models that these jobs trained, and what left the site for them, hold what they learned of "
    "the patient, here and wherever they went; nothing here makes them forget it.",
    "Charges to the privacy budget and entries of the log stay.",
    "What is left to do: delete or train anew the models in the 'state' of the sites; remove the patient from the "
    "folder of images and the table, from other stores, from backups and from caches of features.",
)


class PatientUse(NamedTuple):
    """A job that used, or may have used, a patient."""

    job: str
    site: str
    method: str
    known_from: str
    """`ledger`: the job was charged for this patient. `log`: it ran at a site that held rows of the patient."""
    exported: bool
    """Whether a model of the job was exported from the site."""


def withdraw(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The store that the patient leaves.")],
    patient: Annotated[
        str, typer.Option(metavar="NUMBER", prompt="Number of the patient", help="Asked for if it is not given.")
    ],
    key: Annotated[Path | None, typer.Option(help="Key of the pseudonyms. Default: STORE.key.")] = None,
    patients: Annotated[Path | None, typer.Option(help="The file of persons that the store was made with.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="The store's ledger. Default: STORE.ledger.")] = None,
    site: Annotated[
        list[Path] | None, typer.Option(help="The site.yml of a site of this store, whose log is read; repeatable.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Remove a patient from a store for good, and say which jobs had used the patient and what cannot be undone."""
    from medfedvqa.ingest.ledger_binding import check_binding, default_ledger
    from medfedvqa.ingest.withdrawal import withdraw as withdraw_patient
    from privacy.ledger_folder import jobs_on

    folder = ledger or default_ledger(store)
    check_binding(store, folder)
    withdrawn = withdraw_patient(store, patient, key or store.with_name(store.name + ".key"), patients)
    charged = jobs_on(folder, withdrawn.patients)
    uses = {(job.job, job.site): PatientUse(*job, "ledger", False) for job in charged}
    for path in site or ():
        for use, is_private in _logged(path, withdrawn.organs):
            charge = uses.get((use.job, use.site))
            if charge or not is_private:
                uses[use.job, use.site] = (charge or use)._replace(exported=use.exported)
    if as_json:
        counts = {"pictures": withdrawn.pictures, "questions": withdrawn.questions}
        typer.echo(json.dumps({**counts, "jobs": [use._asdict() for use in uses.values()]}, indent=2))
    _show(Terminal(quiet=quiet or as_json), withdrawn.pictures, withdrawn.questions, list(uses.values()), bool(site))


def _logged(path: Path, organs: frozenset[str]) -> Iterator[tuple[PatientUse, bool]]:
    """The jobs that opened at a site which held rows of the patient, and whether they ran under differential privacy.

    For those that did, the ledger knows the patients.
    """
    from audits import Event, read
    from audits.log_files import segments
    from medfedvqa.federation import site_status

    config = config_of(path)
    if not segments(config.audit) or config.data.organ not in organs:
        return
    methods, private, exported = dict[str, str](), set[str](), set[str]()
    for entry in read(config.audit):
        if entry.job is None or entry.method == site_status.NAME:
            continue
        if entry.event is Event.OPEN and entry.outcome is None:
            methods[entry.job] = entry.method or ""
        elif entry.event is Event.EXPORTED:
            exported.add(entry.job)
        if entry.dp_event is not None:
            private.add(entry.job)
    for job, method in methods.items():
        yield PatientUse(job, config.name, method, "log", job in exported), job in private


def _show(console: Terminal, pictures: int, questions: int, uses: list[PatientUse], has_logs: bool) -> None:
    from rich.table import Table

    console.print(f"Removed {pictures} pictures and {questions} questions. Later ingestions leave the patient out.")
    if not pictures:
        console.print("The store had no picture of a patient with this number: check it if you expected one.")
    if uses:
        table = Table("job", "site", "method", "how it is known", "a model was exported")
        for use in uses:
            reason = "it was charged for this patient" if use.known_from == "ledger" else "the site held the patient"
            table.add_row(use.job, use.site, use.method, reason, "yes" if use.exported else "no")
        console.print(table)
    else:
        console.print("No job is known to have used the patient.")
    if not has_logs:
        console.print("Jobs without differential privacy stand in the sites' logs alone: give each site.yml by --site.")
    for text in REMAINS:
        console.print(text, soft_wrap=True)
