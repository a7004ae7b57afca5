"""What the server does as a FLARE workflow: runs a method's loop, one FLARE task per site and question."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from medfedvqa.errors import FederationError
from medfedvqa.federation.failures import ACTIONABLE
from medfedvqa.federation.flare.messages import REASON, pack, unpack
from medfedvqa.federation.flare.progress import write_event
from medfedvqa.federation.hub import Excused, Reply, nobody
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.methods import Tensors

RESULTS = "medfedvqa"
"""The folder of a run's results, inside FLARE's folder for the job."""

STOP_FILE = "MEDFEDVQA_STOP"
"""Environment variable: a path; once that file exists, the server ends after the round and evaluates."""

_ABORT_CHECK = 0.1  # seconds


def serve_on_flare(controller: Controller, job: dict[str, Any], fl_ctx: FLContext, abort_signal: Signal) -> None:
    """Run the job over all its clients; a failure stops it with the sentence that says which site and why."""
    flare = fl_ctx.get_engine()
    sites = tuple(sorted(client.name for client in flare.get_clients()))
    out = Path(flare.get_workspace().get_run_dir(fl_ctx.get_job_id())) / RESULTS
    out.mkdir(parents=True, exist_ok=True)
    engine = "simulator" if fl_ctx.get_job_id() == SimulatorConstants.JOB_NAME else "provisioned"
    caller = _Caller(controller, fl_ctx, abort_signal)
    try:
        serve_job(JobSpec.from_dict(job), sites, caller.call, out, engine, partial(write_event, out), _stop_asked)
    except ACTIONABLE as error:
        if not abort_signal.triggered:
            controller.system_panic(str(error), fl_ctx)


class _Caller:
    """Sends tasks through a FLARE controller and waits for all answers."""

    def __init__(self, controller: Controller, fl_ctx: FLContext, abort_signal: Signal) -> None:
        self._controller, self._fl_ctx, self._abort = controller, fl_ctx, abort_signal

    def call(
        self,
        task: str,
        round: int,
        messages: Mapping[str, Tensors],
        answered: Callable[[str], None],
        excused: Excused = nobody,
    ) -> dict[str, Reply]:
        """See `medfedvqa.federation.hub.Call`."""
        gathering = _Gathering(set(messages), answered, excused)
        tasks = {site: gathering.task(task, site, pack(round, tensors)) for site, tensors in messages.items()}
        for site, sent in tasks.items():
            self._controller.send(sent, self._fl_ctx, targets=[site])
        try:
            while not gathering.complete(_ABORT_CHECK):
                if self._abort.triggered:
                    raise FederationError("the job was aborted")
        except FederationError:
            self._controller.cancel_all_tasks()
            raise
        for site in gathering.missing():
            self._controller.cancel_task(tasks[site])
        return gathering.replies


class _Gathering:
    """The answers to one task, as they arrive on FLARE's threads."""

    def __init__(self, waiting: set[str], answered: Callable[[str], None], excused: Excused) -> None:
        self.replies: dict[str, Reply] = {}
        self._waiting, self._answered, self._excused = waiting, answered, excused
        self._failure: FederationError | None = None
        self._closed = False
        self._change = threading.Condition()

    def task(self, name: str, site: str, message: Shareable) -> Task:
        """A FLARE task whose answer comes here."""
        done = partial(self._done, site)
        task = Task(name=name, data=message, result_received_cb=self._received, task_done_cb=done)
        task.client_tasks = _Distinct()
        return task

    def complete(self, seconds: float) -> bool:
        """Wait for all answers but the excused, at most so long. Raises `FederationError` as soon as a site failed."""
        with self._change:
            self._change.wait_for(lambda: self._failure or self._enough(), seconds)
            if self._failure:
                raise self._failure
            return self._enough()

    def missing(self) -> list[str]:
        """The sites that have not answered; from now on their answers are dropped."""
        with self._change:
            self._closed = True
            return sorted(self._waiting)

    def _enough(self) -> bool:
        return self._waiting <= set(self._excused(self.replies))

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        site, result = client_task.client.name, client_task.result
        if result.get_return_code() != ReturnCode.OK:
            reason = result.get(REASON, f"FLARE reports {result.get_return_code()}")
            self._fail(f"site '{site}' stopped the job: {reason}")
            return
        _, tensors = unpack(result)
        with self._change:
            if self._closed:
                return
            self._answered(site)
            self.replies[site] = Reply(tensors, time.time() - client_task.task_sent_time)
            self._waiting.discard(site)
            self._change.notify_all()

    def _done(self, site: str, task: Task, fl_ctx: FLContext) -> None:
        if task.completion_status not in (TaskCompletionStatus.OK, TaskCompletionStatus.CANCELLED):
            self._fail(f"site '{site}' did not answer: {task.completion_status.value}")

    def _fail(self, reason: str) -> None:
        with self._change:
            self._failure = self._failure or FederationError(reason)
            self._change.notify_all()


class _Distinct(list[ClientTask]):
    """A task's assignments, each once.

    When a site asks again for a task that it lost, FLARE 2.9 lists the assignment a second time if tasks for
    other sites stand as well, and its monitor thread dies on the duplicate once the task is done.
    """

    def append(self, client_task: ClientTask) -> None:
        """Add an assignment unless it is there."""
        if client_task not in self:
            super().append(client_task)


def _stop_asked() -> bool:
    path = os.environ.get(STOP_FILE)
    return path is not None and Path(path).exists()
