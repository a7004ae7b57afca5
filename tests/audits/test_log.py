"""The append-only, hash-chained log."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import audits
from audits import AuditLog, Entry, Event, Kind, LogError, Outcome, Protection, TensorRecord, read, verify

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(audits.__file__).parents[1])}
FIELDS = {
    *("seq", "prev_hash", "leaf_hash", "time", "monotonic", "site", "event", "actor", "job", "method", "round"),
    *("task", "direction", "peer", "tensors", "nbytes", "policy", "exchange", "code_version", "code_digest"),
    *("model_digest", "dp_event", "epsilon_before", "epsilon_after", "outcome", "reason", "format"),
}
TENSOR = TensorRecord("shared", (2, 3), "float32", 24, "ab" * 32, Kind.PARAMETERS, Protection.NONE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "site" / "audit"


@pytest.fixture
def log(folder: Path) -> Iterator[AuditLog]:
    log = AuditLog(folder, "chest")
    yield log
    log.close()


def lines(folder: Path) -> list[bytes]:
    return (folder / "log.jsonl").read_bytes().splitlines(keepends=True)


def test_every_line_has_every_field_in_canonical_form(folder: Path, log: AuditLog) -> None:
    """The format never changes shape: what does not apply is null."""
    log.append(Event.OPEN)
    log.append(Event.RELEASE, tensors=(TENSOR,), nbytes=24, outcome=Outcome.SENT, dp_event={"steps": 3})
    for line in lines(folder):
        record = json.loads(line)
        assert set(record) == FIELDS
        assert line == json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    opened = json.loads(lines(folder)[0])
    assert {name for name in FIELDS if opened[name] is None} == FIELDS - {
        *("seq", "prev_hash", "leaf_hash", "time", "monotonic", "site", "event", "tensors", "nbytes"),
        "format",
    }


def test_hashes_chain_as_documented(folder: Path, log: AuditLog) -> None:
    """leaf = SHA-256(0x00, canonical entry without leaf_hash); prev = the leaf before, 64 zeros for the first."""
    for number in range(3):
        log.append(Event.RELEASE, round=number)
    before = "0" * 64
    for number, line in enumerate(lines(folder)):
        record = json.loads(line)
        leaf = record.pop("leaf_hash")
        body = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        assert leaf == hashlib.sha256(b"\x00" + body).hexdigest()
        assert (record["seq"], record["prev_hash"]) == (number, before)
        before = leaf


def test_entries_read_back_equal(folder: Path, log: AuditLog) -> None:
    """What append returns is what stands in the file."""
    appended = [log.append(Event.OPEN, actor="ü"), log.append(Event.RELEASE, tensors=(TENSOR,), outcome=Outcome.SENT)]
    assert list(read(folder)) == appended


def test_times_are_utc_with_microseconds_beside_a_steady_clock(log: AuditLog) -> None:
    """`time` ends in Z and is now; `monotonic` never goes back."""
    before = datetime.now(UTC)
    first, second = log.append(Event.OPEN), log.append(Event.CLOSE)
    assert before <= datetime.strptime(first.time, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC) <= datetime.now(UTC)
    assert first.monotonic < second.monotonic


def test_a_log_that_is_opened_again_goes_on(folder: Path) -> None:
    """A restarted site continues its chain."""
    for number in range(3):
        log = AuditLog(folder, "chest")
        assert log.append(Event.OPEN).seq == number
        log.close()
    assert verify(folder).entries == 3


def test_an_entry_longer_than_one_read_is_found_again(folder: Path) -> None:
    """The search for the last entry does not stop at its block size."""
    log = AuditLog(folder, "chest")
    log.append(Event.OPEN)
    log.append(Event.RELEASE, tensors=(TENSOR,) * 2000)
    assert len(lines(folder)[1]) > 1 << 17
    assert AuditLog(folder, "chest").append(Event.CLOSE).seq == 2
    assert verify(folder).ok


def test_the_tail_is_read_only_if_somebody_else_wrote(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appending alone costs no reading; another writer's entry is read once."""
    reads = []
    real = os.pread

    def spy(*record: int) -> bytes:
        reads.append(record)
        return real(*record)

    monkeypatch.setattr(os, "pread", spy)
    item, other = AuditLog(folder, "chest"), AuditLog(folder, "chest")
    for _ in range(5):
        item.append(Event.RELEASE)
    assert reads == []
    assert other.append(Event.RELEASE).seq == 5
    assert item.append(Event.RELEASE).seq == 6
    assert len(reads) == 2 and verify(folder).entries == 7


def test_threads_keep_one_chain(folder: Path, log: AuditLog) -> None:
    """Appends of several threads through one object do not interleave."""
    with ThreadPoolExecutor(4) as pool:
        entries = list(pool.map(lambda number: log.append(Event.RELEASE, round=number), range(40)))
    assert sorted(entry.seq for entry in entries) == list(range(40))
    assert verify(folder).entries == 40


APPEND_FROM_ANOTHER_PROCESS = """
import sys
from pathlib import Path
from audits import AuditLog, Event
log = AuditLog(Path(sys.argv[1]), "chest")
print("ready", flush=True)
sys.stdin.readline()
for number in range(30):
    log.append(Event.RELEASE, job=sys.argv[2], round=number)
"""


def test_two_processes_keep_one_chain(folder: Path) -> None:
    """Started at one moment, both write all their entries, each in its order, into one chain."""
    command = [sys.executable, "-c", APPEND_FROM_ANOTHER_PROCESS, str(folder)]
    pipe = subprocess.PIPE
    children = [
        subprocess.Popen([*command, job], stdin=pipe, stdout=pipe, text=True, env=ENVIRONMENT) for job in ("a", "b")
    ]
    for child in children:
        assert child.stdout and child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin and child.stdin.write("go\n") and child.stdin.flush() is None
    for child in children:
        child.communicate()
        assert child.returncode == 0
    assert verify(folder).ok
    for job in ("a", "b"):
        assert [entry.round for entry in read(folder) if entry.job == job] == list(range(30))


def test_append_returns_after_the_whole_entry_was_synced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last thing that reaches the disk is the file with the entry in it; on creation also the new folders."""
    synced = []
    real = os.fsync

    def spy(descriptor: int) -> None:
        real(descriptor)
        result = os.fstat(descriptor)
        synced.append((result.st_ino, result.st_size))

    monkeypatch.setattr(os, "fsync", spy)
    log = AuditLog(folder, "chest")
    inodes = {inode for inode, _ in synced}
    assert {path.stat().st_ino for path in (folder, folder.parent, folder.parent.parent)} <= inodes
    for _ in range(2):
        log.append(Event.RELEASE)
        result = (folder / "log.jsonl").stat()
        assert synced[-1] == (result.st_ino, result.st_size)


def test_a_failing_disk_is_an_error_and_leaves_no_entry(
    folder: Path, log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the sync fails the entry is taken back, and the chain goes on when the disk works again."""
    log.append(Event.OPEN)
    before = lines(folder)

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(LogError, match="Input/output error"):
            log.append(Event.RELEASE)
    assert lines(folder) == before
    assert log.append(Event.CLOSE).seq == 1 and verify(folder).ok


FILL_THE_DISK = """
import resource, sys
from pathlib import Path
from audits import AuditLog, Event, LogError
folder = Path(sys.argv[1])
log = AuditLog(folder, "chest")
log.append(Event.OPEN)
size = (folder / "log.jsonl").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
try:
    log.append(Event.RELEASE)
except LogError as error:
    print(error)
print((folder / "log.jsonl").stat().st_size - size)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(log.append(Event.CLOSE).seq)
"""


def test_a_full_disk_is_an_error_and_leaves_no_entry(folder: Path) -> None:
    """A write that the system cuts short is taken back; the chain goes on once there is room."""
    command = [sys.executable, "-c", FILL_THE_DISK, str(folder)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    message, left, seq = done.stdout.splitlines()
    assert "cannot be written (File too large)" in message and (left, seq) == ("0", "1")
    assert verify(folder).entries == 2


@pytest.mark.parametrize("keep", [*range(0, 560, 40), -2, -1])
def test_a_torn_last_line_is_cut_off_and_recorded(folder: Path, keep: int) -> None:
    """Wherever a crash tore the last line, the entries before it stay and the next append says what was cut off."""
    log = AuditLog(folder, "chest")
    for _ in range(3):
        log.append(Event.RELEASE)
    whole = lines(folder)
    torn = whole[2][:keep]
    (folder / "log.jsonl").write_bytes(b"".join(whole[:2]) + torn)
    assert verify(folder).torn_bytes == len(torn)

    again = AuditLog(folder, "chest")
    last = again.append(Event.OPEN)
    recovered = [entry for entry in read(folder) if entry.event is Event.RECOVERED]
    assert lines(folder)[:2] == whole[:2] and verify(folder).ok and verify(folder).torn_bytes == 0
    if torn:
        assert last.seq == 3 and len(recovered) == 1
        assert recovered[0].reason == f"the last {len(torn)} bytes, left by a crash, were cut off"
    else:
        assert last.seq == 2 and not recovered


def test_a_log_that_was_torn_in_its_first_line_starts_again(folder: Path, log: AuditLog) -> None:
    """A crash within the first entry leaves nothing to continue."""
    (folder / "log.jsonl").write_bytes(b'{"actor":')
    assert log.append(Event.OPEN).seq == 1
    assert [entry.event for entry in read(folder)] == [Event.RECOVERED, Event.OPEN]


def damage(folder: Path) -> None:
    path = folder / "log.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round":1', b'"round":7'))


def test_nothing_is_added_to_a_damaged_tail(folder: Path, log: AuditLog) -> None:
    """A site does not go on over tampering as if nothing had happened."""
    log.append(Event.RELEASE, round=1)
    damage(folder)
    before = lines(folder)
    with pytest.raises(LogError, match="damaged"):
        AuditLog(folder, "chest").append(Event.OPEN)
    assert lines(folder) == before


def test_each_site_has_its_own_log(folder: Path, log: AuditLog) -> None:
    """Two sites pointed at one folder by mistake do not mix their entries."""
    log.append(Event.OPEN)
    with pytest.raises(LogError, match="another site"):
        AuditLog(folder, "head").append(Event.OPEN)


def test_a_log_that_is_moved_or_shortened_while_in_use_stops_the_site(folder: Path, log: AuditLog) -> None:
    """Entries never go into a file that nobody will find, nor over a gap."""
    path = folder / "log.jsonl"
    log.append(Event.OPEN)
    log.append(Event.RELEASE)
    path.write_bytes(lines(folder)[0])
    with pytest.raises(LogError, match="shortened"):
        log.append(Event.RELEASE)
    path.rename(folder / "old.jsonl")
    path.touch()
    with pytest.raises(LogError, match="replaced"):
        log.append(Event.RELEASE)
    path.unlink()
    with pytest.raises(LogError, match="cannot be written"):
        log.append(Event.RELEASE)


def test_a_place_where_no_log_can_be_is_an_error_without_its_path(tmp_path: Path) -> None:
    """A file in the folder's place, or a folder in the file's, is reported in a sentence."""
    (tmp_path / "taken").touch()
    (tmp_path / "site" / "log.jsonl").mkdir(parents=True)
    for folder in (tmp_path / "taken", tmp_path / "taken" / "audit", tmp_path / "site"):
        with pytest.raises(LogError, match="cannot be opened") as caught:
            AuditLog(folder, "chest")
        assert str(tmp_path) not in str(caught.value)


def test_a_closed_log_takes_nothing(folder: Path, log: AuditLog) -> None:
    """Closing twice is harmless, appending afterwards is an error."""
    log.close()
    log.close()
    with pytest.raises(LogError, match="closed"):
        log.append(Event.OPEN)


@pytest.mark.parametrize(
    "said", [{"event": "peek"}, {"colour": 1}, {"site": "head"}, {"epsilon_after": float("nan")}, {"round": b"1"}]
)
def test_what_the_format_does_not_have_is_not_written(folder: Path, log: AuditLog, said: dict[str, Any]) -> None:
    """Unknown events, fields and values fail before a byte reaches the file."""
    with pytest.raises((TypeError, ValueError)):
        log.append(**{"event": Event.OPEN, **said})
    assert lines(folder) == []


def test_an_entry_that_no_reader_would_accept_is_not_written(
    folder: Path, log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers bound the length of a line, so the writer keeps to it."""
    monkeypatch.setattr("audits.log.MAX_LINE", 1000)
    log.append(Event.OPEN)
    with pytest.raises(LogError, match="more than the 1000"):
        log.append(Event.RELEASE, tensors=(TENSOR,) * 5)
    assert verify(folder).entries == 1 and verify(folder).torn_bytes == 0


@pytest.mark.parametrize(
    "change", [{"event": "peek"}, {"outcome": "lost"}, {"tensors": [{}]}, {"tensors": 3}, {"x": 1}]
)
def test_a_record_of_another_format_is_no_entry(log: AuditLog, change: dict[str, Any]) -> None:
    """Reading refuses what this version does not write."""
    record = log.append(Event.OPEN).record()
    assert Entry.from_record(record).record() == record
    with pytest.raises(LogError):
        Entry.from_record(record | change)
