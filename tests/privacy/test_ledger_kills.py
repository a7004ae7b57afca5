"""Real processes share one ledger."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import privacy
from privacy.ledger import Ledger

pytestmark = pytest.mark.usefixtures("simple_accountant")

DELTA = 1e-3

# A step costs epsilon 1, so that a process spends its time on the ledger and sums can be checked exactly.
FORK_SITES = """
import os, signal, sys
from pathlib import Path
import privacy.ledger_accounts, privacy.ledger_replay, privacy.ledger
from privacy import SampledGaussian
from privacy.accounting import PrivacyCost
from privacy.ledger import BudgetRefused, Ledger, Limits, PlannedTask

folder, outside = map(Path, sys.argv[1:])

def spent(events, delta):
    total = float(sum(event.steps for event in events))
    return PrivacyCost(epsilon=total, rdp=total, prv=total, mu=total, delta=delta)

privacy.ledger_accounts.spent = privacy.ledger_replay.spent = privacy.ledger.spent = privacy.ledger.spent = spent
privacy.ledger.fitting = lambda limit, delta, already, rounds: 0

def say(wire, *words):
    os.write(wire, (" ".join(map(str, words)) + "\\n").encode())

def reserve_until_refused(name, wire):
    while not (folder / "start").exists():
        pass
    ledger = Ledger(folder, "chest")
    for number in range(10):
        plan = [PlannedTask("train", 1, (SampledGaussian(0.1, 1.0, 3),))]
        try:
            ledger.reserve(f"{name}-{number}", "m", ["shared", name], plan, Limits(50, 1e-3))
            say(wire, "granted")
        except BudgetRefused:
            say(wire, "refused")
    say(wire, "end")

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    work, name = line.split()
    child = os.fork()
    if not child:
        globals()[work](name, os.open(outside / name, os.O_WRONLY | os.O_CREAT))
        os._exit(0)
    print(child, flush=True)
"""


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that forks a site for each line that it is told, and tells its process id."""
    (tmp_path / "site").mkdir(mode=0o700)
    (tmp_path / "outside").mkdir()
    environment = os.environ | {"PYTHONPATH": str(Path(privacy.__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", FORK_SITES, str(tmp_path / "site"), str(tmp_path / "outside")]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=environment, start_new_session=True
    ) as process:
        yield process
        os.killpg(process.pid, signal.SIGKILL)


def start(nursery: subprocess.Popen[str], work: str, name: str) -> int:
    """Starts a site that writes what the ledger acknowledged to the file of that name; its process id."""
    record, tells = nursery.stdin, nursery.stdout
    assert record and tells
    record.write(f"{work} {name}\n")
    record.flush()
    return int(tells.readline())


def said(wire: Path) -> list[list[str]]:
    return [line.split() for line in wire.read_text().splitlines()] if wire.exists() else []


def test_processes_that_reserve_at_once_never_exceed_the_limit(nursery: subprocess.Popen[str], tmp_path: Path) -> None:
    """Eight processes create one ledger at the same moment and want 240 for a shared patient: 48 of 50 are granted."""
    wires = [tmp_path / "outside" / str(number) for number in range(8)]
    for wire in wires:
        start(nursery, "reserve_until_refused", wire.name)
    (tmp_path / "site" / "start").touch()
    deadline = time.monotonic() + 60
    while not all(wire.exists() and wire.read_text().endswith("end\n") for wire in wires):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    words = [line for wire in wires for line in said(wire)]
    assert (words.count(["granted"]), words.count(["refused"])) == (16, 64)
    with contextlib.closing(Ledger(tmp_path / "site", "chest")) as ledger:
        ledger.verify()
        assert max(account.authorised.epsilon for account in ledger.accounts(DELTA)) == 48
