"""A site's end of the wire: FLARE task in, `SiteRuntime`, FLARE reply out."""

import logging
from pathlib import Path
from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from audits import AuditError
from medfedvqa.errors import ConfigError, MedfedvqaError
from medfedvqa.federation.flare.messages import REASON, pack, unpack
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site import SiteRuntime
from medfedvqa.federation.site_config import load_site_config

_logger = logging.getLogger(__name__)


class SiteExecutor(Executor):
    """Runs a job's tasks by what the site's own `site.yml` says; the job brings names and numbers only."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.job = job
        self._runtime: SiteRuntime | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer one task. A failure tells the server its reason only if the reason was written to be shared."""
        try:
            if self._runtime is None:
                self._runtime = _runtime(self.job, fl_ctx)
            round, received = unpack(shareable)
            return pack(round, self._runtime.handle(task_name, round, received))
        except (MedfedvqaError, AuditError) as error:
            return _refusal(str(error))
        except Exception as error:
            _logger.exception("task %s failed", task_name)
            return _refusal(f"{type(error).__name__}; the site's own log has the details")


def _runtime(job: dict[str, Any], fl_ctx: FLContext) -> SiteRuntime:
    name = fl_ctx.get_identity_name()
    local = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir())
    # A site has one file of its own; FLARE's simulator gives all its sites one copy of a common folder.
    path = next((path for path in (local / "site.yml", local / "sites" / f"{name}.yml") if path.exists()), None)
    if path is None:
        raise ConfigError(f"site '{name}' has no site.yml")
    return SiteRuntime(load_site_config(path, name), JobSpec.from_dict(job), fl_ctx.get_job_id())


def _refusal(reason: str) -> Shareable:
    reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    reply[REASON] = reason
    return reply
