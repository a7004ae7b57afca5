"""Workers and their keeper: whoever crashes, hangs or eats memory over a file loses the file, not the ingestion."""

import json
import os
import queue
import selectors
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from medfedvqa.ingest.keys import Pseudonyms
from medfedvqa.ingest.options import Options
from medfedvqa.ingest.reasons import Reason

Answer = dict[str, Any]
START_SECONDS = 120
"""Added to the time for a worker's first file: it still has to import and to load the text finder."""
AHEAD = 4
"""Answers per worker that may wait for the journal."""


@dataclass(frozen=True)
class Task:
    """A file to be read: where it is, the keyed digest of its content, and whether a question names it by its name."""

    path: Path
    source: str
    named: bool


class WorkerProcess:
    """One worker, started when it is first needed and again after it was lost."""

    def __init__(self, options: Options, keys: Pseudonyms, images: Path, wanted: frozenset[str]) -> None:
        self._options = options
        setup = {"options": asdict(options), "key": keys.secret.hex(), "images": str(images), "wanted": sorted(wanted)}
        self._setup = json.dumps(setup).encode() + b"\n"
        self._process: subprocess.Popen[bytes] | None = None
        self._fresh = True

    def handle(self, task: Task) -> Answer:
        """The worker's answer, or a quarantine for the file over which it was lost."""
        line = json.dumps({"path": str(task.path), "source": task.source, "named": task.named}).encode() + b"\n"
        try:
            process = self._process or self._start()
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
            answer = self._answer(process)
        except BrokenPipeError:
            answer = b""
        self._fresh = False
        if answer is not None and answer.endswith(b"\n"):
            result: Answer = json.loads(answer)
            return result
        self.close()
        reason = Reason.TOO_SLOW if answer is None else Reason.CRASHED
        return {"verdict": "quarantined", "reason": reason.value, "found": []}

    def close(self) -> None:
        """End the worker, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        continue
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        root = Path(__file__).parents[2]
        paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "medfedvqa.ingest.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **threads, "PYTHONPATH": paths},
        )
        assert self._process.stdin is not None
        self._process.stdin.write(self._setup)
        self._fresh = True
        return self._process

    def _answer(self, process: subprocess.Popen[bytes]) -> bytes | None:
        """A line; what was written before the worker died; or None if it takes too long."""
        assert process.stdout is not None
        seconds = self._options.seconds + START_SECONDS * self._fresh
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return None
        return process.stdout.readline()


def handled(tasks: Iterable[Task], start: Callable[[], WorkerProcess], workers: int) -> Iterator[tuple[Task, Answer]]:
    """Each task with its answer, in the order in which workers finish. `tasks` is drawn from as they get free."""
    todo, lock = iter(tasks), threading.Lock()
    done: queue.Queue[tuple[Task, Answer] | BaseException | None] = queue.Queue(maxsize=AHEAD * workers)
    stop = threading.Event()

    def serve() -> None:
        worker = start()
        try:
            while not stop.is_set():
                with lock:
                    task = next(todo, None)
                if task is None:
                    break
                done.put((task, worker.handle(task)))
        except BaseException as error:
            done.put(error)
        finally:
            worker.close()
            done.put(None)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    try:
        running = workers
        while running:
            one = done.get()
            if isinstance(one, BaseException):
                raise one
            if one is None:
                running -= 1
            else:
                yield one
    finally:
        stop.set()
        while any(thread.is_alive() for thread in threads):
            try:
                done.get(timeout=0.05)
            except queue.Empty:
                continue
