"""Entries that come at once share one fsync, and each append still returns only once its entry is on disk."""

import errno
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tiers import examples

import audits
from audits import AuditKey, AuditLog, Entry, Event, LogError, VerdictState, examine, origin_of, read, verify

THREADS = 20
PATIENCE = 60.0  # seconds


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Disk:
    """The real fsync, counted; the first one waits until it is released."""

    def __init__(self, patch: pytest.MonkeyPatch, path: Path) -> None:
        self.released, self.reached = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        """Of the log, each time that it was on disk."""
        self.fails = False
        self._real, self._path = os.fsync, path
        patch.setattr(os, "fsync", self._sync)

    def _sync(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        if not self.reached.is_set():
            self.reached.set()
            assert self.released.wait(PATIENCE)
        elif self.fails:
            raise OSError(errno.EIO, "Input/output error")
        self._real(descriptor)
        self.sizes.append(size)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AuditLog]:
    log = AuditLog(tmp_path, "chest")
    yield log
    log.close()


@pytest.fixture
def disk(log: AuditLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch, tmp_path / "log.jsonl")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS + 1) as pool:
        yield pool


def waiting(log: AuditLog) -> int:
    return len(log._group._waiting)


def crowd(log: AuditLog, disk: Disk, pool: ThreadPoolExecutor) -> list[Future[Entry]]:
    """One thread is at its fsync, and the others wait to append."""
    futures = [pool.submit(log.append, Event.RELEASE, round=0)]
    assert disk.reached.wait(PATIENCE)
    futures += [pool.submit(log.append, Event.RELEASE, round=number) for number in range(1, THREADS)]
    wait_until(lambda: waiting(log) == THREADS - 1)
    return futures


def test_threads_that_wait_share_one_fsync(log: AuditLog, disk: Disk, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    """20 appends take two: that of the first, and one for all who came meanwhile; each gets its own entry."""
    futures = crowd(log, disk, pool)
    disk.released.set()
    entries = [future.result(PATIENCE) for future in futures]
    assert len(disk.sizes) == 2 and [entry.round for entry in entries] == list(range(THREADS))
    assert sorted(entries, key=lambda entry: entry.seq) == list(read(tmp_path)) and verify(tmp_path).ok


def test_no_append_returns_before_its_entry_is_on_disk(log: AuditLog, disk: Disk, tmp_path: Path) -> None:
    """At the moment when an append returns, the part of the file that was synced holds its line."""
    disk.reached.set()
    path, synced = tmp_path / "log.jsonl", []

    def append(number: int) -> None:
        entry = log.append(Event.RELEASE, round=number)
        size = max(disk.sizes)
        synced.append(path.read_bytes()[:size].count(b"\n") > entry.seq)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(append, range(10 * THREADS)))
    assert len(synced) == 10 * THREADS and all(synced) and len(disk.sizes) < 10 * THREADS


def test_several_entries_of_one_caller_take_one_fsync(log: AuditLog, disk: Disk, tmp_path: Path) -> None:
    """In their order, one after the other; no entries take none."""
    disk.reached.set()
    assert log.append_all([]) == [] and not disk.sizes
    entries = log.append_all([(Event.RELEASE, {"round": number}) for number in range(500)])
    assert [entry.round for entry in entries] == list(range(500)) and entries == list(read(tmp_path))
    assert len(disk.sizes) == 1


@pytest.mark.parametrize("bad", [{"colour": 1}, {"round": b"1"}, {"epsilon_after": float("nan")}])
def test_of_entries_that_belong_together_all_are_written_or_none(
    log: AuditLog, disk: Disk, pool: ThreadPoolExecutor, tmp_path: Path, bad: dict[str, object]
) -> None:
    """One that the format does not have keeps its companions out, and nobody else's entries."""
    futures = crowd(log, disk, pool)
    batch = pool.submit(log.append_all, [(Event.OPEN, {}), (Event.RELEASE, bad), (Event.CLOSE, {})])
    wait_until(lambda: waiting(log) == THREADS)
    disk.released.set()
    with pytest.raises((TypeError, ValueError)):
        batch.result(PATIENCE)
    assert {future.result(PATIENCE).round for future in futures} == set(range(THREADS))
    assert {entry.event for entry in read(tmp_path)} == {Event.RELEASE} and verify(tmp_path).entries == THREADS


def test_a_failing_disk_fails_all_who_wait_and_leaves_no_entry(
    log: AuditLog, disk: Disk, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """The group is taken back as a whole; the chain goes on when the disk works again."""
    futures = crowd(log, disk, pool)
    disk.fails = True
    disk.released.set()
    assert futures[0].result(PATIENCE).seq == 0
    for future in futures[1:]:
        with pytest.raises(LogError, match="Input/output error"):
            future.result(PATIENCE)
    assert verify(tmp_path).entries == 1 and not verify(tmp_path).torn_bytes
    disk.fails = False
    assert log.append(Event.CLOSE).seq == 1 and verify(tmp_path).ok


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, also where a shell has started the tests in the background and has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_who_stops_waiting_holds_nobody_up(log: AuditLog, disk: Disk, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    """Ctrl-C in a thread that waits: its entry is not written, and those of the others are."""
    first = pool.submit(log.append, Event.RELEASE, round=0)
    assert disk.reached.wait(PATIENCE)

    def interrupt() -> Entry:
        wait_until(lambda: waiting(log) == 1)
        later = pool.submit(log.append, Event.RELEASE, round=2)
        wait_until(lambda: waiting(log) == 2)
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: waiting(log) == 1)
        disk.released.set()
        return later.result(PATIENCE)

    helper = pool.submit(interrupt)
    with pytest.raises(KeyboardInterrupt):
        log.append(Event.RELEASE, round=1)
    assert (first.result(PATIENCE).seq, helper.result(PATIENCE).seq) == (0, 1)
    assert [entry.round for entry in read(tmp_path)] == [0, 2]
    assert log.append(Event.CLOSE).seq == 2


def test_groups_roll_the_files_of_the_log(tmp_path: Path) -> None:
    """Entries of one request stay in one file; the next request begins another one."""
    log = AuditLog(tmp_path, "chest", segment_bytes=5000)
    for _ in range(4):
        log.append_all([(Event.RELEASE, {"round": number}) for number in range(20)])
    log.close()
    assert sorted(path.name for path in tmp_path.glob("log-*.jsonl")) == [
        f"log-{first:06d}.jsonl" for first in (0, 20, 40)
    ]
    assert verify(tmp_path).entries == 80


APPEND_FROM_MANY_THREADS = """
import os, sys, threading
from pathlib import Path
from audits import AuditKey, AuditLog, Event
place = Path(sys.argv[1])
key = AuditKey.at(place / "audit.key", "medfedvqa/audit/chest")
log = AuditLog(place / "audit", "chest", key, segment_bytes=100_000)

def append(number):
    while True:
        if number % 4:
            seqs = [log.append(Event.RELEASE, job=sys.argv[2], round=number).seq]
        else:
            drafts = [(Event.RELEASE, {"job": sys.argv[2], "round": number})] * 30
            seqs = [entry.seq for entry in log.append_all(drafts)]
        os.write(1, b"".join(b"%d\\n" % seq for seq in seqs))
        if number == 1:
            log.checkpoint()

for number in range(16):
    threading.Thread(target=append, args=(number,)).start()
"""
WAVES = examples(12, least=4)


@pytest.mark.sampled
@pytest.mark.timeout(300)
def test_what_was_acknowledged_outlasts_a_kill_in_the_middle_of_a_group(tmp_path: Path) -> None:
    """16 threads append one by one and 30 at a time, and sign, and SIGKILL hits their process; a line is torn after.

    Every number that was handed out is an entry of that process, and chain, tree and tiles verify.
    """
    chance, acknowledged = random.Random(11), {}
    environment = os.environ | {"PYTHONPATH": str(Path(audits.__file__).parents[1])}
    for wave in range(WAVES):
        job = f"wave-{wave}"
        command = [sys.executable, "-c", APPEND_FROM_MANY_THREADS, str(tmp_path), job]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            output = process.stdout
            assert output
            heard = _heard(output.fileno(), 400 + chance.randrange(400))
            process.send_signal(signal.SIGKILL)
            heard += output.read()
        assert process.returncode == -signal.SIGKILL
        acknowledged |= dict.fromkeys(map(int, heard[: heard.rfind(b"\n")].split()), job)
        log = tmp_path / "audit" / "log.jsonl"
        with log.open("ab") as file:
            file.write(b'{"actor":null,"code_digest"'[: chance.randrange(1, 27)])
        assert verify(tmp_path / "audit").ok
    key = AuditKey.at(tmp_path / "audit.key", origin_of("chest"))
    AuditLog(tmp_path / "audit", "chest", key).close()
    assert len(acknowledged) > 400 * WAVES
    jobs = {entry.seq: entry.job for entry in read(tmp_path / "audit")}
    assert acknowledged == {seq: jobs.get(seq) for seq in acknowledged}
    result = examine(tmp_path / "audit", "chest", key=key.public, network=False)
    parts = {part.name: part.state for part in result.integrity.parts}
    assert result.integrity.state is VerdictState.SHOWN and parts["tiles"] is VerdictState.SHOWN
    assert json.dumps(result.record())


def _heard(descriptor: int, entries: int) -> bytes:
    """What a process says up to that many lines."""
    heard, deadline = b"", time.monotonic() + PATIENCE
    while heard.count(b"\n") < entries:
        assert select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))[0]
        heard += os.read(descriptor, 1 << 16)
    return heard
