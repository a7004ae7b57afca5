"""A site that is killed at any moment: all that left it is in its log."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import audits
from audits import AuditKey, AuditLog, Event, Outcome, VerdictState, examine, origin_of, read, verify
from audits.log_files import segments

WAVES, CHILDREN = 10, 10

FORK_SITES_THAT_RELEASE_FOR_EVER = """
import os, signal, sys
from pathlib import Path
import numpy as np
from audits import AuditKey, AuditLog, Exchange, Gate, JobContext, Kind, SitePolicy, TaskSpec, TensorSpec

folder, outside = map(Path, sys.argv[1:])
prompt = TensorSpec("prompt", (16,), "float32", Kind.PARAMETERS, "A prompt.")
exchange = Exchange("m", (TaskSpec("train", up=(prompt,), down=()),))

def release_for_ever(job):
    context = JobContext(job, "m", "0" * 64, "1", "0" * 64)
    key = AuditKey.at(folder / "audit.key", "medfedvqa/audit/chest")
    log = AuditLog(folder, "chest", key, segment_bytes=20_000)
    gate = Gate(exchange, SitePolicy(("m",), (Kind.PARAMETERS,)), log, context)
    wire = os.open(outside / job, os.O_WRONLY)
    for number in range(1_000_000):
        sent = gate.release("train", number, {"prompt": np.full(16, number, "float32")})
        os.write(wire, b"%d\\n" % int(sent["prompt"][0]))
        if number % 3 == 0:
            log.checkpoint()

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for job in sys.stdin:
    child = os.fork()
    if not child:
        release_for_ever(job.strip())
    print(child, flush=True)
"""


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that forks a releasing site for every job that it is told, and tells its process id."""
    (tmp_path / "outside").mkdir()
    environment = os.environ | {"PYTHONPATH": str(Path(audits.__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"}
    folders = [str(tmp_path / "audit"), str(tmp_path / "outside")]
    command, pipe = [sys.executable, "-c", FORK_SITES_THAT_RELEASE_FOR_EVER, *folders], subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=environment, start_new_session=True
    ) as process:
        yield process
        os.killpg(process.pid, signal.SIGKILL)


def start(nursery: subprocess.Popen[str], wire: Path) -> int:
    """Starts a site that writes what it has released to `wire`; its process id."""
    wire.touch()
    record, tells = nursery.stdin, nursery.stdout
    assert record and tells
    record.write(f"{wire.name}\n")
    record.flush()
    return int(tells.readline())


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def kill(process: int) -> None:
    """SIGKILL, and returns when the process is gone."""
    os.kill(process, signal.SIGKILL)
    while alive(process):
        time.sleep(0.001)


def tear(log: Path, chance: random.Random) -> None:
    """Writes a random part of a line, as a power cut leaves it."""
    line = b"".join(path.read_bytes() for path in segments(log.parent)).splitlines(keepends=True)[-1]
    with log.open("ab") as file:
        file.write(line[: chance.randrange(1, len(line))])


def test_everything_that_the_outside_saw_is_in_the_log(nursery: subprocess.Popen[str], tmp_path: Path) -> None:
    """100 processes are killed with SIGKILL while ten at a time release into one log, sign it and roll its files; after
    each ten a line is torn.

    Every message that was seen outside has its entry, and chain, tree and checkpoints verify over all crashes.
    """
    folder, outside = tmp_path / "audit", tmp_path / "outside"
    chance = random.Random(7)
    for wave in range(WAVES):
        wires = [outside / f"{wave}-{number}" for number in range(CHILDREN)]
        sites = [start(nursery, wire) for wire in wires]
        for site, wire in zip(sites, wires, strict=True):
            while not wire.stat().st_size:
                assert alive(site)
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.03))
            kill(site)
        tear(folder / "log.jsonl", chance)
        assert verify(folder).ok and verify(folder).torn_bytes
    key = AuditKey.at(folder / "audit.key", origin_of("chest"))
    log = AuditLog(folder, "chest", key)
    log.append(Event.OPEN, outcome=Outcome.REFUSED)
    log.close()

    result = examine(folder, "chest", key=key.public, network=False)
    assert result.integrity.state is result.completeness.state is VerdictState.SHOWN
    assert len(segments(folder)) > 3 and {part.name for part in result.integrity.parts} >= {"tree", "signature"}
    verdict = verify(folder)
    assert verdict.ok and not verdict.torn_bytes
    entries = list(read(folder))
    assert sum(entry.event is Event.RECOVERED for entry in entries) >= WAVES
    logged = {(entry.job, entry.round) for entry in entries if entry.outcome is Outcome.SENT}
    seen = {(wire.name, int(number)) for wire in outside.iterdir() for number in wire.read_text().split()}
    assert len({job for job, _ in seen}) == WAVES * CHILDREN
    assert seen <= logged
