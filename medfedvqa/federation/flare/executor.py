"""The FLARE executor of a site: it passes each task's bytes to the site's vault, and returns the vault's reply."""

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from audits import JobRefused, Refusal
from medfedvqa.errors import FederationError
from medfedvqa.federation.flare.hardening import answer_no_diagnostics, require_guard
from medfedvqa.federation.flare.job_folder import read_files
from medfedvqa.federation.flare.messages import REASON, audit_bytes, pack, unpack
from medfedvqa.federation.flare.parent_process import die_if_orphaned
from medfedvqa.federation.flare.site_mail import SiteMail
from medfedvqa.vault.courier import JobCourier, reach
from medfedvqa.vault.frames import FrameRefused
from medfedvqa.vault.place import JOB_FILE, VaultPlace

PATIENCE = 60.0
"""Seconds without an answer after which a site asks the server again: its request may have died with a process."""


class SiteExecutor(Executor):
    """Carries a job's tasks to the site's vault; the job brings names and numbers only, and this process has no row."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.job = job
        self._courier: JobCourier | None = None
        self._mail: SiteMail | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """The vault's reply to one task; a failure is a code and nothing else."""
        if self._courier is None:
            self._courier = self._new_courier(fl_ctx)
        return carry(self._courier, task_name, shareable)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Require the guard, open mail and start the vault when a run starts; close mail and job when it ends."""
        if event_type == EventType.START_RUN:
            if fl_ctx.get_job_id() != SimulatorConstants.JOB_NAME:
                require_guard()
                answer_no_diagnostics(fl_ctx)
            # Below the kit's `communication_timeout`, which is five minutes, FLARE ignores a job's `get_task_timeout`.
            fl_ctx.get_engine().client.communicator.timeout = PATIENCE
            if self.job.get("secagg"):
                self._mail = SiteMail(fl_ctx.get_engine(), fl_ctx.get_job_id())
            # A vault that does not run starts while the server does the same.
            threading.Thread(target=_start, args=(_place(fl_ctx),), daemon=True).start()
        if event_type == EventType.END_RUN:
            die_if_orphaned()
            if self._mail is not None:
                self._mail.close()
            if self._courier is not None:
                self._courier.close()
                counts = f"{self._courier.answered} bytes of answers and {self._courier.mailed} of sealed mail"
                self.log_info(fl_ctx, f"passed on from the vault: {counts}")

    def _new_courier(self, fl_ctx: FLContext) -> JobCourier:
        job_id, mail = fl_ctx.get_job_id(), self._mail
        if job_id == SimulatorConstants.JOB_NAME:
            files = {JOB_FILE: json.dumps(self.job).encode()}
        else:
            files = {}
            with suppress(JobRefused):  # the vault refuses a job without files, and its log says so
                files = read_files(Path(fl_ctx.get_engine().get_workspace().get_app_dir(job_id)))
        return JobCourier(_place(fl_ctx), job_id, files, mail.attempt if mail else None)


def carry(courier: JobCourier, task: str, message: Shareable) -> Shareable:
    """The vault's reply to a server's message, as a message to the server."""
    try:
        try:
            round, received = unpack(message)
            frame = courier.ask("task", received, audit_bytes(message), task=task, round=round)
        except (JobRefused, FrameRefused):
            frame = courier.ask("malformed")
    except FederationError:
        return _refusal(Refusal.FAILED.value)
    if frame.kind == "refused":
        return _refusal(frame.fields["code"])
    return pack(frame.fields["round"], dict(frame.arrays), frame.data)


def _place(fl_ctx: FLContext) -> VaultPlace:
    name, workspace = fl_ctx.get_identity_name(), fl_ctx.get_engine().get_workspace()
    if fl_ctx.get_job_id() != SimulatorConstants.JOB_NAME:
        return VaultPlace.of_kit(Path(workspace.get_root_dir()))
    # FLARE's simulator gives all its sites one copy of a common folder.
    sites = Path(workspace.get_site_config_dir()) / "sites"
    return VaultPlace(sites / f"{name}.yml", name, None, sites / name)


def _start(place: VaultPlace) -> None:
    with suppress(FederationError, OSError):  # the first task says what is wrong
        reach(place).close()


def _refusal(code: str) -> Shareable:
    reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    reply[REASON] = code
    return reply
