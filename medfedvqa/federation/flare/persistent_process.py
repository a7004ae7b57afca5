"""A job's process that is started again when something kills it, at a site and at the server."""

import logging
import signal
import threading
from collections.abc import Callable

from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.utils.process_utils import ProcessAdapter

RELAUNCHES = 10
"""The number of times that a job process is started again before its death counts as the job's failure."""

RETURN_PATIENCE = 3600.0
"""Seconds after a start in which a job of before may come back: then the server gives it up, and a site closes it."""

_ASKED_TO_END = {-signal.SIGTERM, -signal.SIGINT}

_logger = logging.getLogger(__name__)


class PersistentHandle(ProcessHandle):
    """A job process that looks like one process to FLARE, however often it is started again."""

    adapter: ProcessAdapter

    def __init__(self, start: Callable[[], ProcessAdapter], ended: Callable[[], None]) -> None:
        super().__init__(process_adapter=start())
        self._start, self._ended = start, ended
        self._lock = threading.Lock()
        self._stopping = False

    def terminate(self) -> None:
        """End the process for good."""
        with self._lock:
            self._stopping = True
            super().terminate()

    def wait(self) -> None:
        """Wait until the process has ended by itself or by request, or has died too often."""
        for left in reversed(range(RELAUNCHES + 1)):
            self.adapter.wait()
            code = self.adapter.poll()
            with self._lock:
                if self._stopping or not left or code is None or code >= 0 or code in _ASKED_TO_END:
                    break
                _logger.warning("the job process was killed by signal %d; starting it again", -code)
                self.adapter = self._start()
        self._ended()
