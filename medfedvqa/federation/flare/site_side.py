"""What a site does with a FLARE task: read the message, ask `SiteRuntime`, write the reply."""

import logging
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from audits import (
    AuditError,
    AuditKey,
    AuditLog,
    Event,
    JobRefused,
    Outcome,
    ReceiptRefused,
    Refusal,
    ReleaseRefused,
    origin_of,
)
from medfedvqa.core import Tensors
from medfedvqa.errors import ConfigError, MedfedvqaError
from medfedvqa.federation.admission import Signature
from medfedvqa.federation.error_codes import ACTIONABLE, code_of
from medfedvqa.federation.flare.certificates import federation_of, submitter
from medfedvqa.federation.flare.job_folder import read_job
from medfedvqa.federation.flare.messages import REASON, audit_bytes, pack, unpack
from medfedvqa.federation.flare.site_mail import SiteMail
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.federation.site_status import STATUS_JOB, StatusRuntime
from medfedvqa.plugins import PlugInRefused, allow

_GRAIN = 10.0
"""Seconds: a refusal for which data were looked at leaves at a whole multiple of them after the question."""

_logger = logging.getLogger(__name__)


class SiteTasks:
    """Answers the tasks of one job at one site."""

    def __init__(self, job: dict[str, Any], mail: SiteMail | None) -> None:
        self._job, self._mail = job, mail
        self._runtime: SiteRuntime | StatusRuntime | None = None

    def answer(self, task: str, message: Shareable, fl_ctx: FLContext) -> Shareable:
        """The reply to one task. Of a failure it tells a code and nothing else; the rest is in the site's own log."""
        began = time.monotonic()
        try:
            if self._runtime is None:
                self._runtime = _runtime(self._job, self._mail, fl_ctx)
            round, received = self._unpacked(message)
            return pack(round, *self._runtime.answer(task, round, received, audit_bytes(message)))
        except Exception as error:
            code = self._refused(error)
        if code in (Refusal.DATA, Refusal.COUNT):
            # When the site says that it cannot run a job must not tell how long it looked at its data.
            time.sleep(_GRAIN - (time.monotonic() - began) % _GRAIN)
        return _refusal(code)

    def _unpacked(self, message: Shareable) -> tuple[int, Tensors]:
        try:
            return unpack(message)
        except JobRefused as error:
            assert self._runtime is not None
            self._runtime.refuse(error.code, error.detail)

    def _refused(self, error: Exception) -> Refusal:
        """The code of a failure, once it stands in the audit log."""
        code = code_of(error, private=not isinstance(self._runtime, SiteRuntime) or self._runtime.private)
        _logger.warning("the job was refused: %s: %s", code, code.sentence)
        if not isinstance(error, ACTIONABLE):
            _logger.error("a task failed", exc_info=error)
        if self._runtime is not None and not isinstance(error, JobRefused | ReleaseRefused | ReceiptRefused):
            try:
                self._runtime.refuse(code, str(error) if isinstance(error, ACTIONABLE) else type(error).__name__)
            except JobRefused:
                pass
            except AuditError as unwritten:
                # A disk that is full takes no entry either.
                return Refusal.DISK if Refusal.DISK in (code, code_of(unwritten)) else Refusal.RECORDS
        return code

    def close(self) -> None:
        """The run is over."""
        if self._runtime is not None:
            self._runtime.close()


def _runtime(job: dict[str, Any], mail: SiteMail | None, fl_ctx: FLContext) -> SiteRuntime | StatusRuntime:
    """Raises `JobRefused` for a job that is none; that stands in the log then."""
    name, workspace = fl_ctx.get_identity_name(), fl_ctx.get_engine().get_workspace()
    local = Path(workspace.get_site_config_dir())
    # A site has one file of its own; FLARE's simulator gives all its sites one copy of a common folder.
    path = next((path for path in (local / "site.yml", local / "sites" / f"{name}.yml") if path.exists()), None)
    if path is None:
        raise ConfigError(f"site '{name}' has no site.yml")
    config = load_site_config(path, name)
    job_id = fl_ctx.get_job_id()
    signature = None
    try:
        if job_id != SimulatorConstants.JOB_NAME:
            root = Path(workspace.get_file_path_in_startup("rootCA.pem"))
            app = Path(workspace.get_app_dir(job_id))
            signature = Signature(submitter(app, root), federation_of(root))
            job = read_job(app)  # as it was signed, whatever FLARE has made of it
        if job == STATUS_JOB:
            return _status(config, job_id, signature)
        allow(config.plugins)
        spec = JobSpec.from_dict(job)
    except PlugInRefused:
        raise _logged(config, job_id, Refusal.PLUG_IN) from None
    except MedfedvqaError:
        raise _logged(config, job_id, Refusal.SCHEMA) from None
    except JobRefused as error:
        raise _logged(config, job_id, error.code) from None
    return SiteRuntime(config, spec, job_id, relays=mail.attempt if mail else None, signature=signature)


def _status(config: SiteConfig, job_id: str, signature: Signature | None) -> StatusRuntime:
    if signature is not None and not signature.actor:
        raise JobRefused(Refusal.SIGNATURE)
    return StatusRuntime(config, job_id, signature.actor if signature else "")


def _logged(config: SiteConfig, job_id: str, code: Refusal) -> JobRefused:
    """The refusal of a job whose text is not read any further, once the log has it; it repeats nothing of the text."""
    key = AuditKey.at(config.audit_key, origin_of(config.name))
    with closing(AuditLog(config.audit, config.name, key)) as log:
        refused = {"outcome": Outcome.REFUSED, "reason": code.sentence, "admission": {"code": code.value}}
        log.append(Event.REFUSAL, job=job_id, **refused)
    return JobRefused(code)


def _refusal(code: Refusal) -> Shareable:
    reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    reply[REASON] = code.value
    return reply
