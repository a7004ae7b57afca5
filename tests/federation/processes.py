"""Sites as processes of the operating system, which die or halt at any moment they are told, and a server for them.

No FLARE: the parent plays the server, sends tasks and relays what sites say to each other. Run as a script, this is the
process that imports what sites need, once, and forks one for each connection.
"""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from fate import Fate
from tiny_clip import TINY
from untrained import METHODS

from medfedvqa.core import Tensors, registry
from medfedvqa.errors import FederationError
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.error_codes import ACTIONABLE
from medfedvqa.federation.hub import Excused, Reply, TaskCall
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.models import load_backbone
from privacy.secagg import Relay


@dataclass(frozen=True)
class Start:
    """What a process is told first."""

    config: SiteConfig
    job: JobSpec
    job_id: str
    fate: Fate
    message_timeout: float
    """Seconds."""


class _SiteProcess:
    """One site: its runtime, and one connection to the server, for tasks, answers and mail."""

    def __init__(self, connection: Connection, start: Start, load: Callable[..., Any]) -> None:
        self._connection, self._start = connection, start
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._mail: defaultdict[tuple[str, str], queue.SimpleQueue[bytes]] = defaultdict(queue.SimpleQueue)
        self._sending = threading.Lock()
        self._runtime = SiteRuntime(start.config, start.job, start.job_id, load, partial(_End, self))

    def serve(self) -> None:
        """Until the job is over."""
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()
        counts: Counter[str] = Counter()
        while (asked := self._tasks.get()) is not None:
            task, round, tensors = asked
            Fate.here.begin(task, round)
            try:
                reply = self._runtime.handle(task, round, tensors)
            except ACTIONABLE as error:
                self.tell("refused", task, round, str(error))
                continue
            Fate.here.meet("saved")
            self.tell("reply", task, round, reply)
            Fate.here.meet("answered")
            counts[f"{task} {round}"] += Fate.here.messages
        self._runtime.close()
        self.tell("closed", dict(counts))

    def tell(self, *what: Any) -> None:
        """The server."""
        with self._sending:
            self._connection.send(what)

    def box(self, attempt: str, sender: str) -> "queue.SimpleQueue[bytes]":
        """What came from a peer in an attempt."""
        return self._mail[attempt, sender]

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                kind, *what = self._connection.recv()
                if kind == "mail":
                    attempt, sender, message = what
                    self._mail[attempt, sender].put(message)
                else:
                    self._tasks.put(what or None)
        os._exit(0)

    def _beat(self) -> None:
        while True:
            time.sleep(0.2)
            self.tell("alive")


@dataclass(frozen=True)
class _End(Relay):
    """A site's end of the relay."""

    process: _SiteProcess
    attempt: str

    def send(self, to: str, message: bytes) -> None:
        Fate.here.message()
        self.process.tell("mail", self.attempt, to, message)

    def receive(self, sender: str, timeout: float) -> bytes:
        Fate.here.message()
        try:
            return self.process.box(self.attempt, sender).get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None


class Nursery:
    """Forks site processes that have imported all they need; for `with`."""

    def __init__(self, folder: Path, backbone: Path) -> None:
        self._address = str(folder / "nursery")
        tests = str(Path(__file__).parents[1])  # of `tiny_clip`
        path = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
        command = [sys.executable, __file__, self._address, str(backbone)]
        self._process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})

    def __enter__(self) -> "Nursery":
        while not Path(self._address).exists():
            if self._process.poll() is not None:
                raise RuntimeError("the parent of the site processes did not start")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def fork(self, start: Start) -> tuple[Connection, int]:
        """A new site's connection and process id."""
        connection = Client(self._address, "AF_UNIX")
        connection.send(start)
        return connection, connection.recv()


class ProcessEngine:
    """Calls sites in processes of their own as the FLARE engine does; keeps all bytes that pass. For `with`."""

    def __init__(
        self,
        nursery: Nursery,
        configs: Mapping[str, SiteConfig],
        job: JobSpec,
        fates: Mapping[str, Fate],
        message_timeout: float,
    ) -> None:
        """`fates`: sites that stop somewhere. A site of which nothing is heard for `message_timeout` times 2.5 is
        given up."""
        self._nursery, self._patience = nursery, 2.5 * message_timeout
        self._starts = {
            name: Start(config, job, "job", fates.get(name, Fate()), message_timeout)
            for name, config in configs.items()
        }
        self.pids: dict[str, int] = {}
        self.said: list[tuple[str, str, Tensors]] = []
        """Task, site and message of all tasks."""
        self.passed: list[bytes] = []
        """Everything that the server saw."""
        self.counts: dict[str, dict[str, int]] = {}
        """Messages by task and round, of each site that came to the end."""
        self.failures: list[str] = []
        self._connections: dict[str, Connection] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._heard: dict[str, float] = {}
        self._change = threading.Condition()
        self._asked: dict[str, tuple[str, int, Tensors]] = {}
        """By site, the task that it has not answered."""
        self._replies: dict[str, Reply] = {}

    def __enter__(self) -> "ProcessEngine":
        for site in self._starts:
            self.start(site, self._starts[site].fate)
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start(self, site: str, fate: Fate | None = None) -> None:
        """A process; if there was one, it is dead, and this one is given the task that stands."""
        start = self._starts[site]
        connection, self.pids[site] = self._nursery.fork(
            Start(start.config, start.job, start.job_id, fate or Fate(), start.message_timeout)
        )
        with self._change:
            self._connections[site], self._heard[site] = connection, time.monotonic()
            asked = self._asked.get(site)
        threading.Thread(target=self._read, args=(site, connection), daemon=True).start()
        if asked:
            self._send(site, "task", *asked)

    def dead(self, site: str) -> bool:
        """Whether the site's last process is gone."""
        try:
            os.kill(self.pids[site], 0)
        except ProcessLookupError:
            return True
        return False

    def call(self, call: TaskCall) -> dict[str, Reply]:
        """See `medfedvqa.federation.hub.Engine`."""
        with self._change:
            self._replies = {}
            self._asked = {site: (call.task, call.round, message) for site, message in call.messages.items()}
        for site, message in call.messages.items():
            self.said.append((call.task, site, message))
            self.passed += [array.tobytes() for array in message.values()]
            self._send(site, "task", call.task, call.round, message)
        with self._change:
            while not self._enough(call.excused):
                self._change.wait(0.05)
            self._asked = {}
            replies = self._replies
        for site in replies:
            call.answered(site)
        return dict(replies)

    def close(self) -> None:
        """The job is over: waits until the living have closed their logs."""
        for site in self._starts:
            self._send(site, "close")
        with self._change:
            while not self._starts.keys() <= {*self.counts, *self._silent()}:
                self._change.wait(0.05)

    def _enough(self, excused: Excused) -> bool:
        if self.failures:
            raise FederationError(self.failures[0])
        return self._asked.keys() <= {*excused(self._replies), *self._silent()}

    def _silent(self) -> Collection[str]:
        oldest = time.monotonic() - self._patience
        return [site for site, last in self._heard.items() if last < oldest]

    def _send(self, site: str, *what: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError), self._locks[site]:
            self._connections[site].send(what)

    def _read(self, site: str, connection: Connection) -> None:
        with suppress(EOFError, OSError):
            while True:
                kind, *what = connection.recv()
                with self._change:
                    self._heard[site] = time.monotonic()
                    self._take(site, kind, *what)
                    self._change.notify_all()

    def _take(self, site: str, kind: str, *what: Any) -> None:
        if kind == "mail":
            attempt, to, message = what
            self.passed.append(message)
            self._send(to, "mail", attempt, site, message)
        elif kind == "closed":
            self.counts[site] = what[0]
        elif kind in ("reply", "refused"):
            task, round, answer = what
            asked = self._asked.get(site)
            if asked is None or asked[:2] != (task, round):
                return
            if kind == "refused":
                self.failures.append(f"site '{site}' stopped the job: {answer}")
                return
            del self._asked[site]
            self.passed += [array.tobytes() for array in answer.values()]
            self._replies[site] = Reply(answer, 0.0)


def _nursery(address: str, backbone: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for method in METHODS:
        registry._METHODS[method.name] = method
    # CrypTen takes seconds to import.
    import privacy.secagg.protocol  # noqa: F401

    loaded = load_backbone(TINY, {TINY: Path(backbone)}, "cpu")
    with Listener(address, "AF_UNIX", backlog=64) as listener:
        while True:
            connection = listener.accept()
            if os.fork() == 0:
                start: Start = connection.recv()
                connection.send(os.getpid())
                attempts.MESSAGE_TIMEOUT = start.message_timeout
                Fate.here = start.fate
                _SiteProcess(connection, start, lambda *_: loaded).serve()
                os._exit(0)
            connection.close()


if __name__ == "__main__":
    # What is pickled names this module as its importer does.
    import processes

    processes._nursery(*sys.argv[1:])
