"""The jobs that were running when a server died: the next one continues them.

FLARE (2.9) forgets them: after a restart they are RUNNING for ever, without a process, and the sites are told to end
them. Here the sites keep them, and once these are back the server starts the job's own process again, which continues
from its journal.
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
from nvflare.apis.job_def import JobMetaKey, RunStatus
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

_logger = logging.getLogger(__name__)


class RunningJob:
    """A file that names the sites of a running job, from its launch to its end.

    A site's process of the job shows the session token that the site had when the job began. The file holds these
    tokens: only the server's account can read it.
    """

    def __init__(self, root: Path, job_id: str) -> None:
        self.job_id, self._root, self._path = job_id, root, root / FOLDER / f"{job_id}.json"

    def note(self, clients: Collection[Client]) -> None:
        """Write the file durably."""
        write_whole(self._path, json.dumps({client.name: client.token for client in clients}).encode(), PRIVATE)

    def clients(self) -> dict[str, Client]:
        """The sites by their tokens; empty for a file that is damaged."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return {token: Client(name, token) for name, token in json.loads(self._path.read_bytes()).items()}
        return {}

    @property
    def continues(self) -> bool:
        """Whether a new process can continue: from a journal or finished results, or from the beginning if nothing had
        begun."""
        results = self._root / self.job_id / RESULTS
        return (self._root / JOURNAL / self.job_id).is_dir() or not has_events(results) or has_finished(results)

    def forget(self) -> None:
        """The job is over: nothing is left of its journal, which holds single uploads."""
        shutil.rmtree(self._root / JOURNAL / self.job_id, ignore_errors=True)
        self._path.unlink(missing_ok=True)


class LostJobs:
    """The jobs of the server before, until they run again or are given up."""

    def __init__(self, root: Path, engine: Any) -> None:
        """From now on FLARE tells no site to end them: it takes them for jobs whose sites have yet to say that they
        ended."""
        self._root, self._engine = root, engine
        self._jobs = {path.stem: RunningJob(root, path.stem) for path in sorted((root / FOLDER).glob("*.json"))}
        expected = engine.job_runner.get_client_outcome_jobs

        def get_client_outcome_jobs(client_name: str | None = None) -> set[str]:
            jobs: set[str] = expected(client_name)
            return jobs if client_name else jobs | {*self._jobs}

        engine.job_runner.get_client_outcome_jobs = get_client_outcome_jobs

    def take_up(self) -> None:
        """Continue each job once all of its sites are back, or, after `PATIENCE`, some of them."""
        if self._jobs:
            threading.Thread(target=self._wait, name="lost-jobs", daemon=True).start()

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
        """Start the job's process again if it was running and continues; else the job is over."""
        engine = self._engine
        manager = engine.get_component(SystemComponents.JOB_MANAGER)
        with engine.new_context() as fl_ctx:
            stored = manager.get_job(job.job_id, fl_ctx)
            status = stored and RunStatus(stored.meta.get(JobMetaKey.STATUS.value))
            if status not in (RunStatus.RUNNING, RunStatus.DISPATCHED):
                job.forget()
                return
            if has_sites and job.continues:
                self._restore(job, fl_ctx)
            if job.job_id in engine.run_processes:
                manager.set_status(job.job_id, RunStatus.RUNNING, fl_ctx)
            else:
                manager.set_status(job.job_id, RunStatus.FINISHED_ABNORMAL, fl_ctx)
                job.forget()
        state = "continues" if job.job_id in engine.run_processes else "was given up"
        _logger.warning("the server was restarted; job %s %s", for_log(job.job_id), state)

    def _restore(self, job: RunningJob, fl_ctx: FLContext) -> None:
        # FLARE sets this for the thread that schedules jobs only.
        workspace = Workspace(str(self._root), SiteType.SERVER)
        fl_ctx.set_prop(FLContextKey.WORKSPACE_OBJECT, workspace, private=True)
        self._engine.job_runner.restore_running_job(job.job_id, job.clients(), None, fl_ctx)
