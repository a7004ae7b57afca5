"""Kills a job's process if the one that started it has died, so that its successor continues the job.

FLARE (2.9) ends the run of a job process whose parent has died, as if the job were over: a site would close the job and
a server would forget its journal, although their restarted parents continue it.
"""

import os
import signal

_PARENT = "MEDFEDVQA_PARENT"
"""Environment variable: the id of the process that starts job processes."""


def adopt_children() -> None:
    """Tell all processes that this one starts, by an environment variable, that it is their parent."""
    os.environ[_PARENT] = str(os.getpid())


def die_if_orphaned() -> None:
    """Kill this process if the one that started it has died, as if the whole machine had."""
    parent = os.environ.get(_PARENT)
    if parent is not None and parent not in (str(os.getppid()), str(os.getpid())):
        os.kill(os.getpid(), signal.SIGKILL)
