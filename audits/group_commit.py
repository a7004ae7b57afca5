"""Group commit: of several threads that append at once, one writes the entries of all, and they share one fsync.

A thread that finds nobody writing writes. Whoever comes meanwhile waits, and when the write is done, the first of them
writes for all who wait by then. Before that it gives those whose entries were in the last group the time to come back
with their next ones. So one thread alone never waits for others, and many pay for few fsyncs.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from audits.entry import Entry, Event
from audits.errors import LogError

_PATIENCE = 0.005
"""Seconds that a group waits at most for as many requests as the last one had; never longer than that took to write."""
Draft = tuple[Event, Mapping[str, Any]]
"""An event, and the fields that its caller gives."""


class Request:
    """The entries that one caller appends together: all of them are written, or none."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.drafts = drafts
        self.entries: list[Entry] = []
        """The entries on disk, once the request is settled without an error."""
        self.error: Exception | None = None
        self.settled = False
        self.writes = False
        """Whether this caller's thread has to write next."""
        self.wake = threading.Lock()
        self.wake.acquire()

    def settle(self, entries: list[Entry]) -> None:
        """Marks the entries as written."""
        self.entries, self.settled = entries, True

    def fail(self, error: Exception) -> None:
        """Marks the request as failed: none of its entries is written."""
        self.error, self.settled = error, True


class GroupCommit:
    """Hands the requests of all threads to one of them, one group after the other."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: list[Request] = []
        self._busy = False
        self._last, self._took = 1, 0.0
        """Requests of the last group, and the seconds that it took to write them."""
        self._complete = threading.Event()

    def commit(self, request: Request, write: Callable[[Sequence[Request]], None]) -> list[Entry]:
        """The entries of the request, once they are on disk. Raises what kept them from it.

        `write` settles each request of a group; those that it leaves open when it raises fail with that error.
        """
        try:
            with self._guard:
                self._waiting.append(request)
                request.writes, self._busy = not self._busy, True
                if len(self._waiting) >= self._last:
                    self._complete.set()
            if not request.writes:
                request.wake.acquire()
            if not request.settled:
                self._write_group(write)
        except BaseException:  # such as Ctrl-C: nobody may wait for this thread any more
            self._leave(request)
            raise
        if request.error:
            raise request.error
        return request.entries

    def _write_group(self, write: Callable[[Sequence[Request]], None]) -> None:
        group: list[Request] = []
        error: Exception = LogError("the audit log was interrupted while it was written: append again")
        try:
            self._gather()
            with self._guard:
                group, self._waiting = self._waiting, []
            began = time.monotonic()
            write(group)
            self._last, self._took = len(group), time.monotonic() - began
        except Exception as caught:
            error = caught
        finally:
            for request in group:
                if not request.settled:
                    request.fail(error)
                request.wake.release()
            with self._guard:
                self._pass_on()

    def _gather(self) -> None:
        """Waits for as many requests as the last group had, but not for long."""
        with self._guard:
            if len(self._waiting) >= self._last:
                return
            self._complete.clear()
        if not self._complete.wait(min(self._took, _PATIENCE)):
            self._last = 1

    def _pass_on(self) -> None:
        """Lets the first waiting thread write next."""
        self._busy = bool(self._waiting)
        if self._busy:
            self._waiting[0].writes = True
            self._waiting[0].wake.release()

    def _leave(self, request: Request) -> None:
        with self._guard:
            if request in self._waiting:
                self._waiting.remove(request)
                if request.writes:
                    self._pass_on()
