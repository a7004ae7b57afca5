"""The guard of a server's processes: no job configures the server, and a refused job leaves no file there.

Nobody has to trust a server, and a hostile one runs without this guard. The guard protects an honest server, and the
jobs of everybody who uses it, from a single job. FLARE makes `ServerGuard` from `local/guard__resources.json`.
"""

import io
import shutil
from pathlib import Path
from typing import Any, NoReturn
from zipfile import BadZipFile, ZipFile

from nvflare.apis.client import ClientDictKey
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, JobConstants, SiteType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import Job, JobMetaKey
from nvflare.apis.job_launcher_spec import JobHandleSpec
from nvflare.apis.workspace import Workspace
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.utils.job_launcher_utils import get_server_job_args
from nvflare.utils.process_utils import ProcessAdapter

from audits import JobRefused, Refusal
from medfedvqa.federation.flare import kit_contents, patches, pinned_settings
from medfedvqa.federation.flare.allowed_types import decode_listed_only
from medfedvqa.federation.flare.ended_streams import forget_ended_streams
from medfedvqa.federation.flare.job_schema import CONTROLLER
from medfedvqa.federation.flare.lost_jobs import LostJobs, RunningJob, end_as_the_server_did
from medfedvqa.federation.flare.memory_release import return_free_memory
from medfedvqa.federation.flare.parent_process import adopt_children
from medfedvqa.federation.flare.persistent_process import PersistentHandle, command_line
from medfedvqa.federation.flare.validator import ask_own_validator_first

MOST_FILES, MOST_UNPACKED = 16, 1 << 23
"""The most files of an app's archive, folders included, and the most bytes that it may unpack to."""

_OWN = ("nvflare.apis.fl_snapshot.RunSnapshot", "nvflare.private.fed.server.run_info.RunInfo")
"""The types that FLARE decodes from the server's own files, and from its jobs' processes."""

_installed: list["ServerGuard"] = []


class ServerGuard(FLComponent):
    """Pins FLARE's settings in this process, or ends the process with a sentence."""

    def __init__(self) -> None:
        super().__init__()
        arguments = pinned_settings.parser().parse_known_args()[0]
        self.kit = Path(arguments.workspace)
        if reason := kit_contents.kit_problem(self.kit, "server"):
            _refuse(reason)
        pinned_settings.pin_settings(self.kit)
        self._require(pinned_settings.not_pinned(self.kit))
        return_free_memory()
        forget_ended_streams()
        decode_listed_only(*_OWN)
        _leave_nothing_of_refused_jobs()
        _unpack_small_archives_only()
        _installed.append(self)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Check the guard again before the server takes jobs, and in a job's process each class before it is made."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            secure = bool(getattr(fl_ctx.get_prop(FLContextKey.SITE_OBJ), "secure_train", False))
            conditions = {
                "job validator": pinned_settings.has_own_validator(),
                "mutual TLS": secure,
                "rights": pinned_settings.pin_rights(pinned_settings.SERVER_RIGHTS),
            }
            self._require(pinned_settings.not_in_force(self.kit, conditions))
            ask_own_validator_first()
        elif event_type == EventType.BEFORE_BUILD_COMPONENT:
            self._require(pinned_settings.not_pinned(self.kit))
            pinned_settings.refuse_other_classes(fl_ctx, CONTROLLER, "server")

    def _require(self, missing: list[str]) -> None:
        if missing:
            _refuse(f"not in force: {', '.join(missing)}; provision the kit again")


class ServerJobLauncher(ServerProcessJobLauncher):
    """FLARE's launcher for the server's job processes, which are started again; a server's resources.json names it.

    FLARE (2.9) treats a job process that dies by a signal as a failed job. Here the next process continues from the
    journal of the one that died.
    """

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        """Start the process of a job. Once it has ended, however it did, nothing is left of its journal."""
        workspace: Workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        running = RunningJob(Path(workspace.get_root_dir()), str(job_meta[JobConstants.JOB_ID]))
        if JobMetaKey.JOB_CLIENTS in job_meta:  # not in a job that this server continues
            names = {client[ClientDictKey.NAME] for client in job_meta[JobMetaKey.JOB_CLIENTS]}
            running.note([client for client in fl_ctx.get_engine().get_clients() if client.name in names])

        def start() -> ProcessAdapter:
            return ServerProcessJobLauncher.launch_job(self, job_meta, fl_ctx).adapter

        return PersistentHandle(start, running.end)

    def get_command(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> str:
        """The command of the process, with each value quoted."""
        return command_line(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS), get_server_job_args())

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Also require the guard when the server starts, take up the jobs of the one that died, and forget jobs that
        are over."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            workspace: Workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
            self._root = Path(workspace.get_root_dir())
            self._lost = LostJobs(self._root, fl_ctx.get_engine())
            end_as_the_server_did(fl_ctx.get_engine())
            require_server_guard()
            adopt_children()
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.SYSTEM_START:
            self._lost.take_up()
        if event_type in (EventType.JOB_COMPLETED, EventType.JOB_ABORTED):
            job_id = fl_ctx.get_prop(FLContextKey.EVENT_DATA)[JobMetaKey.JOB_ID.value]
            RunningJob(self._root, str(job_id)).forget()


def require_server_guard() -> None:
    """End this process unless it is guarded."""
    if not _installed:
        _refuse(f"guard: it is not installed; put back local/{kit_contents.SERVER_GUARDED}, which provisioning wrote")


def _refuse(reason: str) -> NoReturn:
    pinned_settings.stop(f"This server does not start. {reason}.")


def _leave_nothing_of_refused_jobs() -> None:
    """FLARE (2.9) keeps the deployed files of a job that a site, or a check of its signature, refused."""
    deploy = patches.DEPLOY_JOB.current()

    def deploy_job(runner: Any, job: Job, sites: dict[str, Any], fl_ctx: FLContext) -> Any:
        try:
            return deploy(runner, job, sites, fl_ctx)
        except Exception:
            workspace = Workspace(root_dir=runner.workspace_root, site_name=SiteType.SERVER)
            shutil.rmtree(workspace.get_run_dir(job.job_id), ignore_errors=True)
            raise

    patches.DEPLOY_JOB.replace(deploy_job)


def _unpack_small_archives_only() -> None:
    """FLARE (2.9) unpacks a job's archive, whatever it inflates to, before it asks the validator."""
    unpack = patches.UNZIP.current()

    def unzip(content: bytes, folder: str) -> None:
        try:
            with ZipFile(io.BytesIO(content)) as archive:
                entries = archive.infolist()
            small = len(entries) <= MOST_FILES and sum(entry.file_size for entry in entries) <= MOST_UNPACKED
        except (BadZipFile, ValueError, NotImplementedError):
            small = False
        if not small:
            raise JobRefused(Refusal.FOLDER, "the job's archive is damaged, or holds too much")
        unpack(content, folder)

    patches.UNZIP.replace(unzip)
