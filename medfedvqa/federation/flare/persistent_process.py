"""A job's process that is started again when something kills it, at a site and at the server."""

import logging
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from nvflare.apis.job_launcher_spec import JobProcessArgs
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.utils.process_utils import ProcessAdapter

RELAUNCHES = 10
"""The number of times that a job process is started again before its death counts as the job's failure."""

RETURN_PATIENCE = 3600.0
"""Seconds after its first start within which a process that found no server is started again. After that, the site
closes the job."""

SOUGHT = 55.0
"""The shortest life, in seconds, of a process that ended because it found no server: FLARE (2.9) looks for 60."""

STOPPING = 10.0
"""Seconds before a process that was asked to end is started again. A service manager asks all processes of a party at
once: by then it has ended the party, and the party's next start continues the job."""

_ASKED_TO_END = {-signal.SIGTERM, -signal.SIGINT}
"""Exit codes of a process that was asked to end. FLARE asks none by a signal: it kills, by `terminate`."""

_logger = logging.getLogger(__name__)


def command_line(arguments: Mapping[str, tuple[str, object]], names: Iterable[str]) -> str:
    """The command of a job's process, from those of its arguments that are named: option and value by name.

    FLARE (2.9) joins them with blanks and splits the string again, so that a kit in a folder with a blank or a quote in
    its name started no job. Here every value is quoted but the last, a list of settings.
    """
    words = [shlex.quote(sys.executable)]
    for name in names:
        if given := arguments.get(name):
            option, value = given
            words += [option, str(value) if name == JobProcessArgs.OPTIONS else shlex.quote(str(value))]
    return " ".join(words)


class PersistentHandle(ProcessHandle):
    """A job process that looks like one process to FLARE, however often it is started again."""

    adapter: ProcessAdapter

    def __init__(self, start: Callable[[], ProcessAdapter], ended: Callable[[], None]) -> None:
        super().__init__(process_adapter=start())
        self._start, self._ended = start, ended
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._deaths, self._began = 0, time.monotonic()

    def terminate(self) -> None:
        """End the process for good."""
        with self._lock:
            self._stopping.set()
            super().terminate()

    def wait(self) -> None:
        """Wait until the process ends by itself or by request, dies too often, or cannot reach its server for
        too long.
        """
        born = self._began
        while True:
            self.adapter.wait()
            code = self.adapter.poll()
            lived = time.monotonic() - born
            if code in _ASKED_TO_END:
                self._stopping.wait(STOPPING)
            with self._lock:
                if self._stopping.is_set() or code is None or not self._starts_again(code, lived):
                    break
                _logger.warning("the job process ended with %d; starting it again", code)
                self.adapter, born = self._start(), time.monotonic()
        self._ended()

    def _starts_again(self, code: int, lived: float) -> bool:
        if code >= 0:
            return code > 0 and lived >= SOUGHT and time.monotonic() < self._began + RETURN_PATIENCE
        self._deaths += 1
        return self._deaths <= RELAUNCHES
