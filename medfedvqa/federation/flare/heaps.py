"""Memory that threads have freed goes back to the system.

FLARE (2.9) makes a buffer of 1 MiB for every message that it streams, on any of a hundred threads. The C library of
Linux gives threads heaps of their own, up to eight for each core, and keeps what was freed in them: a server's job
process seems to grow by 0.1 to 0.4 MB a round, though nothing refers to that memory.
"""

import ctypes
import threading
import time

_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h
_HEAPS = 2
_PERIOD = 30.0  # seconds


def return_free_memory() -> None:
    """From now on threads of this process share two heaps, whose free pages go back to the system now and then.

    Where the C library cannot be told so, nothing changes.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        library.mallopt(_ARENA_MAX, _HEAPS)
        threading.Thread(target=_trim, args=(library,), daemon=True, name="heaps").start()


def _trim(library: ctypes.CDLL) -> None:
    while True:
        time.sleep(_PERIOD)
        library.malloc_trim(0)
