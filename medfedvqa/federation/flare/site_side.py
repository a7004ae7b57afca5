"""What a site does with a FLARE task: read the message, ask `SiteRuntime`, write the reply."""

import logging
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.hashes import SHA256
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.lighter.tool_consts import NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import load_crt_chain, verify_folder_signature

from medfedvqa.errors import ConfigError
from medfedvqa.federation.failures import ACTIONABLE
from medfedvqa.federation.flare.mail import SiteMail
from medfedvqa.federation.flare.messages import REASON, beside, pack, unpack
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site import SiteRuntime
from medfedvqa.federation.site_config import load_site_config
from medfedvqa.federation.status import STATUS_JOB, StatusRuntime

_logger = logging.getLogger(__name__)


class SiteTasks:
    """Answers the tasks of one job at one site."""

    def __init__(self, job: dict[str, Any], mail: SiteMail | None) -> None:
        self._job, self._mail = job, mail
        self._runtime: SiteRuntime | StatusRuntime | None = None

    def answer(self, task: str, message: Shareable, fl_ctx: FLContext) -> Shareable:
        """The reply to one task. A failure tells its reason only if the reason was written to be shared."""
        try:
            if self._runtime is None:
                self._runtime = _runtime(self._job, self._mail, fl_ctx)
            round, received = unpack(message)
            return pack(round, *self._runtime.answer(task, round, received, beside(message)))
        except ACTIONABLE as error:
            return _refusal(str(error))
        except Exception as error:
            _logger.exception("task %s failed", task)
            return _refusal(f"{type(error).__name__}; the site's own log has the details")

    def close(self) -> None:
        """The run is over."""
        if self._runtime is not None:
            self._runtime.close()


def _runtime(job: dict[str, Any], mail: SiteMail | None, fl_ctx: FLContext) -> SiteRuntime | StatusRuntime:
    name, workspace = fl_ctx.get_identity_name(), fl_ctx.get_engine().get_workspace()
    local = Path(workspace.get_site_config_dir())
    # A site has one file of its own; FLARE's simulator gives all its sites one copy of a common folder.
    path = next((path for path in (local / "site.yml", local / "sites" / f"{name}.yml") if path.exists()), None)
    if path is None:
        raise ConfigError(f"site '{name}' has no site.yml")
    config = load_site_config(path, name)
    job_id, root = fl_ctx.get_job_id(), Path(workspace.get_file_path_in_startup("rootCA.pem"))
    actor = submitter(Path(workspace.get_app_dir(job_id)), root)
    if job == STATUS_JOB:
        return StatusRuntime(config, job_id, actor)
    return SiteRuntime(config, JobSpec.from_dict(job), job_id, relays=mail and mail.attempt, actor=actor)


def submitter(app: Path, root: Path) -> str:
    """SHA-256, as hex, of the certificate that a deployed job is signed with; empty if it does not hold against `root`.

    FLARE has checked the same before it deployed the job, and deploys what nobody signed unless told otherwise. Its
    simulator signs nothing.
    """
    if not root.exists() or not verify_folder_signature(str(app), str(root)):
        return ""
    return str(load_crt_chain(str(app / NVFLARE_SUBMITTER_CRT_FILE))[0].fingerprint(SHA256()).hex())


def _refusal(reason: str) -> Shareable:
    reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    reply[REASON] = reason
    return reply
