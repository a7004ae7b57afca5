"""What a restarted server does with the jobs of the one that died: FLARE's own store of jobs, without a federation."""

import json
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
from nvflare.apis.client import Client
from nvflare.apis.fl_constant import SystemComponents
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.job_def_manager import SimpleJobDefManager
from nvflare.apis.job_def import JobMetaKey, RunStatus
from nvflare.apis.server_engine_spec import ServerEngineSpec
from nvflare.app_common.storages.filesystem_storage import FilesystemStorage
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.private.fed.server.job_runner import JobRunner
from phantoms import wait_for

from medfedvqa.federation.flare.lost_jobs import FOLDER, LostJobs, RunningJob, end_as_the_server_did
from medfedvqa.federation.flare.progress import write_event
from medfedvqa.federation.flare.run_folder import RESULTS
from medfedvqa.federation.hub import TaskAnswer
from medfedvqa.federation.journal import JOURNAL

SITES = [Client("head", "token-1"), Client("chest", "token-2")]


class Engine(ServerEngineSpec):
    """FLARE's job runner and job manager over a store in a folder, and nothing that runs."""

    def __init__(self, root: Path) -> None:
        self.lock = threading.Lock()
        self.run_processes: dict[str, Any] = {}
        self.exception_run_processes: dict[str, Any] = {}
        self.job_runner = JobRunner(str(root))
        self._parts = {
            SystemComponents.JOB_MANAGER: SimpleJobDefManager(str(root / "jobs")),
            "job_store": FilesystemStorage(str(root / "store")),
        }
        self._contexts = FLContextManager(engine=self)

    def get_component(self, component_id: str) -> Any:
        return self._parts[component_id]

    def get_clients(self) -> list[Client]:
        return []

    def new_context(self) -> FLContext:
        return self._contexts.new_context()

    def submit(self, status: RunStatus) -> str:
        """A job that has this status; returns its id."""
        with self.new_context() as fl_ctx:
            manager = self.get_component(SystemComponents.JOB_MANAGER)
            job_id = str(manager.create({}, b"", fl_ctx)[JobMetaKey.JOB_ID.value])
            manager.set_status(job_id, status, fl_ctx)
        return job_id

    def status(self, job_id: str) -> RunStatus:
        """What `nvflare job list` says."""
        with self.new_context() as fl_ctx:
            job = self.get_component(SystemComponents.JOB_MANAGER).get_job(job_id, fl_ctx)
            return RunStatus(job.meta[JobMetaKey.STATUS.value])

    def schedulable(self) -> list[str]:
        """The jobs that FLARE would start."""
        with self.new_context() as fl_ctx:
            manager = self.get_component(SystemComponents.JOB_MANAGER)
            return [job.job_id for job in manager.get_jobs_to_schedule(fl_ctx)]


# The rest of what FLARE asks of an engine is not used here.
Engine.__abstractmethods__ = frozenset()


def write_results(root: Path, job_id: str, status: str) -> None:
    """Results with this status, after a first event."""
    (root / job_id / RESULTS).mkdir(parents=True)
    write_event(root / job_id / RESULTS, TaskAnswer(1, 2, "train", "chest"))
    (root / job_id / RESULTS / "results.json").write_text(json.dumps({"status": status}))


def take_up(root: Path, engine: Engine) -> None:
    """As a restarted server does."""
    LostJobs(root, engine).take_up()
    wait_for(lambda: not list((root / FOLDER).glob("*.json")), 0.01)


def test_a_running_job_is_noted_until_its_end(tmp_path: Path) -> None:
    """After a server's death a job continues from its journal, from its results if it died after these, or from the
    beginning if nothing had begun. Once a job is over nothing is left of its journal, which holds single uploads."""
    jobs = {name: RunningJob(tmp_path, name) for name in ("journaled", "ended", "lost", "young")}
    for job in jobs.values():
        job.note(SITES)
    write_results(tmp_path, "journaled", "running")
    write_results(tmp_path, "ended", "finished")
    write_results(tmp_path, "lost", "running")
    (tmp_path / JOURNAL / "journaled").mkdir(parents=True)
    continues = {name: job.continues for name, job in jobs.items()}
    assert continues == {"journaled": True, "ended": True, "lost": False, "young": True}
    noted = RunningJob(tmp_path, "journaled")
    assert {token: client.name for token, client in noted.clients().items()} == {"token-1": "head", "token-2": "chest"}
    assert noted.finished is None
    assert (tmp_path / FOLDER / "journaled.json").stat().st_mode & 0o077 == 0
    for damaged in ("[", "[]", '{"sites": []}', '{"sites": {"head": "token-1"}, "finished": "yes"}'):
        (tmp_path / FOLDER / "lost.json").write_text(damaged)
        assert len(jobs["lost"].clients()) == damaged.count("token") and jobs["lost"].finished is None
    for job in jobs.values():
        job.forget()
        job.forget()
    assert not list((tmp_path / JOURNAL).iterdir()) and not list((tmp_path / FOLDER).iterdir())


def test_a_job_whose_process_has_ended_is_noted_without_journal_and_tokens(tmp_path: Path) -> None:
    """Until FLARE has its last status; a job that is over for FLARE stays forgotten."""
    job = RunningJob(tmp_path, "job")
    job.note(SITES)
    (tmp_path / JOURNAL / "job").mkdir(parents=True)
    write_results(tmp_path, "job", "finished")
    job.end()
    assert job.finished is True and job.clients() == {} and not list((tmp_path / JOURNAL).iterdir())
    assert "token" not in (tmp_path / FOLDER / "job.json").read_text()
    job.forget()
    job.end()
    assert not list((tmp_path / FOLDER).iterdir())


def test_no_site_is_told_to_end_a_job_that_the_server_will_continue(tmp_path: Path) -> None:
    """FLARE ends the jobs of a site that it neither runs nor expects an outcome of."""
    RunningJob(tmp_path, "lost").note([Client("head", "token")])
    engine = Engine(tmp_path)
    LostJobs(tmp_path, engine)
    runner = engine.job_runner
    assert runner.get_client_outcome_jobs() == {"lost"} and runner.get_client_outcome_jobs("head") == set()


@pytest.mark.parametrize(
    ("results", "status"), [("finished", RunStatus.FINISHED_COMPLETED), ("failed", RunStatus.FINISHED_ABNORMAL)]
)
@pytest.mark.parametrize("archived", [False, True])
def test_a_job_whose_process_had_ended_gets_its_last_status_and_keeps_its_results(
    tmp_path: Path, results: str, status: RunStatus, archived: bool
) -> None:
    """The server died while it waited for its sites' word, or after it had put the results into its store."""
    engine = Engine(tmp_path)
    job_id = engine.submit(RunStatus.RUNNING)
    job = RunningJob(tmp_path, job_id)
    job.note(SITES)
    write_results(tmp_path, job_id, results)
    job.end()
    manager = engine.get_component(SystemComponents.JOB_MANAGER)
    if archived:
        with engine.new_context() as fl_ctx:
            manager.save_workspace(job_id, [str(tmp_path / job_id)], fl_ctx)
        (tmp_path / job_id).rename(tmp_path / "removed")
    take_up(tmp_path, engine)
    assert engine.status(job_id) is status and not (tmp_path / job_id).exists()
    with engine.new_context() as fl_ctx:
        manager.get_storage_for_download(job_id, str(tmp_path), "workspace", "fetched", fl_ctx)
    with zipfile.ZipFile(tmp_path / job_id / "fetched") as fetched:
        (name,) = [name for name in fetched.namelist() if name.endswith(f"{RESULTS}/results.json")]
        assert json.loads(fetched.read(name))["status"] == results


def test_a_job_that_no_process_had_begun_is_scheduled_anew_and_one_that_nobody_knows_is_over(tmp_path: Path) -> None:
    """A server that dies between FLARE's word for a job and the launch leaves no note: FLARE would list it for ever."""
    engine = Engine(tmp_path)
    waiting, unknown = engine.submit(RunStatus.DISPATCHED), engine.submit(RunStatus.RUNNING)
    take_up(tmp_path, engine)
    assert engine.status(unknown) is RunStatus.FINISHED_ABNORMAL
    assert engine.status(waiting) is RunStatus.SUBMITTED and engine.schedulable() == [waiting]


def test_what_a_site_says_of_its_process_fails_no_job_whose_server_has_ended_well(tmp_path: Path) -> None:
    """And fails every other one."""
    engine = Engine(tmp_path)
    end_as_the_server_did(engine)
    engine.exception_run_processes["failed"] = {}
    for job_id in ("ended", "failed"):
        engine.job_runner.running_jobs[job_id] = None
        with engine.new_context() as fl_ctx:
            engine.job_runner.fail_run(job_id, ProcessExitCode.INFRASTRUCTURE_ERROR, fl_ctx)
    assert "ended" not in engine.exception_run_processes
    assert ProcessExitCode.INFRASTRUCTURE_ERROR in engine.exception_run_processes["failed"].values()
