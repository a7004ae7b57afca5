"""A vault's frames served by a thread of the test's own process, for methods and faults that only the test knows."""

import socket
import threading
from contextlib import suppress
from pathlib import Path

from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.vault.courier import JobCourier
from medfedvqa.vault.frames import Wire
from medfedvqa.vault.place import VaultPlace
from medfedvqa.vault.tasks import JobTasks, SentBytes


class Served:
    """A runtime behind a socket, and the courier at its other end."""

    def __init__(self, runtime: SiteRuntime) -> None:
        one, other = socket.socketpair()
        self.courier = JobCourier(VaultPlace(Path(), "", None, Path()), "job", {}, _wire=Wire(one))
        self._tasks, self._wire = JobTasks(lambda: runtime, SentBytes()), Wire(other)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(EOFError):
            while True:
                self._tasks.answer(self._wire, self._wire.receive("task", "malformed"))

    def close(self) -> None:
        """The job is over."""
        self.courier.close(ended=False)
        self._thread.join()
        self._wire.close()
        self._tasks.close()
