"""A person's approval or refusal of one job at one site, signed with that person's key; the job waits for approval.

A decision is a signed note (C2SP signed-note) about a job's definition and its submitter. The keys that count are those
of `approvers` in `site.yml`: whoever controls the server, the federation or its certificates has none of them. An
approval is for one run, named by its permit, and expires. Any approver can withdraw it, also during the run.
"""

import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from sqlite3 import Connection
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from audits import AuditKey, Note, NoteError, Refusal, VerifierKey, canonical
from audits.bounded_files import read_bounded
from audits.database import Database
from medfedvqa.bounds import SiteName
from medfedvqa.errors import ConfigError, DataError, SiteDatabaseError
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_database import SITE_DATABASE, site_database

FOLDER = "approvals"
"""The folder beside the audit log in which version 0.2.0 kept decisions and waiting jobs."""
MOST_WAITING = 100
"""The most jobs that wait at once; further ones are refused without being kept."""
LONGEST = timedelta(days=366)
_HEAD = "medfedvqa decision on a job, version 1\n"
_MOST_BYTES = 1 << 20
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}\z")]


class ApprovalError(ConfigError):
    """A decision cannot be made, read or trusted."""


class JobDecision(BaseModel, frozen=True, extra="forbid"):
    """One person's decision about one job definition of one submitter."""

    site: SiteName
    definition: _Digest
    submitter: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?\z")]
    """SHA-256 of the submitter's certificate; empty where an engine on one machine signs nothing."""
    answer: Literal["yes", "no"]
    permit: Annotated[str, Field(pattern=r"^[0-9a-f]{16}\z")]
    person: Annotated[str, Field(min_length=1, max_length=200)]
    made: AwareDatetime
    until: AwareDatetime
    """The time after which no round begins."""


class Waiting(BaseModel, frozen=True, extra="forbid"):
    """A job that was refused because nobody had decided, as its submitter signed it."""

    job: dict[str, Any]
    definition: _Digest
    submitter: str
    asked: AwareDatetime

    @property
    def name(self) -> str:
        """The job's short name for people: 12 hex digits of its definition."""
        return self.definition[:12]


def decide(
    config: SiteConfig, waiting: Waiting, answer: Literal["yes", "no"], person: str, key: Path, valid: timedelta
) -> JobDecision:
    """Signs and stores a decision. Raises `ApprovalError` for `valid` over 366 days, or a key of no approver."""
    try:
        signer = AuditKey.at(key, person)
    except NoteError as error:
        raise ApprovalError(str(error).replace("audit key", "approver's key")) from None
    if signer.public not in approvers(config):
        raise ApprovalError(
            f"the key of '{person}' is not among `approvers` in site.yml: `medfedvqa jobs approver` prints its line"
        )
    if not timedelta(0) < valid <= LONGEST:
        raise ApprovalError("an approval must last more than 0 and at most 366 days")
    now = datetime.now(UTC)
    decision = JobDecision(
        site=config.name,
        definition=waiting.definition,
        submitter=waiting.submitter,
        answer=answer,
        permit=secrets.token_hex(8),
        person=person,
        made=now,
        until=now + valid,
    )
    note = signer.sign(_HEAD + canonical(decision.model_dump(mode="json")).decode() + "\n")
    with _database(config) as database, database.writing() as connection:
        connection.execute("INSERT INTO decision VALUES (?, ?, ?)", (decision.permit, answer, str(note)))
    return decision


def approvers(config: SiteConfig) -> tuple[VerifierKey, ...]:
    """The keys of the site's approvers. Raises `NoteError`."""
    return tuple(map(VerifierKey.parse, config.approvers))


def decisions(config: SiteConfig) -> list[JobDecision]:
    """All decisions of this site's approvers, oldest first. Ignores notes that none of them signed.

    Raises `ApprovalError` for one that cannot be read: it may have been a no.
    """
    made = []
    notes = _texts(config, "SELECT note FROM decision")
    try:
        keys = approvers(config)
        for text in notes:
            note = Note.parse(text)
            decision = JobDecision.model_validate_json(note.text.removeprefix(_HEAD))
            signed = any(key.name == decision.person and key.signed(note) for key in keys)
            if signed and decision.site == config.name and note.text.startswith(_HEAD):
                made.append(decision)
    except (ValueError, NoteError):
        raise ApprovalError(
            "a decision on jobs cannot be read, and may be a refusal: restore the site's database from its backup"
        ) from None
    return sorted(made, key=lambda decision: (decision.made, decision.permit))


def decisions_on(config: SiteConfig, definition: str, submitter: str) -> list[JobDecision]:
    """The decisions on one job by one submitter, oldest first. Raises `ApprovalError`."""
    return [each for each in decisions(config) if (each.definition, each.submitter) == (definition, submitter)]


def permit(
    config: SiteConfig, definition: str, submitter: str, used: Collection[str] = (), own_permit: str = ""
) -> tuple[JobDecision | None, Refusal]:
    """The approval under which the job may run now, or None and the code to refuse it with.

    `used`: other jobs' permits. `own_permit`: the one under which this job was admitted; then no other counts.
    """
    try:
        made = decisions_on(config, definition, submitter)
    except ApprovalError:
        return None, Refusal.APPROVAL
    if made and made[-1].answer == "no":
        return None, Refusal.DECLINED
    standing: list[JobDecision] = []
    for decision in made:
        standing = [] if decision.answer == "no" else [*standing, decision]
    free = [each for each in standing if (each.permit == own_permit if own_permit else each.permit not in used)]
    valid = [each for each in free if each.until > datetime.now(UTC)]
    return (valid[-1] if valid else None), Refusal.APPROVAL


def keep_waiting(config: SiteConfig, job: JobSpec, submitter: str) -> None:
    """Stores a job without a decision, once, so that a person can see it."""
    waiting = Waiting(job=job.to_dict(), definition=job.definition, submitter=submitter, asked=datetime.now(UTC))
    with _database(config) as database, database.writing() as connection:
        if connection.execute("SELECT count(*) FROM waiting_job").fetchone()[0] < MOST_WAITING:
            _insert_waiting(connection, waiting)


def waiting_jobs(config: SiteConfig) -> list[Waiting]:
    """The jobs that were kept, oldest first. Raises `ApprovalError`."""
    texts = _texts(config, "SELECT job FROM waiting_job")
    try:
        return sorted((Waiting.model_validate_json(text) for text in texts), key=lambda each: each.asked)
    except ValidationError:
        raise ApprovalError("a waiting job cannot be read: restore the site's database from its backup") from None


def waiting_job(config: SiteConfig, name: str) -> Waiting:
    """The waiting job whose definition begins with these digits. Raises `ApprovalError`."""
    matches = [each for each in waiting_jobs(config) if each.definition.startswith(name)]
    if len(matches) != 1 or len(name) < 6:
        raise ApprovalError(
            f"the names of {len(matches)} waiting jobs begin like this: `medfedvqa jobs pending` lists them"
        )
    return matches[0]


def forecast(config: SiteConfig, job: JobSpec) -> str:
    """A sentence on how much of the gain in accuracy the noise would leave, if all sites were like this one.

    Counts the site's patients.
    """
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


def _texts(config: SiteConfig, query: str) -> list[str]:
    """The texts that a query selects. Creates no database: one made by another account would lock the site out."""
    if not (config.state / SITE_DATABASE).exists() and not (config.audit / FOLDER).is_dir():
        return []
    with _database(config) as database, database.reading() as connection:
        return [text for (text,) in connection.execute(query)]


@contextmanager
def _database(config: SiteConfig) -> Iterator[Database]:
    """The site's database, which first takes over the files of version 0.2.0. Raises `ApprovalError`."""
    folder = config.audit / FOLDER
    try:
        with site_database(config.state) as database:
            if paths := [*folder.glob("*.note"), *folder.glob("*.waiting")]:
                with database.writing() as connection:
                    for path in paths:
                        with suppress(FileNotFoundError):  # another process has just done so
                            _take_over(connection, path, read_bounded(path, _MOST_BYTES))
                for path in paths:
                    path.unlink(missing_ok=True)
            yield database
    except (OSError, SiteDatabaseError, ValueError, NoteError) as error:
        sentence = str(error) if isinstance(error, SiteDatabaseError) else _UNREADABLE
        raise ApprovalError(sentence) from None


_UNREADABLE = "a file in `approvals` beside the audit log cannot be read, and may hold a no: look into it"


def _take_over(connection: Connection, path: Path, content: bytes) -> None:
    """Copies a file of version 0.2.0, a decision or a waiting job, into the database.

    Raises `ValueError` or `NoteError` for a damaged file.
    """
    if path.suffix == ".note":
        note = Note.parse(content.decode())
        answer = JobDecision.model_validate_json(note.text.removeprefix(_HEAD)).answer
        connection.execute("INSERT OR IGNORE INTO decision VALUES (?, ?, ?)", (path.stem, answer, str(note)))
    else:
        _insert_waiting(connection, Waiting.model_validate_json(content))


def _insert_waiting(connection: Connection, waiting: Waiting) -> None:
    row = waiting.definition, waiting.submitter, waiting.model_dump_json()
    connection.execute("INSERT OR IGNORE INTO waiting_job VALUES (?, ?, ?)", row)
