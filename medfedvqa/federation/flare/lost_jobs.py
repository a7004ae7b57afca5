"""The jobs that were running when a whole server died: FLARE is given them again once their sites are back.

FLARE (2.9) forgets them: after a restart they are RUNNING for ever, without a process. A job in clear continues from
its journal, with sites that kept what they saved; a job on shares that had begun is given up.
"""

import contextlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey, RunStatus

from audits.escaping import for_log
from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.federation.flare.persistent_process import RETURN_PATIENCE
from medfedvqa.federation.flare.run_folder import RESULTS, has_events
from medfedvqa.federation.journal import JOURNAL

FOLDER = "running"
"""The folder with a file for each running job, in the server's kit."""
_SETTLED = 20.0
"""Seconds after which what a returning site had left of the job has ended."""
_POLL = 1.0

_logger = logging.getLogger(__name__)


class RunningJob:
    """A file that names the sites of a running job, from its launch to its end."""

    def __init__(self, root: Path, job_id: str) -> None:
        self.job_id, self._root, self._path = job_id, root, root / FOLDER / f"{job_id}.json"

    def note(self, sites: Collection[str]) -> None:
        """Write the file durably."""
        write_whole(self._path, json.dumps(sorted(sites)).encode(), PRIVATE)

    def sites(self) -> set[str]:
        """The sites; empty for a file that is damaged."""
        with contextlib.suppress(OSError, ValueError):
            return set(json.loads(self._path.read_bytes()))
        return set()

    @property
    def continues(self) -> bool:
        """Whether a new process may go on: from a journal, or from the beginning if nothing had begun.

        An attempt on shares has no journal, since its randomness must not serve twice.
        """
        return (self._root / JOURNAL / self.job_id).is_dir() or not has_events(self._root / self.job_id / RESULTS)

    def forget(self) -> None:
        """The job is over: nothing is left of its journal, which holds single uploads."""
        shutil.rmtree(self._root / JOURNAL / self.job_id, ignore_errors=True)
        self._path.unlink(missing_ok=True)


def take_up(root: Path, fl_ctx: FLContext) -> threading.Thread | None:
    """Gives FLARE the jobs that were running when the server died; returns the thread that waits for their sites."""
    jobs = [RunningJob(root, path.stem) for path in sorted((root / FOLDER).glob("*.json"))]
    if not jobs:
        return None
    thread = threading.Thread(target=_wait_and_submit, args=(jobs, fl_ctx.get_engine()), name="lost-jobs", daemon=True)
    thread.start()
    return thread


def _wait_and_submit(jobs: list[RunningJob], engine: Any) -> None:
    submitted = _Submitted(engine)
    end, back_since = time.monotonic() + RETURN_PATIENCE, dict[str, float]()
    for _ in _until(end):
        present = {client.name for client in engine.get_clients()}
        for job in list(jobs):
            if not job.sites() <= present:
                back_since.pop(job.job_id, None)
            elif time.monotonic() - back_since.setdefault(job.job_id, time.monotonic()) >= _SETTLED:
                jobs.remove(job)
                submitted.add(job)
        if not jobs:
            return
    for job in jobs:
        submitted.give_up(job)


class _Submitted:
    """The jobs that were submitted again.

    FLARE's (2.9) store marks a job that it has scheduled once, and never lists it again: its list gets these as well.
    """

    def __init__(self, engine: Any) -> None:
        self._engine, self._manager = engine, engine.get_component(SystemComponents.JOB_MANAGER)
        self._jobs: set[str] = set()
        self._listed = self._manager.get_jobs_to_schedule
        self._manager.get_jobs_to_schedule = self._list

    def add(self, job: RunningJob) -> None:
        """Submit a job that continues; give up any other."""
        if job.continues:
            self._jobs.add(job.job_id)
            self._set_status(job, RunStatus.SUBMITTED)
        else:
            self.give_up(job)

    def give_up(self, job: RunningJob) -> None:
        """The job is over: its sites are not back, or it was on shares."""
        self._set_status(job, RunStatus.FINISHED_ABNORMAL)
        job.forget()

    def _list(self, fl_ctx: FLContext) -> list[Any]:
        again = [job for job in (self._manager.get_job(name, fl_ctx) for name in sorted(self._jobs)) if job]
        return [*self._listed(fl_ctx), *(job for job in again if _status_of(job) is RunStatus.SUBMITTED)]

    def _set_status(self, job: RunningJob, status: RunStatus) -> None:
        with self._engine.new_context() as fl_ctx:
            stored = self._manager.get_job(job.job_id, fl_ctx)
            if stored is None or _status_of(stored) not in (RunStatus.RUNNING, RunStatus.DISPATCHED):
                job.forget()
                return
            self._manager.set_status(job.job_id, status, fl_ctx)
        _logger.warning("the server was restarted; job %s: %s", for_log(job.job_id), status.value)


def _status_of(job: Any) -> RunStatus:
    return RunStatus(job.meta.get(JobMetaKey.STATUS.value))


def _until(end: float) -> Iterator[None]:
    while time.monotonic() < end:
        yield
        time.sleep(_POLL)
