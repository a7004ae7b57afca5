"""Runs worker processes. A worker that crashes, hangs or exhausts its memory costs the file, not the ingestion."""

import json
import os
import queue
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from medfedvqa.errors import ConfigError
from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.pseudonyms import Pseudonyms
from medfedvqa.ingest.refusal_reasons import EXHAUSTED, Reason
from medfedvqa.ingest.resolve import NOTHING_SAID, PatientSources

Answer = dict[str, Any]
START_SECONDS = 300
"""The most time that a worker may take to import and to load the text finder."""


@dataclass(frozen=True)
class FileTask:
    """A picture to read from a file."""

    path: Path
    source: str
    """The keyed digest of its content."""
    named: bool
    """Whether a question names it by its file name."""
    names: Sequence[str] = ()
    """Keyed digests of the names that questions may use for a file at its paths."""
    decisions: Sequence[Answer] = ()
    """What persons decided about finds in its picture; see `medfedvqa.ingest.review`."""
    frame: int | None = None
    """The number of the frame, from 0; None for the file's main frame."""


class WorkerProcess:
    """One worker, which is started when it is first needed and again after it was lost."""

    def __init__(
        self,
        options: Options,
        keys: Pseudonyms,
        images: Path,
        finds: Path,
        names: frozenset[str],
        registers: Sequence[bytes] = (),
        sources: PatientSources = NOTHING_SAID,
    ) -> None:
        """The arguments are those of `Worker`; `registers` are the keys themselves."""
        self._options = options
        setup = {
            "options": asdict(options),
            "key": keys.secret.hex(),
            "images": str(images),
            "finds": str(finds),
            "wanted": sorted(names),
            "registers": [key.hex() for key in registers],
            "sources": sources.as_json(),
        }
        self._setup = json.dumps(setup).encode() + b"\n"
        self._process: subprocess.Popen[bytes] | None = None

    def handle(self, task: FileTask) -> Answer:
        """The worker's answer. A worker that is lost over the file puts it into quarantine.

        Raises `ConfigError` if no worker can be started.
        """
        process = self._process or self._start()
        line = json.dumps(asdict(task) | {"path": str(task.path)}).encode() + b"\n"
        answer = _exchange(process, line, self._options.seconds)
        if answer is not None and answer.endswith(b"\n"):
            result: Answer = json.loads(answer)
            if result.pop(EXHAUSTED, False):
                self.close()  # libraries that ran out of memory may fail at all that follows
            return result
        self.close()
        reason = Reason.TOO_SLOW if answer is None else Reason.CRASHED
        return {"verdict": "quarantined", "reason": reason.value, "found": []}

    def close(self) -> None:
        """End the worker, even if it is busy."""
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
            start_new_session=True,  # Ctrl-C reaches the ingestion alone, which ends its workers itself
        )
        if not _exchange(self._process, self._setup, START_SECONDS):
            self.close()
            raise ConfigError(
                "no worker could be started: check the packages of medfedvqa[ingest], or give more --memory"
            )
        return self._process


def _exchange(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> bytes | None:
    """The worker's answer to a line: less than a line if the worker died over it, None if it takes too long."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except BrokenPipeError:
        return b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline() if selector.select(seconds) else None


def handled(
    next_task: Callable[[], FileTask | None], start: Callable[[], WorkerProcess], workers: int
) -> Iterator[tuple[FileTask, Answer]]:
    """Each task with its answer, in the order in which workers finish.

    `next_task`: the next task, None if there is none now; the caller may have more after it took an answer.
    """
    processes = [start() for _ in range(workers)]
    idle: queue.LifoQueue[WorkerProcess] = queue.LifoQueue()  # the last one has read the file of further frames
    for process in processes:
        idle.put(process)

    def handle(task: FileTask) -> tuple[FileTask, Answer]:
        process = idle.get()
        try:
            return task, process.handle(task)
        finally:
            idle.put(process)

    pool = ThreadPoolExecutor(workers)
    try:
        running: set[Future[tuple[FileTask, Answer]]] = set()
        while True:
            while len(running) < workers and (task := next_task()):
                running.add(pool.submit(handle, task))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    finally:
        pool.shutdown(cancel_futures=True)
        for process in processes:
            process.close()
