"""The files in a backup of a site, by names that do not depend on where the site's folders are."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from audits import Entry, Event, read
from audits.log_files import LOG_NAME
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.ingest.cohort_register import REGISTER
from privacy.patient_keys import KEY_NAME

FORMAT: Literal[1] = 1
"""The format number of the manifest that this version writes."""
MANIFEST, EXPORT = "manifest.json", "ledger/export.jsonl"
IDENTITY, AUDIT_KEY = "keys/identity", "keys/audit"
AUDIT, STATE, KIT, LEDGER = "audit/", "state/", "kit/", "ledger/"
LEDGER_FILES = (KEY_NAME, REGISTER, "withdrawn.json")
"""Files in a backup besides the export of the ledger's journal; the site keeps the register in the ledger's file."""
SITE_FILE = "site.yml"
_KIT_FOLDERS = ("local", "startup")
_DERIVED = ("tlog", "wire", "running")
"""Folders of the log that are not in a backup: its public form, which is made from the lines, and the journals of the
processes that run."""
_NAME = re.compile(r"(?:(?:audit|state)/[^/\x00]{1,200}|kit(?:/[^/\x00]{1,200}){1,8}|keys/(?:identity|audit))")

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class BackupManifest(BaseModel):
    """A backup's description of itself. It is encrypted like the rest."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    format: int
    site: str
    time: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    """When the backup was begun, UTC."""
    version: str
    """The version of this software that wrote it."""
    in_kit: bool
    """Whether `site.yml` is in the folder `local` of a startup kit."""
    entries: Annotated[int, Field(ge=0)]
    """The number of entries of the log."""
    head: Hash
    """The hash of the log's last entry."""
    records: Annotated[int, Field(ge=0)]
    """The number of records of the ledger."""


def kit_of(site_file: Path) -> Path:
    """The startup kit of a site, or the folder of a `site.yml` that is in none."""
    folder = site_file.resolve().parent
    return folder.parent if folder.name == "local" else folder


def site_files(config: SiteConfig, site_file: Path) -> dict[str, Path]:
    """The site's files outside of its log and its ledger's journal, by their names in a backup.

    Of `state`, only the files of ended jobs: an older state of a job that continues could open shares twice.
    """
    kit, over = kit_of(site_file), jobs_that_are_over(config.audit)
    files = {IDENTITY: config.identity, AUDIT_KEY: config.audit_key}
    files |= {f"{LEDGER}{name}": config.ledger / name for name in LEDGER_FILES if name != REGISTER}
    if config.state.is_dir():
        kept = [path for path in config.state.iterdir() if any(path.name.startswith(f"{job}.") for job in over)]
        files |= {f"{STATE}{path.name}": path for path in kept if not path.name.endswith(".partial")}
    placed = {path.resolve() for path in files.values()}
    folders = (config.state, config.audit, config.ledger)
    for path in _kit_files(site_file):
        elsewhere = path.resolve() in placed or any(path.resolve().is_relative_to(place) for place in folders)
        if not elsewhere:
            files[f"{KIT}{path.relative_to(kit)}"] = path
    return {name: path for name, path in sorted(files.items()) if path.is_file()}


def log_files(folder: Path) -> dict[str, Path]:
    """The files of a log by their names in a backup. Empty if the site has no log yet."""
    if not (folder / LOG_NAME).is_file():
        return {}
    paths = [path for path in folder.iterdir() if path.name not in _DERIVED and not path.name.endswith(".partial")]
    return {f"{AUDIT}{path.name}": path for path in sorted(paths) if path.is_file()}


def is_name(name: str) -> bool:
    """Whether a member of a backup may have this name, which must not lead out of its folder."""
    parts = name.split("/")
    listed = {MANIFEST, EXPORT, *(f"{LEDGER}{file}" for file in LEDGER_FILES)}
    return name in listed or (_NAME.fullmatch(name) is not None and not {"", ".", ".."} & set(parts))


def jobs_that_are_over(audit: Path) -> set[str]:
    """The ids of the jobs that the log has closed and not opened again. Raises `LogError`."""
    return {job for job, entry in _last_turns(audit).items() if entry.event is Event.CLOSE}


def open_jobs(audit: Path) -> dict[str, Entry]:
    """The jobs that the log opens and does not close, each with the entry. Raises `LogError`."""
    return {job: entry for job, entry in _last_turns(audit).items() if entry.event is not Event.CLOSE}


def _last_turns(audit: Path) -> dict[str, Entry]:
    turns = (Event.ADMITTED, Event.OPEN, Event.CLOSE)
    entries = read(audit) if (audit / LOG_NAME).is_file() else iter(())
    return {str(entry.job): entry for entry in entries if entry.event in turns}


def _kit_files(site_file: Path) -> list[Path]:
    kit = kit_of(site_file)
    if kit == site_file.resolve().parent:
        return [site_file.resolve()]
    paths = [path for folder in _KIT_FOLDERS for path in (kit / folder).rglob("*")]
    return [path for path in paths if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts]
