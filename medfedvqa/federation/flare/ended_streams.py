"""Streams that have ended, forgotten by one thread: FLARE (2.9) starts a thread for each of them.

A receiver remembers a stream that has ended, so that it can acknowledge parts that come again. FLARE keeps a
`threading.Timer`, which is a thread, for each of these for as long as the sender wishes, which is 65 seconds by default
and may be an hour: a job of short rounds gathers hundreds, and a hostile sender as many as it likes.
"""

import heapq
import itertools
import threading
import time

from nvflare.fuel.f3.streaming.byte_receiver import COMPLETED_TASK_TTL, RETRY_WAIT, RxTask

from medfedvqa.federation.flare import patches

_LONGEST = COMPLETED_TASK_TTL + RETRY_WAIT
"""Seconds that an ended stream is remembered, whatever its sender wishes."""

_MOST = 4096
"""Ended streams that are remembered at a time; beyond them the one that is due first is forgotten."""


class _EndedStreams:
    """Streams that have ended, by the time at which they are forgotten."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, RxTask]] = []
        self._order = itertools.count()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, task: RxTask, seconds: float) -> None:
        """Forget a stream after so many seconds."""
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
        """Waits until some are due."""
        with self._change:
            while not self._due or self._due[0][0] > time.monotonic():
                self._change.wait(self._due[0][0] - time.monotonic() if self._due else None)
            due = []
            while self._due and self._due[0][0] <= time.monotonic():
                due.append(heapq.heappop(self._due)[-1])
            return due


_ended = _EndedStreams()


class _Scheduled:
    """Stands where FLARE keeps its timer, which it cancels when the stream is forgotten."""

    def cancel(self) -> None:
        """The stream's entry is gone already."""


def _forget(tasks: list[RxTask]) -> None:
    for task in tasks:
        task._remove_task()


def _schedule_remove_task(task: RxTask, ttl: float | None = None) -> None:
    """In place of FLARE's function of this name."""
    with task.stop_lock:
        if task.cleanup_timer:
            return
        task.cleanup_timer = _Scheduled()
    _ended.add(task, min(task.completed_task_ttl if ttl is None else ttl, _LONGEST))


def forget_ended_streams() -> None:
    """From now on one thread of this process forgets all streams that have ended."""
    patches.FORGET.replace(_schedule_remove_task)
