"""A person's yes or no to one job at one site, signed with that person's own key; until a yes the job waits.

A decision is a signed note (C2SP signed-note) about a job's definition and its submitter. The keys that count are those
of `approvers` in `site.yml`: whoever controls the server, the federation or its certificates has none of them. A yes is
for one run, named by its permit, and ends at a time; a later no of any approver withdraws it, also while the job runs.
"""

import json
import secrets
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from audits import AuditKey, Note, NoteError, Refusal, VerifierKey, canonical
from audits.bounded_files import read_bounded
from medfedvqa.atomic_files import write_whole
from medfedvqa.bounds import SiteName
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig

FOLDER = "approvals"
"""In the folder of the audit log."""
MOST_WAITING = 100
"""Jobs that wait at once; further ones are refused without being kept."""
LONGEST = timedelta(days=366)
_HEAD = "medfedvqa decision on a job, version 1\n"
_MOST_BYTES = 1 << 20
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}\z")]


class ApprovalError(ConfigError):
    """A decision cannot be made, read or trusted."""


class Decision(BaseModel, frozen=True, extra="forbid"):
    """What one person decided of one definition by one submitter."""

    site: SiteName
    definition: _Digest
    submitter: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?\z")]
    """SHA-256 of the submitter's certificate; empty where an engine on one machine signs nothing."""
    answer: Literal["yes", "no"]
    permit: Annotated[str, Field(pattern=r"^[0-9a-f]{16}\z")]
    person: Annotated[str, Field(min_length=1, max_length=200)]
    made: AwareDatetime
    until: AwareDatetime
    """No round begins later."""


class Waiting(BaseModel, frozen=True, extra="forbid"):
    """A job that was refused because nobody had decided, as its submitter signed it."""

    job: dict[str, Any]
    definition: _Digest
    submitter: str
    asked: AwareDatetime

    @property
    def name(self) -> str:
        """The 12 hex digits by which people name it."""
        return self.definition[:12]


def decide(
    config: SiteConfig, waiting: Waiting, answer: Literal["yes", "no"], person: str, key: Path, valid: timedelta
) -> Decision:
    """Signs and stores a person's decision. Raises `ApprovalError` for a key that is no approver's."""
    try:
        signer = AuditKey.at(key, person)
    except NoteError as error:
        raise ApprovalError(str(error).replace("audit key", "approver's key")) from None
    if signer.public not in approvers(config):
        raise ApprovalError(
            f"the key of '{person}' is not among `approvers` in site.yml: `medfedvqa jobs approver` prints its line"
        )
    if not timedelta(0) < valid <= LONGEST:
        raise ApprovalError("an approval lasts more than 0 and at most 366 days")
    now = datetime.now(UTC)
    decision = Decision(
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
    write_whole(_folder(config) / f"{decision.permit}.note", str(note).encode())
    return decision


def approvers(config: SiteConfig) -> tuple[VerifierKey, ...]:
    """The keys that count. Raises `NoteError`."""
    return tuple(map(VerifierKey.parse, config.approvers))


def decisions(config: SiteConfig) -> list[Decision]:
    """All decisions of this site's approvers, oldest first. A note that none of them signed is no decision.

    Raises `ApprovalError` for a file that cannot be read: it may have held a no.
    """
    made = []
    try:
        keys = approvers(config)
        for path in _folder(config).glob("*.note"):
            note = Note.parse(read_bounded(path, _MOST_BYTES).decode())
            decision = Decision.model_validate_json(note.text.removeprefix(_HEAD))
            signed = any(key.name == decision.person and key.signed(note) for key in keys)
            if signed and decision.site == config.name and note.text.startswith(_HEAD):
                made.append(decision)
    except (OSError, ValueError, NoteError):
        raise ApprovalError(
            "a decision on jobs cannot be read, and may have been a no: look into `approvals`"
        ) from None
    return sorted(made, key=lambda decision: (decision.made, decision.permit))


def decisions_on(config: SiteConfig, definition: str, submitter: str) -> list[Decision]:
    """Those on one job by one submitter, oldest first. Raises `ApprovalError`."""
    return [each for each in decisions(config) if (each.definition, each.submitter) == (definition, submitter)]


def permit(
    config: SiteConfig, definition: str, submitter: str, used: Collection[str] = (), own_permit: str = ""
) -> tuple[Decision | None, Refusal]:
    """The yes by which the job may run now, or None and the code to refuse it with.

    `used`: other jobs' permits. `own_permit`: the one under which this job was admitted, beside which no other counts.
    """
    try:
        made = decisions_on(config, definition, submitter)
    except ApprovalError:
        return None, Refusal.APPROVAL
    if made and made[-1].answer == "no":
        return None, Refusal.DECLINED
    standing: list[Decision] = []
    for decision in made:
        standing = [] if decision.answer == "no" else [*standing, decision]
    free = [each for each in standing if (each.permit == own_permit if own_permit else each.permit not in used)]
    valid = [each for each in free if each.until > datetime.now(UTC)]
    return (valid[-1] if valid else None), Refusal.APPROVAL


def keep_waiting(config: SiteConfig, job: JobSpec, submitter: str) -> None:
    """Keeps a job that nobody has decided on, once, so that a person can see it."""
    path = _folder(config) / f"{job.definition}-{submitter[:16]}.waiting"
    if path.exists() or len(list(_folder(config).glob("*.waiting"))) >= MOST_WAITING:
        return
    waiting = Waiting(job=job.to_dict(), definition=job.definition, submitter=submitter, asked=datetime.now(UTC))
    write_whole(path, waiting.model_dump_json().encode())


def waiting_jobs(config: SiteConfig) -> list[Waiting]:
    """The jobs that were kept, oldest first. Raises `ApprovalError`."""
    try:
        texts = [read_bounded(path, _MOST_BYTES) for path in _folder(config).glob("*.waiting")]
        return sorted((Waiting.model_validate_json(text) for text in texts), key=lambda each: each.asked)
    except (OSError, ValidationError, json.JSONDecodeError):
        raise ApprovalError("a waiting job cannot be read: look into `approvals` beside the audit log") from None


def waiting_job(config: SiteConfig, name: str) -> Waiting:
    """The one whose definition begins so. Raises `ApprovalError`."""
    matches = [each for each in waiting_jobs(config) if each.definition.startswith(name)]
    if len(matches) != 1 or len(name) < 6:
        raise ApprovalError(
            f"{len(matches)} waiting jobs have a name that begins so: `medfedvqa jobs pending` lists them"
        )
    return matches[0]


def _folder(config: SiteConfig) -> Path:
    return config.audit / FOLDER
