"""Measures the byte ledger in a site's process: seconds for each frame that it counts, and for each entry.

The frame is a request for a task, with headers of the size that FLARE gives it; it is counted and not sent. Between two
entries lie as many frames as a round of a short job has. An entry is on disk (fsync) before its time ends.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import Prefix
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey

from audits import AuditKey, origin_of
from medfedvqa.federation.flare.frame_counts import WireLedger

SITE, JOB = "chest", "9a0427e4-902a-42e3-b4ac-9c705cce5caa"
HEADERS = {
    MessageHeaderKey.CHANNEL: STREAM_CHANNEL,
    MessageHeaderKey.TOPIC: STREAM_DATA_TOPIC,
    MessageHeaderKey.MSG_TYPE: "req",
    MessageHeaderKey.ORIGIN: f"{SITE}.{JOB}",
    MessageHeaderKey.DESTINATION: f"server.{JOB}",
    StreamHeaderKey.CHANNEL: "server_command",
    StreamHeaderKey.TOPIC: "get_task",
    "rest": "x" * 700,
}
PAYLOAD = 600  # bytes


def main() -> None:
    """Measure and print one JSON object; times in microseconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=200)
    parser.add_argument("--frames", type=int, default=40, help="between two entries")
    arguments = parser.parse_args()
    frames, flushes = [], []
    with tempfile.TemporaryDirectory() as folder:
        key = AuditKey.at(Path(folder) / "audit.key", origin_of(SITE))
        ledger = WireLedger(Path(folder) / "audit", SITE, JOB, key)
        for _ in range(arguments.entries):
            for _ in range(arguments.frames):
                began = time.perf_counter()
                ledger.admit(Prefix(type=Types.DATA), HEADERS, PAYLOAD, SITE)
                frames.append(time.perf_counter() - began)
            began = time.perf_counter()
            ledger.flush()
            flushes.append(time.perf_counter() - began)
    print(json.dumps({"frame": _spread(frames), "entry": _spread(flushes)}, indent=2))


def _spread(seconds: list[float]) -> dict[str, float]:
    ranks = statistics.quantiles(seconds, n=100)
    return {name: round(1e6 * ranks[rank - 1], 1) for name, rank in (("median", 50), ("p99", 99))}


if __name__ == "__main__":
    main()
