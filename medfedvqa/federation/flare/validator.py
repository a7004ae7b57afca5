"""Which jobs a site, or a server, takes: this project's two configuration files as this version exports them.

Runs in the parent processes, which never load torch. Whatever is wrong with a job, all that goes back is a code of
`Refusal` with its sentence; a site's audit log has an entry of it.
"""

import io
import logging
import uuid
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from nvflare.apis.app_validation import AppValidator
from nvflare.private.fed.utils.app_authz import AppAuthzService

from audits import JobRefused, LogError, Refusal
from audits.escaping import for_log
from medfedvqa.federation.flare import patches
from medfedvqa.federation.flare.frame_counts import installed
from medfedvqa.federation.flare.job_folder import check_folder, definition

MOST_FILES, MOST_UNPACKED = 16, 1 << 23
"""Of an app's archive, folders included; and the bytes that it may unpack to."""

_logger = logging.getLogger(__name__)


class ConfigurationOnly(AppValidator):
    """Belongs in `resources.json` as `app_validator`; asked before FLARE parses anything of a job, and deploys it."""

    def __init__(self) -> None:
        super().__init__()
        patches.UNZIP.replace(_unzip)
        patches.UNZIP_STAGED.replace(_unzip)

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """A code with its sentence, or an empty text, and no properties: see FLARE's `AppValidator`."""
        app = Path(app_folder)
        try:
            check_folder(app)
        except JobRefused as error:
            _record(error, _job_id(app), definition(app))
            return f"refused: {error.code}: {error.code.sentence}", {}
        return "", {}


class OwnFirst(AppValidator):
    """FLARE (2.9) asks its own validator first, which parses JSON, HOCON with includes, or YAML: whichever is there."""

    def __init__(self, validators: list[AppValidator]) -> None:
        """`validators`: in FLARE's order."""
        super().__init__()
        self.validators = validators[::-1]

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """The first error, or the properties that all found: see FLARE's `AppValidator`."""
        properties: dict[str, Any] = {}
        for validator in self.validators:
            error, added = validator.validate(app_folder)
            if error:
                return error, added
            properties.update(added or {})
        return "", properties


def ask_own_validator_first() -> None:
    """From now on a job is refused by `ConfigurationOnly` before FLARE parses anything of it."""
    flares = AppAuthzService.app_validator
    if not isinstance(flares, OwnFirst):
        AppAuthzService.initialize(OwnFirst(flares.validators))


_flares_unzip = patches.UNZIP.current()


def _unzip(content: bytes, folder: str) -> None:
    """FLARE (2.9) unpacks before it checks a signature, however much it is."""
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
    """In the process's log, and, at a site, in its audit log."""
    _logger.warning("%s", for_log(str(error)))  # the error itself would keep what was parsed in its frames
    ledger = installed()
    if ledger is None:
        return
    try:
        ledger.refuse(error.code, job, digest)
    except (LogError, OSError):
        _logger.exception("the refusal of a job could not be written into the audit log")


def _job_id(app: Path) -> str | None:
    """FLARE names the folder above an app's by the job's id."""
    name = app.absolute().parent.name
    try:
        return name if str(uuid.UUID(name)) == name else None
    except ValueError:
        return None
