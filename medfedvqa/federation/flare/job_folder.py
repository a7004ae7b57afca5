"""The folder of a job, as sites and server take it: listed files, each bounded, and one schema for what they hold.

Reads the files themselves, so that nothing that FLARE replaces in them has an effect.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE

from audits import JobRefused, Refusal
from medfedvqa.federation.flare.job_schema import job_of
from medfedvqa.federation.flare.strict_json import NotAllowed, parse_object, read_bounded

CLIENT, SERVER = "config_fed_client.json", "config_fed_server.json"
_FOLDER = "config"
_SIGNATURES = {NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE}
_CONFIGURATIONS = {CLIENT, SERVER}


def check_folder(app: Path) -> dict[str, Any]:
    """The job of an app's folder in which there is nothing else. Raises `JobRefused`."""
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
    try:
        client, server = (read_bounded(app / _FOLDER / name) for name in (CLIENT, SERVER))
    except NotAllowed as error:
        raise JobRefused(Refusal.FOLDER, str(error)) from None
    try:
        return job_of(parse_object(client), parse_object(server))
    except NotAllowed as error:
        raise JobRefused(Refusal.SCHEMA, str(error)) from None


def definition(app: Path) -> str | None:
    """SHA-256, in hex, of the site's configuration file: what names a job in an audit log. None if there is none."""
    try:
        return hashlib.sha256(read_bounded(app / _FOLDER / CLIENT)).hexdigest()
    except NotAllowed:
        return None
