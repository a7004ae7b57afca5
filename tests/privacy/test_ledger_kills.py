"""Real processes: they share one ledger, and may be killed at any moment."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import privacy
from privacy.ledger import ChargeState, Ledger

pytestmark = pytest.mark.usefixtures("simple_accountant")

KILLS = 50
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

def spend_for_ever(name, wire):
    ledger, limits = Ledger(folder, "chest"), Limits(1e9, 1e-3)
    plan = [PlannedTask("train", round, (SampledGaussian(0.1, 1.0, 1 + round),)) for round in (1, 2)]
    for number in range(1_000_000):
        job = f"{name}-{number}"
        ledger.reserve(job, "m", ["p"], plan, limits)
        for round in (1, 2):
            charge = ledger.begin(job, "train", round, limits)
            say(wire, "begun", job, round, charge.seq, charge.head, charge.epsilon_after)
            ledger.settle(job, "train", round)
            say(wire, "settled", job, round)

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


def kill(process: int) -> None:
    """SIGKILL, and returns when the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
        while True:
            os.kill(process, 0)
            time.sleep(0.001)


def said(wire: Path) -> list[list[str]]:
    return [line.split() for line in wire.read_text().splitlines()] if wire.exists() else []


def check(folder: Path, lines: list[list[str]], epsilon: float) -> float:
    """Holds the ledger that a killed process left against what it said; the epsilon that the ledger now reports.

    `epsilon` is what had been spent before that process.
    """
    with contextlib.closing(Ledger(folder, "chest")) as ledger:
        ledger.verify()
        states = {job.job: job.state for account in ledger.accounts(DELTA) for job in account.jobs}
        for kind, job, round, *record in lines:
            charge = ledger.charge_of(job, "train", int(round))
            assert charge and ledger.contains(charge.seq, charge.head)
            if kind == "begun":
                assert [charge.seq, charge.head, charge.epsilon_after] == [int(record[0]), record[1], float(record[2])]
                epsilon = charge.epsilon_after
            elif round == "2":
                assert states[job] is ChargeState.CHARGED
        result = sum(account.spent.epsilon for account in ledger.accounts(DELTA))
    in_flight = result - epsilon
    assert min(abs(in_flight - steps) for steps in (0, 2, 3)) < 1e-9
    return result


@pytest.mark.release
def test_a_killed_process_loses_nothing_that_was_acknowledged(nursery: subprocess.Popen[str], tmp_path: Path) -> None:
    """50 processes in turn reserve, begin and settle in one ledger until SIGKILL, the first ones while they open it.

    After each the ledger opens and verifies, every acknowledged charge is in its place, and the replayed epsilon is
    the last acknowledged one, but for the one charge that may have been in flight.
    """
    chance = random.Random(11)
    epsilon, begun = 0.0, 0
    for number in range(KILLS):
        site = start(nursery, "spend_for_ever", str(number))
        time.sleep(chance.uniform(0, 0.01) if number < 10 else chance.uniform(0.02, 0.2))
        kill(site)
        lines = said(tmp_path / "outside" / str(number))
        begun += sum(line[0] == "begun" for line in lines)
        epsilon = check(tmp_path / "site", lines, epsilon)
    assert begun > KILLS


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
