"""What a site's log tells of the sums that its inputs went into."""

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from logs import JOB

from audits import AuditLog, Event, Kind, LogError, Outcome, Protection, Sharing, Stage, TensorRecord
from audits.log_files import LOG_NAME, closed_segments
from audits.sharing import EarlierSums

WRITERS, EACH = 3, 20


def share(log: AuditLog, job: str, sites: str, **changes: Any) -> None:
    """One input into a sum over sites of these letters; keywords change what the entry says."""
    stage, private = changes.pop("stage", Stage.BEGUN), changes.pop("private", False)
    sharing = Sharing("one", "mean", tuple(sites), "", stage=stage, private=private)
    entry = {**JOB, "job": job, "round": 1, "task": "train/mean", "direction": "out", "peer": "sites"}
    entry |= {"outcome": Outcome.SENT, "reason": str(sharing), "sharing": sharing.record()}
    log.append(Event.RELEASE, **entry | changes)


def cohorts(sums: EarlierSums, job: str = "new", round: int = 1, but_last: bool = False) -> set[str]:
    return {"".join(sorted(cohort)) for cohort in sums.cohorts(job, round, but_last)}


def test_what_counts_is_each_input_that_was_shared_and_the_result_that_it_came_to(tmp_path: Path) -> None:
    """Of all jobs, whatever their methods and rounds. A repeated attempt takes the place of the one before it, and an
    opened sum that of its attempt; refused entries, receipts, and sums under differential privacy are none of them."""
    log = AuditLog(tmp_path, "chest")
    share(log, "1", "abcd")
    share(log, "1", "abc", stage=Stage.REPEATED)
    share(log, "2", "abcde")
    share(log, "2", "abcde", peer="server")
    share(log, "2", "acde", peer="server", stage=Stage.OPENED)
    share(log, "2", "ab")
    share(log, "3", "ag", method="fedavg")
    share(log, "3", "ah", round=2)
    share(log, "3", "ax", outcome=Outcome.REFUSED)
    share(log, "3", "ax", direction="in")
    share(log, "3", "ax", private=True)
    log.append(Event.OPEN, **JOB, reason='"sharing":{')
    sums = EarlierSums(tmp_path)
    assert cohorts(sums) == {"abc", "acde", "ab", "ag", "ah"}
    assert cohorts(sums, "2", but_last=True) == {"abc", "acde", "ag", "ah"}
    share(log, "4", "af")
    assert cohorts(sums) == {"abc", "acde", "ab", "af", "ag", "ah"}


def test_rounds_of_one_job_count_where_the_server_sent_the_same(tmp_path: Path) -> None:
    """Training from the same values may put the same into the sum; from nothing, a site goes on from its own state."""
    log, sums = AuditLog(tmp_path, "chest"), EarlierSums(tmp_path)

    def receive(round: int, digest: str | None, **changes: Any) -> None:
        tensors = (TensorRecord("w", (1,), "float32", 4, digest, Kind.PARAMETERS, Protection.NONE),) if digest else ()
        entry = {**JOB, "job": "1", "round": round, "task": "train", "direction": "in", "peer": "server"}
        log.append(Event.RECEIVE, **entry | {"outcome": Outcome.ACCEPTED, "tensors": tensors} | changes)

    for round, digest in enumerate((None, "aa" * 32, "bb" * 32, "aa" * 32, None), 1):
        receive(round, digest)
        share(log, "1", f"a{'bcdef'[round - 1]}", round=round)
    receive(3, "aa" * 32)  # an evaluation, or a message that trains nothing
    receive(5, "aa" * 32, outcome=Outcome.REFUSED)
    receive(5, "aa" * 32, peer="sites")
    assert [cohorts(sums, "1", round) for round in range(1, 6)] == [{"ab"}, {"ac", "ae"}, {"ad"}, {"ac", "ae"}, {"af"}]
    assert cohorts(sums, "2", 1) == {"ab", "ac", "ad", "ae", "af"}


def test_closed_segments_count_and_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that closes keeps its place in what was read."""
    log, sums = AuditLog(tmp_path, "chest", segment_bytes=4000), EarlierSums(tmp_path)
    for number in range(12):
        share(log, str(number), f"ab{chr(ord('c') + number)}")
        assert len(cohorts(sums)) == number + 1
    assert len(closed_segments(tmp_path)) >= 2
    assert cohorts(sums) == cohorts(EarlierSums(tmp_path))
    monkeypatch.setattr(sums, "_take", None)
    assert len(cohorts(sums)) == 12


def test_a_torn_line_waits_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    """What cannot be trusted is not passed over."""
    log = AuditLog(tmp_path, "chest")
    share(log, "1", "abc")
    log.close()
    path, sums = tmp_path / LOG_NAME, EarlierSums(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert cohorts(sums) == set()
    path.write_bytes(whole)
    assert cohorts(sums) == {"abc"}
    path.write_bytes(whole.replace(b'["a","b","c"]', b'["a","b","d"]'))
    with pytest.raises(LogError, match="does not match its hash"):
        cohorts(EarlierSums(tmp_path))


def write(folder: Path, writer: int) -> None:
    """Adds cohorts under the lock; ends with an error if another process adds one in between."""
    log, sums = AuditLog(folder, "chest"), EarlierSums(folder)
    for number in range(EACH):
        with sums.locked():
            before = sums.cohorts("new", 1)
            share(log, f"{writer}/{number}", chr(1000 + EACH * writer + number))
            assert len(sums.cohorts("new", 1)) == len(before) + 1


def test_nobody_comes_between_a_check_and_its_entry(tmp_path: Path) -> None:
    """Several processes that read, add and read again under the lock."""
    AuditLog(tmp_path, "chest").close()
    children = [multiprocessing.get_context("fork").Process(target=write, args=(tmp_path, n)) for n in range(WRITERS)]
    for child in children:
        child.start()
    for child in children:
        child.join(60.0)
    assert [child.exitcode for child in children] == [0] * WRITERS
    assert len(cohorts(EarlierSums(tmp_path))) == WRITERS * EACH


def test_a_folder_that_cannot_be_written_to_is_an_error_that_says_so(tmp_path: Path) -> None:
    """Without the lock nothing is shared."""
    with pytest.raises(LogError, match="cannot be written to"), EarlierSums(tmp_path / "missing").locked():
        pass
