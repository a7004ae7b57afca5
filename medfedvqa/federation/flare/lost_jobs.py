"""Continues the jobs that were not over when the earlier server died.

FLARE (2.9) forgets them: after a restart they are RUNNING for ever, without a process, and the sites are told to end
them. Here the sites keep them, and once these are back the server starts the job's own process again, which continues
from its journal. A job whose process had ended gets the status that the earlier server had not written yet.
"""

import contextlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_constant import FLContextKey, SiteType, SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import Job, JobMetaKey, RunStatus
from nvflare.apis.job_scheduler_spec import DispatchInfo
from nvflare.apis.workspace import Workspace

from audits.escaping import for_log
from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.federation.flare.run_folder import RESULTS, has_events, has_finished
from medfedvqa.federation.journal import JOURNAL

FOLDER = "running"
"""The folder with a file for each running job, in the server's kit."""
PATIENCE = 1800.0
"""Seconds for which a restarted server waits for all sites of a job; sites keep the job open for twice that time."""
_POLL = 1.0
_BEGUN = [RunStatus.DISPATCHED, RunStatus.RUNNING]

_logger = logging.getLogger(__name__)


class RunningJob:
    """A file that names the sites of a job, from its launch until FLARE has written its last status.

    A site's process of the job shows the session token that the site had when the job began. The file holds these
    tokens while the job's process runs: only the server's account can read it.
    """

    def __init__(self, root: Path, job_id: str) -> None:
        self.job_id, self._root, self._path = job_id, root, root / FOLDER / f"{job_id}.json"

    def note(self, clients: Collection[Client]) -> None:
        """Durably write the sites and their tokens into the file."""
        self._write({"sites": {client.name: client.token for client in clients}})

    def end(self) -> None:
        """Delete the journal, which holds single uploads, and the tokens: the job's process has ended."""
        shutil.rmtree(self._root / JOURNAL / self.job_id, ignore_errors=True)
        if self._path.exists():
            self._write({"finished": has_finished(self.results)})

    def forget(self) -> None:
        """Forget a job whose final status is stored: delete its journal and its file."""
        shutil.rmtree(self._root / JOURNAL / self.job_id, ignore_errors=True)
        self._path.unlink(missing_ok=True)

    @property
    def results(self) -> Path:
        """The folder of its results, in its run folder."""
        return self._root / self.job_id / RESULTS

    def clients(self) -> dict[str, Client]:
        """The sites by their tokens; empty for a job whose process has ended, and for a file that is damaged."""
        with contextlib.suppress(AttributeError):
            return {token: Client(name, token) for name, token in self._read().get("sites", {}).items()}
        return {}

    @property
    def finished(self) -> bool | None:
        """Whether the job's process ended with results; None if it has not ended."""
        finished = self._read().get("finished")
        return finished if isinstance(finished, bool) else None

    @property
    def continues(self) -> bool:
        """Whether a new process can continue: from a journal or finished results, or from the beginning if nothing had
        begun."""
        journaled = (self._root / JOURNAL / self.job_id).is_dir()
        return journaled or not has_events(self.results) or has_finished(self.results)

    def _write(self, content: dict[str, Any]) -> None:
        write_whole(self._path, json.dumps(content).encode(), PRIVATE)

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            content = json.loads(self._path.read_bytes())
            return content if isinstance(content, dict) else {}
        return {}


def end_as_the_server_did(engine: Any) -> None:
    """Keep a job's status as finished if its process at the server ended well, whatever its sites report.

    FLARE (2.9) marks such a job as abnormal if a site does not report how its process ended: because the process died
    after its last answer, or because the server was down.
    """
    runner = engine.job_runner
    fail = runner.fail_run

    def fail_run(job_id: str, process_return_code: int, fl_ctx: FLContext) -> str:
        if job_id in engine.run_processes or job_id in engine.exception_run_processes:
            return str(fail(job_id, process_return_code, fl_ctx))
        return f"Job {job_id} has ended."

    runner.fail_run = fail_run


class LostJobs:
    """The jobs of the earlier server, until they run again or are given up."""

    def __init__(self, root: Path, engine: Any) -> None:
        """Register the jobs with FLARE as ones whose end sites have yet to report, so that FLARE does not end them."""
        self._root, self._engine = root, engine
        self._jobs = {path.stem: RunningJob(root, path.stem) for path in sorted((root / FOLDER).glob("*.json"))}
        expected = engine.job_runner.get_client_outcome_jobs

        def get_client_outcome_jobs(client_name: str | None = None) -> set[str]:
            jobs: set[str] = expected(client_name)
            return jobs if client_name else jobs | {*self._jobs}

        engine.job_runner.get_client_outcome_jobs = get_client_outcome_jobs

    def take_up(self) -> None:
        """Continue each job once all of its sites are back, or, after `PATIENCE`, some of them."""
        self._settle_others()
        if self._jobs:
            threading.Thread(target=self._wait, name="lost-jobs", daemon=True).start()

    def _settle_others(self) -> None:
        """Of the jobs without a file, schedule dispatched ones again, and mark running ones as abnormal."""
        manager = self._engine.get_component(SystemComponents.JOB_MANAGER)
        with self._engine.new_context() as fl_ctx:
            for job in manager.get_jobs_by_status(_BEGUN, fl_ctx):
                if job.job_id not in self._jobs:
                    waits = job.meta.get(JobMetaKey.STATUS.value) == RunStatus.DISPATCHED.value
                    status = RunStatus.SUBMITTED if waits else RunStatus.FINISHED_ABNORMAL
                    manager.set_status(job.job_id, status, fl_ctx)

    def _wait(self) -> None:
        end = time.monotonic() + PATIENCE
        while self._jobs:
            over = time.monotonic() >= end
            present = {client.name for client in self._engine.get_clients()}
            for job in list(self._jobs.values()):
                names = {client.name for client in job.clients().values()}
                if names <= present or over:
                    self._continue(job, bool(names & present))
                    del self._jobs[job.job_id]
            time.sleep(_POLL)

    def _continue(self, job: RunningJob, has_sites: bool) -> None:
        """Start the job's process again if it can continue; otherwise end the job."""
        engine = self._engine
        manager = engine.get_component(SystemComponents.JOB_MANAGER)
        with engine.new_context() as fl_ctx:
            stored = manager.get_job(job.job_id, fl_ctx)
            status = stored and RunStatus(stored.meta.get(JobMetaKey.STATUS.value))
            if status not in _BEGUN:
                job.forget()
                return
            if has_sites and job.continues:
                self._restore(job, fl_ctx)
            if job.job_id in engine.run_processes:
                self._start_sites(stored, job, fl_ctx)
                manager.set_status(job.job_id, RunStatus.RUNNING, fl_ctx)
                state = "continues"
            else:
                state = self._end(manager, job, fl_ctx)
        _logger.warning("the server was restarted; job %s %s", for_log(job.job_id), state)

    def _restore(self, job: RunningJob, fl_ctx: FLContext) -> None:
        # FLARE sets this for the thread that schedules jobs only.
        workspace = Workspace(str(self._root), SiteType.SERVER)
        fl_ctx.set_prop(FLContextKey.WORKSPACE_OBJECT, workspace, private=True)
        self._engine.job_runner.restore_running_job(job.job_id, job.clients(), None, fl_ctx)

    def _start_sites(self, stored: Job, job: RunningJob, fl_ctx: FLContext) -> None:
        """Tell the sites to start their processes, unless the earlier server had told them all."""
        if stored.meta.get(JobMetaKey.STATUS.value) != RunStatus.DISPATCHED.value:
            return
        sites = job.clients().values()
        stored.meta[JobMetaKey.JOB_CLIENTS] = [site.to_dict() for site in sites]
        # A site starts a process only with a token of its resource manager; these jobs request no resources.
        reserved = self._engine.check_client_resources(stored, {site.name: {} for site in sites}, fl_ctx)
        starts = {name: DispatchInfo("app", {}, token) for name, (enough, token) in reserved.items() if enough}
        self._engine.start_client_job(stored, starts, fl_ctx)

    def _end(self, manager: Any, job: RunningJob, fl_ctx: FLContext) -> str:
        """Do what FLARE does at a job's end: keep what is in its run folder, and write the last status."""
        finished = bool(job.finished)
        run_folder = job.results.parent
        if run_folder.is_dir():
            manager.save_workspace(job.job_id, [str(run_folder)], fl_ctx)
            shutil.rmtree(run_folder, ignore_errors=True)
        status = RunStatus.FINISHED_COMPLETED if finished else RunStatus.FINISHED_ABNORMAL
        manager.set_status(job.job_id, status, fl_ctx)
        job.forget()
        return "has ended" if finished else "was given up"
