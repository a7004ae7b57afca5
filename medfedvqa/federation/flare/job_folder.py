"""Checks and reads a job's folder, at sites and server: listed files only, each of bounded size, in one schema.

Reads the files themselves, so that nothing that FLARE replaces in them has an effect.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from audits import JobRefused, Refusal
from medfedvqa.federation.flare.strict_json import NotAllowed, parse_object, read_bounded
from medfedvqa.federation.job_signature import SIGNATURES, SIGNER

CLIENT, SERVER = "config_fed_client.json", "config_fed_server.json"
_FOLDER = "config"
_SIGNATURES = {SIGNATURES, SIGNER}
_CONFIGURATIONS = {CLIENT, SERVER}
FILES = (SIGNATURES, SIGNER, *(f"{_FOLDER}/{name}" for name in (SIGNATURES, SIGNER, CLIENT, SERVER)))
"""The files of a signed job, by path."""


def check_folder(app: Path) -> dict[str, Any]:
    """The job in an app's folder, which must hold no other files. Raises `JobRefused`."""
    try:
        _only(app, _SIGNATURES, {_FOLDER})
        _only(app / _FOLDER, _SIGNATURES | _CONFIGURATIONS, set())
    except (NotAllowed, OSError, ValueError) as error:
        detail = str(error) if isinstance(error, NotAllowed) else "the job's folder cannot be read"
        raise JobRefused(Refusal.FOLDER, detail) from None
    return read_job(app)


def _only(folder: Path, files: set[str], folders: set[str]) -> None:
    """Raises `NotAllowed` unless the folder holds at most these. Stops at the first other name."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in folders and entry.is_dir(follow_symlinks=False):
                continue
            if entry.name not in files:
                raise NotAllowed("the job ships files other than its configuration")
            read_bounded(Path(entry.path))


def read_job(app: Path) -> dict[str, Any]:
    """The job of an app's folder, from its configuration files as they were signed. Raises `JobRefused`."""
    return parse_job(read_files(app))


def read_files(app: Path) -> dict[str, bytes]:
    """The contents of the job's files in an app's folder, by path. Raises `JobRefused` for a link or a long file."""
    try:
        return {path: read_bounded(app / path) for path in FILES if (app / path).exists()}
    except NotAllowed as error:
        raise JobRefused(Refusal.FOLDER, str(error)) from None


def parse_job(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The job in the content of its two configuration files, by path. Raises `JobRefused`."""
    try:
        # A courier reads a job's files and does not parse them: a job's process does without the schema.
        from medfedvqa.federation.flare.job_schema import job_of

        client, server = (parse_object(files[f"{_FOLDER}/{name}"]) for name in (CLIENT, SERVER))
        return job_of(client, server)
    except LookupError:
        raise JobRefused(Refusal.FOLDER, "a configuration file of the job is missing") from None
    except NotAllowed as error:
        raise JobRefused(Refusal.SCHEMA, str(error)) from None


def definition(app: Path) -> str | None:
    """SHA-256, in hex, of the site's configuration file, by which an audit log names a job. None if unreadable."""
    try:
        return hashlib.sha256(read_bounded(app / _FOLDER / CLIENT)).hexdigest()
    except NotAllowed:
        return None
