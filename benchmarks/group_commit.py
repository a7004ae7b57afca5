"""What one fsync for many entries saves: entries per second that are appended to an audit log and are on disk.

Every way is measured in one run, in turns, on a tmpfs and on the disk: one thread that appends entry by entry, as all
versions before did for any number of threads; several threads at once, which share fsyncs; and one caller who has
several entries. Printed are the median of the turns and the ratio to one fsync an entry. Target: 5,000 a second with
group commit, on both. Then the cost of the public form: the same entries with a key, signed as often as said, with and
without tiles.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from audits import AuditKey, AuditLog, Event, Kind, Outcome, Protection, TensorRecord, origin_of, verify
from audits.signed_tree import Anchor

SITE = "chest"
PROMPT = TensorRecord("prompt.image", (2, 4, 256), "float32", 8192, "ab" * 32, Kind.PARAMETERS, Protection.DP)
SAID = {"job": "job", "method": "m", "task": "train", "peer": "server", "tensors": (PROMPT,), "nbytes": 8192}
Way = Callable[[AuditLog, int], None]


def draft(number: int) -> tuple[Event, dict[str, Any]]:
    """An entry as a job writes it."""
    return Event.RELEASE, {**SAID, "round": number, "outcome": Outcome.SENT}


def alone(log: AuditLog, entries: int) -> None:
    """Entry by entry."""
    for number in range(entries):
        event, said = draft(number)
        log.append(event, **said)


def by_threads(threads: int) -> Way:
    """So many threads, each entry by entry."""

    def way(log: AuditLog, entries: int) -> None:
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(alone, log, entries // threads) for _ in range(threads)]:
                done.result()

    return way


def in_batches(size: int) -> Way:
    """One caller with so many entries at a time."""

    def way(log: AuditLog, entries: int) -> None:
        for _ in range(entries // size):
            log.append_all([draft(number) for number in range(size)])

    return way


def rate(place: Path, way: Way, entries: int) -> float:
    """Entries per second, all of which are in the log."""
    with tempfile.TemporaryDirectory(dir=place) as folder, closing(AuditLog(Path(folder), SITE)) as log:
        began = time.perf_counter()
        way(log, entries)
        seconds = time.perf_counter() - began
        return verify(Path(folder)).entries / seconds


def appending(place: Path, threads: int, size: int, seconds: float, turns: int) -> None:
    """Print entries per second in each way."""
    ways = {
        "one fsync an entry": alone,
        f"{threads} threads": by_threads(threads),
        f"{size} entries at a time": in_batches(size),
    }
    # Enough entries that a way runs for about so many seconds.
    counts = {name: max(int(rate(place, way, 1024) * seconds), 1024) for name, way in ways.items()}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            rates[name].append(rate(place, way, counts[name]))
    base = statistics.median(rates["one fsync an entry"])
    for name, found in rates.items():
        middle = statistics.median(found)
        print(f"  {name:24} {middle:9.0f} entries/s, {middle / base:6.1f} times, worst turn {min(found):9.0f}")


@contextmanager
def without_tiles() -> Iterator[None]:
    """Checkpoints are signed, and nothing is published."""
    publish = Anchor.publish
    Anchor.publish = lambda *_: False  # type: ignore[method-assign]
    try:
        yield
    finally:
        Anchor.publish = publish  # type: ignore[method-assign]


def signing(place: Path, entries: int, every: int) -> float:
    """Entries per second of a log that is signed, from its opening until it is closed."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        key = AuditKey.at(Path(folder) / "audit.key", origin_of(SITE))
        began = time.perf_counter()
        with closing(AuditLog(Path(folder) / "audit", SITE, key)) as log:
            for _ in range(entries // every):
                log.append_all([draft(number) for number in range(every)])
                log.checkpoint()
        return entries / (time.perf_counter() - began)


def publishing(place: Path, entries: int, every: int, turns: int) -> None:
    """Print what the tiles cost."""
    plain, public = [], []
    for _ in range(turns):
        with without_tiles():
            plain.append(signing(place, entries, every))
        public.append(signing(place, entries, every))
    before, after = statistics.median(plain), statistics.median(public)
    print(
        f"  signed every {every} entries: {before:7.0f} entries/s, with tiles {after:7.0f}, {after / before:.2f} times"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--batch", type=int, default=256, help="entries that one caller has at a time")
    parser.add_argument("--seconds", type=float, default=2.0, help="that each turn takes, about")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    for name, place in (("tmpfs", arguments.tmpfs), ("disk", arguments.disk)):
        print(f"{name}:")
        appending(place, arguments.threads, arguments.batch, arguments.seconds, arguments.turns)
        for every in (2, 256):
            publishing(place, 2048 if every == 2 else 8192, every, arguments.turns)


if __name__ == "__main__":
    main()
