"""The server as a FLARE workflow: it runs a method's loop, with one FLARE task for each site and call."""

import os
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from audits import JobRefused, Refusal
from medfedvqa.core import Tensors
from medfedvqa.errors import FederationError
from medfedvqa.federation.error_codes import ACTIONABLE
from medfedvqa.federation.flare.messages import audit_bytes, pack, refusal, unpack
from medfedvqa.federation.flare.parent_process import die_if_orphaned
from medfedvqa.federation.flare.progress import write_event
from medfedvqa.federation.flare.run_folder import RESULTS, has_finished
from medfedvqa.federation.hub import Excused, Refused, Reply, TaskCall, stop_job
from medfedvqa.federation.job import STATUS_JOB, JobSpec
from medfedvqa.federation.journal import JOURNAL, Journal
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.server_receipts import SERVER_KEYS, ServerReceipts
from medfedvqa.federation.shared_model import MODELS
from medfedvqa.federation.site_status import EXCHANGE as STATUS_EXCHANGE
from medfedvqa.federation.site_status import serve_status
from medfedvqa.plugins import LIST_FILE, PlugInRefused, allow, read_list

STOP_FILE = "MEDFEDVQA_STOP"
"""Environment variable: a path. Once a file is there, the server ends after the current round and evaluates."""

SITE_PATIENCE = "MEDFEDVQA_SITE_PATIENCE"
"""Environment variable: seconds without a heartbeat after which a job on shares continues without the site."""

_PATIENCE = 300.0  # seconds; FLARE (2.9) gives a site up after 660, and then the job fails
_ABORT_CHECK = 0.1  # seconds


def serve_on_flare(controller: Controller, job: dict[str, Any], fl_ctx: FLContext, abort_signal: Signal) -> None:
    """Run the job over all its clients. A failure stops it with a sentence that names the site and the reason."""
    flare = fl_ctx.get_engine()
    sites = tuple(sorted(client.name for client in flare.get_clients()))
    out = Path(flare.get_workspace().get_run_dir(fl_ctx.get_job_id())) / RESULTS
    out.mkdir(parents=True, exist_ok=True)
    keys = Path(flare.get_workspace().get_site_config_dir()) / SERVER_KEYS
    if job == STATUS_JOB:
        with closing(ServerReceipts(STATUS_EXCHANGE, fl_ctx.get_job_id(), sites, keys, out)) as receipts:
            serve_status(sites, _Caller(controller, fl_ctx, abort_signal, None).call, out, receipts)
        return
    engine = "simulator" if fl_ctx.get_job_id() == SimulatorConstants.JOB_NAME else "provisioned"
    try:
        allow(read_list(Path(flare.get_workspace().get_site_config_dir()) / LIST_FILE))
        spec = JobSpec.from_dict(job)
    except PlugInRefused:
        controller.system_panic(f"the server refuses the job: {Refusal.PLUG_IN.sentence}", fl_ctx)
        return
    # The simulator's sites have no heartbeat; it ends when one of them dies.
    heartbeats = _Heartbeats(controller, sites) if spec.secagg and engine == "provisioned" else None
    caller = _Caller(controller, fl_ctx, abort_signal, heartbeats)
    if engine == "provisioned" and has_finished(out):
        # The process before died after its work, and perhaps before the last receipts were signed.
        ServerReceipts(spec.exchange(), fl_ctx.get_job_id(), sites, keys, out).close()
        return
    # Whoever submitted the job may fetch its run folder, and the journal holds single uploads: it lies elsewhere.
    folder = Path(flare.get_workspace().get_root_dir()) / JOURNAL / fl_ctx.get_job_id()
    journal = Journal(folder if engine == "provisioned" else None)
    try:
        with closing(ServerReceipts(spec.exchange(), fl_ctx.get_job_id(), sites, keys, out)) as receipts:
            watch = partial(write_event, out)
            models = folder.parents[1] / MODELS if engine == "provisioned" else None
            serve_job(spec, sites, caller.call, out, engine, watch, _stop_asked, receipts, journal, models)
    except ACTIONABLE as error:
        if not abort_signal.triggered:
            controller.system_panic(str(error), fl_ctx)
    finally:
        die_if_orphaned()
        journal.forget()  # the job is over, and only a process that dies leaves a journal


class _Heartbeats:
    """The time of the last heartbeat of each site's process of the job, which sends one every ten seconds."""

    def __init__(self, controller: Controller, sites: Collection[str]) -> None:
        self._patience = float(os.environ.get(SITE_PATIENCE, _PATIENCE))
        self._last = dict.fromkeys(sites, time.monotonic())
        # FLARE 2.9 reports heartbeats to its communicator only.
        communicator: WFCommServer = controller.communicator
        report_active = communicator.client_is_active

        def client_is_active(client_name: str, reason: str, fl_ctx: FLContext) -> None:
            self._last[client_name] = time.monotonic()
            report_active(client_name, reason, fl_ctx)

        communicator.client_is_active = client_is_active

    def silent(self) -> list[str]:
        """The sites that are given up: a restarted one would have sent a heartbeat by now."""
        oldest = time.monotonic() - self._patience
        return [site for site, last in self._last.items() if last < oldest]


class _Caller:
    """Sends tasks through a FLARE controller and waits for a call's quorum, and for no site without heartbeats."""

    def __init__(
        self, controller: Controller, fl_ctx: FLContext, abort_signal: Signal, heartbeats: _Heartbeats | None
    ) -> None:
        self._controller, self._fl_ctx, self._abort, self._heartbeats = controller, fl_ctx, abort_signal, heartbeats

    def call(self, call: TaskCall) -> dict[str, Reply]:
        """See `medfedvqa.federation.hub.Engine`."""
        answers = _TaskAnswers(call, partial(self._not_waited_for, call.excused))
        tasks = {
            site: answers.task(call.task, site, pack(call.round, tensors, call.audit_bytes.get(site, b"")))
            for site, tensors in call.messages.items()
        }
        for site, sent in tasks.items():
            self._controller.send(sent, self._fl_ctx, targets=[site])
        try:
            while not answers.complete(_ABORT_CHECK):
                die_if_orphaned()
                if self._abort.triggered:
                    raise FederationError("the job was aborted")
        except FederationError:
            self._controller.cancel_all_tasks()
            raise
        for site in answers.missing():
            self._controller.cancel_task(tasks[site])
        return answers.replies

    def _not_waited_for(self, excused: Excused, replies: Mapping[str, Reply]) -> Collection[str]:
        silent = self._heartbeats.silent() if self._heartbeats else ()
        return {*excused(replies), *silent}


class _TaskAnswers:
    """The answers to one task, which arrive on FLARE's threads."""

    def __init__(self, call: TaskCall, excused: Excused) -> None:
        self.replies: dict[str, Reply] = {}
        self._waiting, self._answered, self._excused = set(call.messages), call.answered, excused
        self._refused = call.refused
        self._quorum, self._began = call.quorum, time.monotonic()
        self._taken, self._dead = set[str](), set[str]()
        """Sites that took the task, and those that FLARE has given up."""
        self._failure: FederationError | None = None
        self._closed = False
        self._change = threading.Condition()

    def task(self, name: str, site: str, message: Shareable) -> Task:
        """A FLARE task that delivers its answer to this object."""
        taken, done = partial(self._took, site), partial(self._done, site)
        task = Task(
            name=name, data=message, after_task_sent_cb=taken, result_received_cb=self._received, task_done_cb=done
        )
        task.client_tasks = _UniqueAssignments()
        return task

    def complete(self, seconds: float) -> bool:
        """Wait at most `seconds`; returns whether the quorum, or every site that is not excused, has answered.

        Raises `FederationError` as soon as a site fails.
        """
        with self._change:
            self._change.wait_for(lambda: self._failure or self._enough(), seconds)
            if self._failure:
                raise self._failure
            return self._enough()

    def missing(self) -> list[str]:
        """The sites that have not answered. From now on their answers are dropped."""
        with self._change:
            self._closed = True
            return sorted(self._waiting)

    def _enough(self) -> bool:
        seconds = time.monotonic() - self._began
        if self._quorum.reached(len(self.replies), seconds):
            return True
        excused = self._quorum.excused(self._taken, seconds)
        return self._waiting <= {*self._excused(self.replies), *excused, *self._dead}

    def _took(self, site: str, client_task: ClientTask, fl_ctx: FLContext) -> None:
        with self._change:
            self._taken.add(site)

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Take the answer of a site that may be hostile, without passing on its text or an error of its making.

        A refusal becomes its code. An unreadable answer is not a refusal, and stops the job.
        """
        site, result = client_task.client.name, client_task.result
        refused: Refused = stop_job
        tensors: Tensors = {}
        try:
            code = None if result.get_return_code() == ReturnCode.OK else refusal(result)
            tensors = {} if code else unpack(result)[1]
            refused = self._refused
        except (JobRefused, AttributeError, KeyError, TypeError, ValueError):
            code = Refusal.MESSAGE
        with self._change:
            if self._closed:
                return
            if code is None:
                self._answered(site)
                self.replies[site] = Reply(tensors, time.time() - client_task.task_sent_time, audit_bytes(result))
            else:
                try:
                    refused(site, code, "")
                except FederationError as error:
                    self._failure = self._failure or error
            self._waiting.discard(site)
            self._change.notify_all()

    def _done(self, site: str, task: Task, fl_ctx: FLContext) -> None:
        if task.completion_status == TaskCompletionStatus.CLIENT_DEAD:
            with self._change:
                self._dead.add(site)
                self._change.notify_all()
        elif task.completion_status not in (TaskCompletionStatus.OK, TaskCompletionStatus.CANCELLED):
            self._fail(f"site '{site}' did not answer: {task.completion_status.value}")

    def _fail(self, reason: str) -> None:
        with self._change:
            self._failure = self._failure or FederationError(reason)
            self._change.notify_all()


class _UniqueAssignments(list[ClientTask]):
    """A task's assignments, each listed once.

    When a site asks again for a lost task, FLARE 2.9 lists the assignment a second time if tasks for other sites are
    open as well, and its monitor thread dies on the duplicate once the task is done.
    """

    def append(self, client_task: ClientTask) -> None:
        """Add an assignment unless the list has it."""
        if client_task not in self:
            super().append(client_task)


def _stop_asked() -> bool:
    path = os.environ.get(STOP_FILE)
    return path is not None and Path(path).exists()
