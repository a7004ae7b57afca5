"""Memory that is not used any more goes back to the system.

FLARE (2.9) makes a buffer of 1 MiB for every message that it streams, on any of a hundred threads. Part of that memory
is free only after Python has looked for cycles of references, which it does seldom in a process with many lasting
objects, and the C library of Linux keeps what threads have freed in heaps of their own, up to eight for each core. At a
server's job process that was up to 200 MB, which grew for hundreds of rounds until they were freed at once.
"""

import ctypes
import gc
import threading
import time

_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h
_HEAPS = 2
_PERIOD = 30.0  # seconds


def return_free_memory() -> None:
    """From now on what this process does not use any more is freed, and goes back to the system, twice a minute.

    Where the C library has no functions for it, it is only freed.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_ARENA_MAX, _HEAPS)
    threading.Thread(target=_return, args=(library,), daemon=True, name="heaps").start()


def _return(library: ctypes.CDLL) -> None:
    while True:
        time.sleep(_PERIOD)
        gc.collect()
        if hasattr(library, "malloc_trim"):
            library.malloc_trim(0)
