"""Lets a site or server take only jobs of this project's two configuration files, as this version exports them.

The check runs in the parent processes, which never load torch. A refused job gets only a code of `Refusal` with its
sentence; a site's audit log has an entry for it.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from nvflare.apis.app_validation import AppValidator
from nvflare.private.fed.utils.app_authz import AppAuthzService

from audits import JobRefused, Refusal
from audits.escaping import for_log
from medfedvqa.errors import FederationError
from medfedvqa.federation.flare.job_folder import check_folder, definition

Report = Callable[[Refusal, str | None, str | None], None]
"""Takes the code of a refusal, and the job's id and digest if it has them; raises `FederationError` or `OSError`."""

_logger = logging.getLogger(__name__)
_reports: list[Report] = []


def report_refusals(report: Report) -> None:
    """Make this process call `report` for each job that it refuses; used at sites."""
    _reports.append(report)


class ConfigurationOnly(AppValidator):
    """The `app_validator` in `resources.json`, which FLARE calls before it parses or deploys a job."""

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


def _record(error: JobRefused, job: str | None, digest: str | None) -> None:
    """Record a refusal in the process's log and, at a site, in the audit log."""
    _logger.warning("%s", for_log(str(error)))  # the error itself would keep the parsed text in its frames
    for report in _reports:
        try:
            report(error.code, job, digest)
        except (FederationError, OSError):
            _logger.exception("the refusal of a job could not be written into the audit log")


def is_job_id(name: object) -> bool:
    """Whether a name is a job's id: a UUID as FLARE writes it."""
    try:
        return isinstance(name, str) and str(UUID(name)) == name
    except ValueError:
        return False


def _job_id(app: Path) -> str | None:
    """The id of an app's job, by which FLARE names the folder above."""
    name = app.absolute().parent.name
    return name if is_job_id(name) else None
