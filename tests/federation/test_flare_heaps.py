"""Free memory of a server's processes goes back to the system."""

import subprocess
import sys

FRAGMENTED = """
import sys, time
import psutil
from medfedvqa.federation.flare import server_guard

server_guard._PERIOD = 0.1
if sys.argv[1] == "returned":
    server_guard.return_free_memory()
# Below the size from which each buffer is a mapping of its own; the last one keeps the heap from shrinking at its end.
buffers = [bytearray(100_000) for _ in range(2000)]
for buffer in buffers:
    buffer[:] = bytes([1]) * len(buffer)
last, full = buffers[-1], psutil.Process().memory_info().rss
del buffers, buffer
end = time.monotonic() + float(sys.argv[2])
while psutil.Process().memory_info().rss > full - 150e6:
    if time.monotonic() > end:
        raise SystemExit("kept")
    time.sleep(0.01)
print("returned")
"""


def fate(how: str, patience: str) -> str:
    """What becomes of 200 MB that are freed below something that is still in use."""
    command = [sys.executable, "-c", FRAGMENTED, how, patience]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return (done.stdout + done.stderr).strip()


def test_free_memory_goes_back_to_the_system() -> None:
    """The C library alone keeps it."""
    assert fate("returned", "200") == "returned"
    assert fate("alone", "1") == "kept"
