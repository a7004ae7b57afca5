"""Measures the audit log: appending an entry, exchanging checkpoints in a round, and verifying the log.

Verifying: entries per second on one core, with chain, tree and checkpoints, compared in the same run with parsing and
encoding every line anew, as the verifier of the first version did. Target: 50,000 a second.
Appending: milliseconds of an entry with its fsync, and of a checkpoint, at the median and the 99th percentile; and the
share of entries, checkpoints, proofs and cosignatures in a round of a job. Target: at most 2 %.
"""

import argparse
import os
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from audits import (
    AuditKey,
    AuditLog,
    Event,
    Exchange,
    Gate,
    JobContext,
    Kind,
    SitePolicy,
    TaskSpec,
    TensorSpec,
    examine,
    origin_of,
)
from audits.entry import parse_line
from audits.log_files import lines_from
from medfedvqa.data import organs
from medfedvqa.federation.checkpoint_exchange import CheckpointExchange
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, run
from medfedvqa.models import bundled_for

SITE = "chest"
PROMPT = TensorSpec("prompt.image", (2, 4, 256), "float32", Kind.PARAMETERS, "A prompt.")
TEXT = TensorSpec("prompt.text", (2, 4, 256), "float32", Kind.PARAMETERS, "A prompt.")
ROWS = TensorSpec("accuracy", (), "float32", Kind.STATISTIC, "A figure.")
EXCHANGE = Exchange("m", (TaskSpec("train", (PROMPT, TEXT, ROWS), (PROMPT, TEXT)),))


def fill(folder: Path, entries: int) -> None:
    """Write a log as jobs do, with a checkpoint after every release, but without fsync, which is timed separately."""
    key = AuditKey.at(folder / "audit.key", origin_of(SITE))
    sync, os.fsync = os.fsync, lambda descriptor: None
    try:
        with closing(AuditLog(folder, SITE, key)) as log:
            context = JobContext("job", "m", "0" * 64, "1", "0" * 64)
            gate = Gate(EXCHANGE, SitePolicy(("m",), (Kind.PARAMETERS, Kind.STATISTIC)), log, context)
            gate.open()
            down = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in (PROMPT, TEXT)}
            up = {**down, ROWS.name: np.zeros((), "float32")}
            for round in range(entries // 2):
                gate.receive("train", round, down)
                gate.release("train", round, up)
                log.checkpoint()
            gate.close()
    finally:
        os.fsync = sync
    (folder / "keys").write_text(f"{key.public}\n")


def encode_anew(folder: Path) -> int:
    """Parse and encode every line anew, and follow the chain; the number of entries."""
    head, count = "0" * 64, 0
    for line in lines_from(folder, 0):
        record = parse_line(line)
        assert (record["seq"], record["prev_hash"]) == (count, head)
        head, count = record["leaf_hash"], count + 1
    return count


def verifying(entries: int) -> None:
    """Print entries per second in both ways, and the memory."""
    with tempfile.TemporaryDirectory() as place:
        fill(Path(place), entries)
        rates: dict[str, list[float]] = {"slow": [], "three verdicts": []}
        for _ in range(3):
            for name, way in (("slow", encode_anew), ("three verdicts", lambda folder: examine(folder, SITE).entries)):
                began = time.process_time()
                count = way(Path(place))
                rates[name].append(count / (time.process_time() - began))
        slow, fast = (statistics.median(rate) for rate in rates.values())
        tracemalloc.start()
        examine(Path(place), SITE)
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        size = sum(path.stat().st_size for path in Path(place).glob("log*.jsonl")) / count
        print(f"verify: {count} entries of {size:.0f} bytes on average, a checkpoint to every second one")
        print(f"  every line encoded anew, chain only: {slow:9.0f} entries/s")
        print(f"  three verdicts:                      {fast:9.0f} entries/s, {fast / slow:.2f} times, {peak:.1f} MB")


def milliseconds(action: Callable[[], Any], count: int) -> tuple[float, float]:
    """The median and the 99th percentile of the duration of an action."""
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        action()
        seconds.append(1e3 * (time.perf_counter() - began))
    return statistics.median(seconds), statistics.quantiles(seconds, n=100)[98]


def appending(count: int) -> None:
    """Print the cost of an entry and of a checkpoint, on the disk that holds temporary files."""
    with tempfile.TemporaryDirectory() as place:
        key = AuditKey.at(Path(place) / "audit.key", origin_of(SITE))
        plain, signed = AuditLog(Path(place) / "plain", SITE), AuditLog(Path(place) / "signed", SITE, key)

        def append_and_sign() -> None:
            signed.append(Event.RELEASE)
            signed.checkpoint()

        rows = {"append": lambda: plain.append(Event.RELEASE), "append and checkpoint": append_and_sign}
        for name, action in rows.items():
            middle, worst = milliseconds(action, count)
            print(f"{name}: median {middle:.2f} ms, p99 {worst:.2f} ms")


def share(rounds: int, data: str, root: Path | None) -> None:
    """Print the share of a job's seconds that the log takes, and the share of the exchange about logs."""
    spent = {"entries": 0.0, "checkpoints, proofs, cosignatures": 0.0}

    def metered(kind: type, name: str, row: str) -> None:
        real = getattr(kind, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return real(*arguments, **named)
            finally:
                spent[row] += time.perf_counter() - began

        setattr(kind, name, wrapped)

    metered(AuditLog, "append", "entries")
    metered(CheckpointExchange, "receive", "checkpoints, proofs, cosignatures")
    metered(CheckpointExchange, "reply", "checkpoints, proofs, cosignatures")
    options = {"rounds": rounds, "local_epochs": 1, "local_baseline": False}
    job = JobSpec.from_dict({"method": "prompt_pfl", "data": data, "options": options, "backbone": bundled_for(data)})
    with tempfile.TemporaryDirectory() as place:
        results = run(Launch(job, root, Path(place) / "run", organs(data, root)[:3]), "local", lambda event: None)
    seconds = sum(record["seconds"] for record in results["rounds"])
    for row, took in spent.items():
        print(f"{row}: {1e3 * took / rounds / 3:.1f} ms per round and site, {100 * took / seconds:.2f} % of the round")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=50_000)
    parser.add_argument("--appends", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", default="phantom", help="vqa-rad, slake or phantom")
    parser.add_argument("--data-root", type=Path)
    arguments = parser.parse_args()
    verifying(arguments.entries)
    appending(arguments.appends)
    if arguments.rounds:
        share(arguments.rounds, arguments.data, arguments.data_root)


if __name__ == "__main__":
    main()
