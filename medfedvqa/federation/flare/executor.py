"""A site's end of the wire, as FLARE sees it."""

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from medfedvqa.federation.flare.hardening import require_guard
from medfedvqa.federation.flare.parent_process import die_if_orphaned
from medfedvqa.federation.flare.result_guard import log_counts, record_answer
from medfedvqa.federation.flare.site_mail import SiteMail

if TYPE_CHECKING:
    from medfedvqa.federation.flare.site_side import SiteTasks

PATIENCE = 60.0
"""Seconds without a word from the server after which a site asks again: its question may have died with a process."""
_SITE_SIDE = "medfedvqa.federation.flare.site_side"


class SiteExecutor(Executor):
    """Runs a job's tasks by what the site's own `site.yml` says; the job brings names and numbers only."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.job = job
        self._tasks: SiteTasks | None = None
        self._mail: SiteMail | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """See `SiteTasks.answer`."""
        if self._tasks is None:
            from medfedvqa.federation.flare.site_side import SiteTasks

            self._tasks = SiteTasks(self.job, self._mail)
        reply = self._tasks.answer(task_name, shareable, fl_ctx)
        record_answer(task_name, reply)
        return reply

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """From its start the site takes mail of others, if the job has any; at its end the site's log says so."""
        if event_type == EventType.START_RUN:
            if fl_ctx.get_job_id() != SimulatorConstants.JOB_NAME:
                require_guard()
            # Below the kit's `communication_timeout`, which is five minutes, FLARE ignores a job's `get_task_timeout`.
            fl_ctx.get_engine().client.communicator.timeout = PATIENCE
            # Imported late for the same reason as at the server, and while the server does the same.
            threading.Thread(target=import_module, args=(_SITE_SIDE,), daemon=True).start()
            if self.job.get("secagg"):
                self._mail = SiteMail(fl_ctx.get_engine(), fl_ctx.get_job_id())
        if event_type == EventType.END_RUN:
            die_if_orphaned()
            if self._mail is not None:
                self._mail.close()
            if self._tasks is not None:
                self._tasks.close()
        if event_type in (EventType.AFTER_SEND_TASK_RESULT, EventType.END_RUN):
            log_counts(event_type == EventType.END_RUN)
