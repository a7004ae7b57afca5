"""Starts a site's job process, and starts it again when something kills it.

FLARE (2.9) treats a job process that dies by a signal as a failed job, and forgets the jobs of a client that is itself
killed. Here a repeated task is answered from saved state, so neither has to end a job. Once a job is over, however it
ended, the launcher starts a process that settles its budget and closes its log.
"""

import contextlib
import json
import logging
import threading
from pathlib import Path
from typing import Any

import psutil
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, JobConstants
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobProcessArgs
from nvflare.apis.workspace import Workspace
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.utils.job_launcher_utils import get_client_job_args
from nvflare.utils.process_utils import ProcessAdapter

from audits.escaping import for_log
from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.errors import FederationError
from medfedvqa.federation.flare.hardening import require_guard
from medfedvqa.federation.flare.parent_process import adopt_children
from medfedvqa.federation.flare.persistent_process import PersistentHandle, command_line
from medfedvqa.vault.courier import SiteCourier
from medfedvqa.vault.place import VaultPlace

_RECORD = "launch.json"
_CREDENTIALS = (JobProcessArgs.AUTH_TOKEN, JobProcessArgs.TOKEN_SIGNATURE, JobProcessArgs.SSID)

_logger = logging.getLogger(__name__)


class LaunchRecord:
    """A file in the job's run folder with what a restarted client needs to continue the job.

    The server knows a job's sites by the session tokens that they had when it began. The file holds that token: only
    the site's account can read it, and it is deleted when the job ends.
    """

    def __init__(self, run_folder: Path) -> None:
        self.path = run_folder / _RECORD

    def restore(self, arguments: dict[str, Any]) -> None:
        """Replace newer credentials by those that the job began with, if there is a record."""
        if self.path.exists():
            saved = json.loads(self.path.read_text(encoding="utf-8"))["credentials"]
            arguments.update({name: tuple(option) for name, option in saved.items()})

    def write(self, arguments: dict[str, Any], pid: int) -> None:
        """Record the credentials and the process of a launch."""
        record = {
            "credentials": {name: arguments[name] for name in _CREDENTIALS},
            "pid": pid,
            "created": psutil.Process(pid).create_time(),
        }
        write_whole(self.path, json.dumps(record).encode(), PRIVATE)

    def end_orphan(self) -> None:
        """End the recorded process if it outlived the client that started it."""
        record = json.loads(self.path.read_text(encoding="utf-8"))
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(record["pid"])
            if process.create_time() == record["created"]:
                process.kill()
                process.wait()

    def delete(self) -> None:
        """Delete the record, once the job has ended."""
        self.path.unlink(missing_ok=True)


class SiteJobLauncher(ClientProcessJobLauncher):
    """FLARE's launcher for client jobs, with processes that are started again; a site's resources.json names it."""

    def __init__(self) -> None:
        super().__init__()
        self._running: set[str] = set()
        self._closing, self._vault = threading.Lock(), SiteCourier()

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        """Start the process of a job, with the job's first credentials if this client was restarted."""
        workspace: Workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        job_id = job_meta[JobConstants.JOB_ID]
        arguments = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
        record = LaunchRecord(Path(workspace.get_run_dir(job_id)))
        record.restore(arguments)
        self._running.add(job_id)

        def start() -> ProcessAdapter:
            handle = ClientProcessJobLauncher.launch_job(self, job_meta, fl_ctx)
            record.write(arguments, handle.adapter.pid)
            return handle.adapter

        def ended() -> None:
            record.delete()
            self._running.discard(job_id)
            self._close_jobs(workspace, job_id)

        return PersistentHandle(start, ended)

    def get_command(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> str:
        """The command of the process, with each value quoted."""
        return command_line(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS), get_client_job_args())

    def _close_jobs(self, workspace: Workspace, *ended: str) -> None:
        """Have the vault, which is started if necessary, close the site's jobs that no longer run.

        A job may begin while the vault starts, so the set of running jobs is read when the vault answers.
        """

        def close() -> None:
            try:
                with self._closing:
                    self._vault.close_jobs(VaultPlace.of_kit(Path(workspace.get_root_dir())), self._running, ended)
            except (FederationError, OSError):
                _logger.error("the jobs that ended could not be closed; `medfedvqa doctor` says which are open")

        threading.Thread(target=close, name="close-jobs").start()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Also require the guard when the client starts, and continue its predecessor's jobs once it is up."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            require_guard()
            adopt_children()
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.SYSTEM_START:
            workspace: Workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
            for path in Path(workspace.get_root_dir()).glob(f"*/{_RECORD}"):
                self._resume(path.parent.name, workspace, fl_ctx)
            self._close_jobs(workspace)

    def _resume(self, job_id: str, workspace: Workspace, fl_ctx: FLContext) -> None:
        # The server ends the process again with the next heartbeat if the job is over there.
        LaunchRecord(Path(workspace.get_run_dir(job_id))).end_orphan()
        meta = json.loads(Path(workspace.get_job_meta_path(job_id)).read_text(encoding="utf-8"))
        result = fl_ctx.get_engine().start_app(job_id, job_meta=meta)
        _logger.warning("the client was restarted; job %s: %s", for_log(job_id), for_log(str(result)))
