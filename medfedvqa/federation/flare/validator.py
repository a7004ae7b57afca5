"""Lets a site or server take only jobs of this project's two configuration files, as this version exports them.

The check runs in the parent processes, which never load torch. A refused job gets only a code of `Refusal` with its
sentence; a site's audit log has an entry for it.
"""

import io
import logging
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from nvflare.apis.app_validation import AppValidator
from nvflare.private.fed.utils.app_authz import AppAuthzService

from audits import JobRefused, LogError, Refusal
from audits.escaping import for_log
from medfedvqa.federation.flare import patches
from medfedvqa.federation.flare.allowed_messages import is_job_id
from medfedvqa.federation.flare.frame_counts import installed
from medfedvqa.federation.flare.job_folder import check_folder, definition

MOST_FILES, MOST_UNPACKED = 16, 1 << 23
"""The most files of an app's archive, folders included, and the most bytes that it may unpack to."""

_logger = logging.getLogger(__name__)


class ConfigurationOnly(AppValidator):
    """The `app_validator` in `resources.json`, which FLARE calls before it parses or deploys a job."""

    def __init__(self) -> None:
        super().__init__()
        patches.UNZIP.replace(_unzip)
        patches.UNZIP_STAGED.replace(_unzip)

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """A code with its sentence, or an empty text, without properties: see FLARE's `AppValidator`."""
        app = Path(app_folder)
        try:
            check_folder(app)
        except JobRefused as error:
            _record(error, _job_id(app), definition(app))
            return f"refused: {error.code}: {error.code.sentence}", {}
        return "", {}


class OwnFirst(AppValidator):
    """Calls FLARE's (2.9) own validator last, since it parses JSON, YAML, or HOCON with includes."""

    def __init__(self, validators: list[AppValidator]) -> None:
        """`validators`: in FLARE's order."""
        super().__init__()
        self.validators = validators[::-1]

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """The first error, or the properties of all validators: see FLARE's `AppValidator`."""
        properties: dict[str, Any] = {}
        for validator in self.validators:
            error, added = validator.validate(app_folder)
            if error:
                return error, added
            properties.update(added or {})
        return "", properties


def ask_own_validator_first() -> None:
    """Make `ConfigurationOnly` refuse a job before FLARE parses anything of it."""
    flares = AppAuthzService.app_validator
    if not isinstance(flares, OwnFirst):
        AppAuthzService.initialize(OwnFirst(flares.validators))


_flares_unzip = patches.UNZIP.current()


def _unzip(content: bytes, folder: str) -> None:
    """Unpack a bounded archive. FLARE (2.9) unpacks any size before it checks a signature."""
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
        small = len(entries) <= MOST_FILES and sum(entry.file_size for entry in entries) <= MOST_UNPACKED
    except (BadZipFile, ValueError, NotImplementedError):
        small = False
    if not small:
        error = JobRefused(Refusal.FOLDER, "the job's archive is damaged, or holds too much")
        _record(error, None, None)
        raise error
    _flares_unzip(content, folder)


def _record(error: JobRefused, job: str | None, digest: str | None) -> None:
    """Record a refusal in the process's log and, at a site, in the audit log."""
    _logger.warning("%s", for_log(str(error)))  # the error itself would keep the parsed text in its frames
    ledger = installed()
    if ledger is None:
        return
    try:
        ledger.refuse(error.code, job, digest)
    except (LogError, OSError):
        _logger.exception("the refusal of a job could not be written into the audit log")


def _job_id(app: Path) -> str | None:
    """The id of an app's job, by which FLARE names the folder above."""
    name = app.absolute().parent.name
    return name if is_job_id(name) else None
