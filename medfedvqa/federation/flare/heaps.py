"""Memory that threads free goes back to one of few heaps.

FLARE (2.9) makes a buffer of 1 MiB for every message that it streams, on any of a hundred threads. The C library of
Linux gives threads heaps of their own, up to eight for each core, and each keeps what was freed in it: a server's
process grows by about 0.1 MB a round, for hundreds of rounds.
"""

import ctypes

_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h
_HEAPS = 2


def limit_heaps() -> None:
    """From now on threads of this process share two heaps, where the C library can be told so."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, _HEAPS)
