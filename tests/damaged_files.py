"""Damage to files, and the limits of the workers that read them."""

import random
import struct
from pathlib import Path

from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.worker_pool import WorkerProcess

LIMITS = Options(side=64, max_pixels=2**20, memory=2048, seconds=60)


def peak(worker: WorkerProcess) -> int:
    """Most bytes of address space that the worker had."""
    assert worker._process is not None
    status = Path(f"/proc/{worker._process.pid}/status").read_text()
    return 1024 * int(status.split("VmPeak:")[1].split()[0])


def mutated(content: bytes, generator: random.Random) -> bytes:
    """A few random bytes, a wrong length, or a piece cut out, doubled or swapped."""
    data = bytearray(content)
    for _ in range(generator.choice((1, 2, 5, 20))):
        place = generator.randrange(132, len(data) - 8)
        match generator.randrange(5):
            case 0:
                data[place] = generator.randrange(256)
            case 1:
                data[place : place + 4] = struct.pack("<I", generator.choice((0, 2**31 - 1, 2**32 - 1, 2**16)))
            case 2:
                data[place : place + 2] = struct.pack("<H", generator.choice((0, 1, 2**15, 2**16 - 1)))
            case 3:
                del data[place : place + generator.randrange(1, 40)]
            case _:
                data[place:place] = data[place : place + generator.randrange(1, 40)]
    return bytes(data)
