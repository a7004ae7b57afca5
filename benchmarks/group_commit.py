"""Measures group commit: entries per second that are appended to an audit log and are on disk.

Three ways take turns, on a tmpfs and on the disk: one thread that appends entry by entry; several threads, which share
fsyncs; and one caller with several entries at a time. It prints the median of the turns, and the ratio to one fsync for
each entry. Target: 5,000 entries a second with group commit, on both. Then it measures the public form: the same
entries with a key, signed at intervals, with and without tiles.
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
FIELDS = {"job": "job", "method": "m", "task": "train", "peer": "server", "tensors": (PROMPT,), "nbytes": 8192}
Way = Callable[[AuditLog, int], None]


def draft(number: int) -> tuple[Event, dict[str, Any]]:
    """An entry as a job writes it."""
    return Event.RELEASE, {**FIELDS, "round": number, "outcome": Outcome.SENT}


def alone(log: AuditLog, entries: int) -> None:
    """Append entry by entry."""
    for number in range(entries):
        event, fields = draft(number)
        log.append(event, **fields)


def by_threads(threads: int) -> Way:
    """The way of this many threads, each of which appends entry by entry."""

    def way(log: AuditLog, entries: int) -> None:
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(alone, log, entries // threads) for _ in range(threads)]:
                done.result()

    return way


def in_batches(size: int) -> Way:
    """The way of one caller with this many entries at a time."""

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
    # Enough entries that a way runs for about this many seconds.
    counts = {name: max(int(rate(place, way, 1024) * seconds), 1024) for name, way in ways.items()}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            rates[name].append(rate(place, way, counts[name]))
    base = statistics.median(rates["one fsync an entry"])
    for name, by_turn in rates.items():
        middle = statistics.median(by_turn)
        print(f"  {name:24} {middle:9.0f} entries/s, {middle / base:6.1f} times, worst turn {min(by_turn):9.0f}")


@contextmanager
def without_tiles() -> Iterator[None]:
    """While this lasts, checkpoints are signed and nothing is published."""
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
