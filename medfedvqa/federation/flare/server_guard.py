"""The guard of a server's processes: no job configures the server, and a refused job leaves no file there.

Nobody has to trust a server, and a hostile one runs without this guard. The guard protects an honest server, and the
jobs of everybody who uses it, from a single job. FLARE makes `ServerGuard` from `local/guard__resources.json`.
"""

import ctypes
import gc
import heapq
import io
import itertools
import logging
import math
import shutil
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, NoReturn
from zipfile import BadZipFile, ZipFile

import numpy as np
from nvflare.apis.client import ClientDictKey
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, JobConstants, SiteType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import Job, JobMetaKey
from nvflare.apis.job_launcher_spec import JobHandleSpec
from nvflare.apis.workspace import Workspace
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.fuel.f3.streaming.byte_receiver import COMPLETED_TASK_TTL, RETRY_WAIT, RxTask
from nvflare.fuel.utils.fobs import fobs, lobs
from nvflare.fuel.utils.fobs.datum import DatumManager
from nvflare.utils.job_launcher_utils import get_server_job_args
from nvflare.utils.process_utils import ProcessAdapter

from audits import JobRefused, Refusal
from medfedvqa.federation.flare import job_schema, kit_contents, patches, pinned_settings  # noqa: F401  # see SiteGuard
from medfedvqa.federation.flare.lost_jobs import LostJobs, RunningJob, end_as_the_server_did
from medfedvqa.federation.flare.messages import PLAIN
from medfedvqa.federation.flare.parent_process import adopt_children
from medfedvqa.federation.flare.persistent_process import PersistentHandle, command_line
from medfedvqa.federation.flare.run_folder import CONTROLLER
from medfedvqa.federation.flare.validator import ask_own_validator_first

# Memory that is not used any more goes back to the system.
#
# FLARE (2.9) makes a buffer of 1 MiB for every message that it streams, on any of a hundred threads. Part of that
# memory is free only after Python has looked for cycles of references, which it does seldom in a process with many
# lasting objects, and the C library of Linux keeps what threads have freed in heaps of their own, up to eight for each
# core. At a server's job process that was up to 200 MB, which grew for hundreds of rounds until they were freed at
# once.

_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h
_HEAPS = 2
_PERIOD = 30.0  # seconds


def return_free_memory() -> None:
    """Start a thread that, twice a minute, frees unused memory and returns it to the system.

    If the C library has no function to return memory, the thread only frees it.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_ARENA_MAX, _HEAPS)
    threading.Thread(target=_return, args=(library,), daemon=True, name="heaps").start()


def _return(library: ctypes.CDLL) -> None:
    while True:
        time.sleep(_PERIOD)
        gc.collect()
        if hasattr(library, "malloc_trim"):
            library.malloc_trim(0)


# Streams that have ended, forgotten by one thread: FLARE (2.9) starts a thread for each of them.
#
# A receiver remembers a stream that has ended, so that it can acknowledge parts that come again. FLARE keeps a
# `threading.Timer`, which is a thread, for each of these for as long as the sender wishes, which is 65 seconds by
# default and may be an hour: a job of short rounds gathers hundreds, and a hostile sender as many as it likes.

_LONGEST = COMPLETED_TASK_TTL + RETRY_WAIT
"""Seconds that an ended stream is remembered, whatever its sender wishes."""

_MOST = 4096
"""The most ended streams that are remembered; beyond them the one that is due first is forgotten."""


class _EndedStreams:
    """Streams that have ended, by the time at which they are forgotten."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, RxTask]] = []
        self._order = itertools.count()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, task: RxTask, seconds: float) -> None:
        """Forget a stream after this many seconds."""
        with self._change:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), task))
            surplus = [heapq.heappop(self._due)[-1]] if len(self._due) > _MOST else []
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="ended-streams")
                self._thread.start()
            self._change.notify()
        _forget(surplus)

    def _run(self) -> None:
        while True:
            _forget(self._next())

    def _next(self) -> list[RxTask]:
        """Wait until streams are due; removes and returns them."""
        with self._change:
            while not self._due or self._due[0][0] > time.monotonic():
                self._change.wait(self._due[0][0] - time.monotonic() if self._due else None)
            due = []
            while self._due and self._due[0][0] <= time.monotonic():
                due.append(heapq.heappop(self._due)[-1])
            return due


_ended = _EndedStreams()


class _Scheduled:
    """Stands in for FLARE's timer: FLARE calls `cancel` on it when it forgets the stream."""

    def cancel(self) -> None:
        """Does nothing: the stream's entry is gone already."""


def _forget(tasks: list[RxTask]) -> None:
    for task in tasks:
        task._remove_task()


def _schedule_remove_task(task: RxTask, ttl: float | None = None) -> None:
    """Replaces FLARE's function of this name: lets the common thread forget the stream, and starts no timer."""
    with task.stop_lock:
        if task.cleanup_timer:
            return
        task.cleanup_timer = _Scheduled()
    _ended.add(task, min(task.completed_task_ttl if ttl is None else ttl, _LONGEST))


def forget_ended_streams() -> None:
    """Have one thread of this process forget all ended streams, in place of FLARE's thread for each."""
    patches.FORGET.replace(_schedule_remove_task)


# What a process decodes of a message: the types that FLARE (2.9) and this project send, and no other.
#
# FLARE's decoder makes an object of any class on its own list, of which ours need few; it writes a file for a part of a
# message that says so, and fetches parts from any process that the message names. A message that needs one of these is
# not decoded. An array is decoded only if its header agrees with its length: FLARE makes room for what a header says.

LISTED = frozenset(
    {
        *("nvflare.apis.shareable.Shareable", "nvflare.apis.fl_context.FLContext", "nvflare.apis.client.Client"),
        *("nvflare.private.admin_defs.Message", "nvflare.apis.job_def.JobMetaKey"),
        *("nvflare.fuel.utils.fobs.datum.DatumRef", "numpy.ndarray", "tuple"),
    }
)
"""Types of messages among server and sites, beyond those that need no class."""

_HEADER_BYTES = 1024
_MOST_AXES = 16


_logger = logging.getLogger(__name__)


class UndecodedError(Exception):
    """A message holds something that this process does not decode; the error does not quote it."""


def decode_listed_only(*also: str) -> None:
    """Make this process decode only messages whose types are all in `LISTED` or `also`.

    A decoding error, which FLARE sends to the sender, quotes nothing; the local log has the error's class.
    """
    allowed = LISTED.union(also)
    unpack, section, load = patches.UNPACK.current(), patches.SECTION.current(), patches.LOAD.current()

    def listed(packer: fobs.Packer, value: Any) -> Any:
        if type(value) is dict and fobs.FOBS_TYPE in value:
            name = value[fobs.FOBS_TYPE]
            if type(name) is not str or name not in allowed:
                raise UndecodedError("a message holds an object of a class that is not decoded here")
        return unpack(packer, value)

    def get_one_section(stream: BinaryIO, expect_datum: bool) -> Any:
        header, name, data = section(stream, expect_datum)
        if header and expect_datum and (header.marker != lobs.MARKER_DATUM_BLOB or header.dot):
            raise UndecodedError("a message holds a part that is not decoded here")
        return header, name, data

    def load_from_stream(stream: BinaryIO, fobs_ctx: dict[str, Any] | None = None) -> Any:
        try:
            return load(stream, fobs_ctx)
        except Exception as error:
            _logger.warning("a message was not decoded: %s", type(error).__name__)
            raise UndecodedError("a message could not be decoded") from None

    patches.UNPACK.replace(listed)
    patches.SECTION.replace(get_one_section)
    patches.LOAD.replace(load_from_stream)
    patches.RECOMPOSE.replace(_native_recompose)


def _native_recompose(decomposer: NumpyArrayDecomposer, data: bytes, manager: DatumManager | None = None) -> np.ndarray:
    """Replaces FLARE's function of this name: decodes plain arrays only, by `array_of`."""
    return array_of(data)


def array_of(data: bytes) -> np.ndarray:
    """The array that `numpy.save` wrote. Raises `UndecodedError` unless it is plain and its length is right."""
    try:
        stream = io.BytesIO(data)
        if np.lib.format.read_magic(stream) != (1, 0):
            raise UndecodedError("an array of a message is not in the format that is decoded here")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=_HEADER_BYTES)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise UndecodedError("an array of a message has no header that can be read") from None
    sizes = len(shape) <= _MOST_AXES and all(type(size) is int and size >= 0 for size in shape)
    start = stream.tell()
    if dtype.kind not in PLAIN or not sizes or math.prod(shape) * dtype.itemsize != len(data) - start:
        raise UndecodedError("an array of a message does not hold the numbers that its header says")
    if start == len(data):
        return np.empty(shape, dtype)
    return np.frombuffer(data, dtype, offset=start).reshape(shape, order="F" if fortran else "C").copy()


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
    """Launches the server's job processes and restarts those that die; the server's resources.json names this class.

    FLARE (2.9) treats a job whose process dies by a signal as failed. Here a new process continues the job from the
    journal of the dead process.
    """

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        """Start the process of a job. When it has ended, for whatever reason, its journal is deleted."""
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
    """Delete the deployed files of a job that is refused; FLARE (2.9) keeps them."""
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
    """Refuse large archives: FLARE (2.9) unpacks a job's archive, of any size, before it asks the validator."""
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
