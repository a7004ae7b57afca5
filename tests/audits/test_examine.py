"""Three verdicts on one log: what each finds of tampering, and what it does not vouch for."""

import fcntl
import json
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_logs import Lines, chained_anew, expired, grown, judged, key_of, made, opened, states
from tiers import examples

from audits import Event, LogError, Outcome, VerdictState, Witness, examine, find_logs, origin_of
from audits.byte_ledger import FrameCount, Traffic, WireWindow
from audits.checkpoint import NoteFile, signed_checkpoint
from audits.examination import sites_of
from audits.log_files import RUNNING
from audits.verifier import Walk


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("original"))


@pytest.fixture
def place(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "copy")
    return tmp_path / "copy"


def test_an_untouched_log_is_shown_in_all_three(place: Path) -> None:
    """With the witness's copy; the examination says how many entries, up to which head."""
    result = judged(place)
    assert (
        result.state is VerdictState.SHOWN
        and result.entries == 7
        and set(states(result).values()) == {VerdictState.SHOWN}
    )
    assert result.record()["consistency"]["state"] == "shown"
    assert "times are in order to 5 minutes, none in the future" in json.dumps(result.record())


def test_what_nobody_says_is_not_shown(place: Path) -> None:
    """No copy, no ledger of the network, a release after the copy, no key, no checkpoint: never taken for shown, nor
    for broken."""
    assert states(judged(place, against=False))["checkpoints"] is VerdictState.NOT_SHOWN
    assert states(examine(place / "audit", "chest", [place / "head"]))["wire"] is VerdictState.NOT_SHOWN
    with closing(opened(place)) as log:
        log.append(Event.RELEASE, job="j", outcome=Outcome.SENT)
    assert states(judged(place))["checkpoints"] is VerdictState.NOT_SHOWN
    (place / "audit" / "keys").unlink()
    result = judged(place, against=False)
    assert states(result)["signature"] is VerdictState.NOT_SHOWN and result.state is VerdictState.NOT_SHOWN
    (place / "audit" / "checkpoints").unlink()
    result = states(judged(place))
    assert result["tree"] is result["tail"] is VerdictState.NOT_SHOWN and result["chain"] is VerdictState.SHOWN


def test_a_log_that_grows_and_is_signed_while_it_is_read_is_not_cut(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site writes and signs an entry as soon as the log's size is taken."""

    class Growing(Walk):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            with closing(opened(place)) as log:
                log.append(Event.EXPORTED)
                log.checkpoint()

    monkeypatch.setattr("audits.examination.Walk", Growing)
    result = judged(place)
    assert states(result)["tail"] is VerdictState.SHOWN and VerdictState.BROKEN not in states(result).values()


def counted(payload: int) -> dict[str, Any]:
    """A window of a site's own process that sent one result of a task, which had 400 bytes when it was handed over."""
    sent = FrameCount(Traffic.RESULT, None, True, 1, payload + 100, payload, payload + 100, announced=400)
    return WireWindow("site", "a", 0, last=True, sent=(sent,)).record()


@pytest.mark.parametrize(("payload", "state"), [(400, VerdictState.SHOWN), (401, VerdictState.BROKEN)])
def test_the_bytes_on_the_network_are_held_against_what_is_known_of_them(
    tmp_path: Path, payload: int, state: VerdictState
) -> None:
    """Without counts nothing is shown; counts that are explained show it; a single byte more is found."""
    log = opened(tmp_path)
    assert states(examine(tmp_path / "audit", "chest"))["wire"] is VerdictState.NOT_SHOWN
    log.append(Event.WIRE, wire=counted(payload))
    assert states(examine(tmp_path / "audit", "chest"))["wire"] is state
    log.close()


def test_a_job_that_a_living_process_works_on_needs_no_word_of_anybody(tmp_path: Path) -> None:
    """The process locks the job's file beside the log."""
    with closing(opened(tmp_path)) as log:
        log.append(Event.OPEN, job="j")
        (tmp_path / "audit" / RUNNING).mkdir()
        with open(tmp_path / "audit" / RUNNING / "j", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            (part,) = [part for part in examine(tmp_path / "audit", "chest").completeness.parts if part.name == "jobs"]
    assert (part.state, part.said) == (
        VerdictState.SHOWN,
        "1 job is running; every job that was opened is closed, or said to be running",
    )


def test_counts_that_are_none_are_found(tmp_path: Path) -> None:
    """An entry that claims to count bytes and does not breaks the verdict, at its place."""
    log = opened(tmp_path)
    seq = log.append(Event.WIRE, wire={"bytes": 4}).seq
    (part,) = [part for part in examine(tmp_path / "audit", "chest").completeness.parts if part.name == "wire"]
    assert (part.state, part.entry) == (VerdictState.BROKEN, seq)
    log.close()


CHANGES: dict[str, Callable[[Lines], Lines]] = {
    "changed": lambda lines: [*lines[:2], lines[2].replace(b'"round":1', b'"round":9'), *lines[3:]],
    "deleted": lambda lines: [*lines[:2], *lines[3:]],
    "inserted": lambda lines: [*lines[:2], lines[1], *lines[2:]],
    "reordered": lambda lines: [*lines[:1], lines[2], lines[1], *lines[3:]],
    "cut": lambda lines: lines[:5],
    "emptied": lambda lines: [],
}


def written(place: Path, change: Callable[[Lines], Lines]) -> None:
    path = place / "audit" / "log.jsonl"
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


@pytest.mark.parametrize("change", CHANGES)
def test_tampering_is_found_without_others(place: Path, change: str) -> None:
    """Changed, deleted, inserted, reordered and cut entries, by chain or checkpoint."""
    written(place, CHANGES[change])
    result = judged(place, against=False)
    assert VerdictState.BROKEN in (result.integrity.state, result.completeness.state)


@pytest.mark.parametrize("change", ["changed", "deleted", "inserted", "reordered", "cut"])
def test_a_chain_that_is_made_anew_is_found_by_the_checkpoints(place: Path, change: str) -> None:
    """All hashes fit, and the roots that were signed do not."""
    written(place, lambda lines: chained_anew(CHANGES[change](lines)))
    result = judged(place, against=False)
    assert states(result)["chain"] is VerdictState.SHOWN and result.state is VerdictState.BROKEN
    (place / "audit" / "checkpoints").unlink()
    assert states(judged(place, against=False))["tiles"] is VerdictState.BROKEN
    shutil.rmtree(place / "audit" / "tlog")
    assert judged(place, against=False).state is VerdictState.NOT_SHOWN
    assert states(judged(place))["checkpoints"] is VerdictState.BROKEN


@given(st.integers(0, 4000), st.integers(1, 255))
@settings(max_examples=examples(60))
def test_any_changed_byte_of_the_log_is_found(original: Path, offset: int, flip: int) -> None:
    """Also the last line feed, behind which nothing may be missing that was signed."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(original, Path(folder) / "copy")
        path = Path(folder) / "copy" / "audit" / "log.jsonl"
        content = bytearray(path.read_bytes())
        content[offset % len(content)] ^= flip
        path.write_bytes(content)
        assert judged(Path(folder) / "copy", against=False).state is VerdictState.BROKEN


def test_damaged_and_foreign_checkpoints_are_found(place: Path) -> None:
    """Bytes that are no note; a newest one that the site's key did not sign; another log's."""
    path = place / "audit" / "checkpoints"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"\n7\n", b"\nx\n", 1))
    assert states(judged(place))["signature"] is VerdictState.BROKEN
    path.write_bytes(whole)
    NoteFile(path).append(
        [key_of(place, "stranger").named(origin_of("chest")).sign(whole.decode().split("\n\n")[0] + "\n")]
    )
    assert states(judged(place))["tree"] is VerdictState.SHOWN
    path.unlink()
    NoteFile(path).append([signed_checkpoint(key_of(place, "head"), 7, bytes(32))])
    assert {states(judged(place))[name] for name in ("tree", "signature")} == {VerdictState.BROKEN}


@pytest.mark.parametrize(
    ("signer", "size", "finding"),
    [
        ("stranger", 7, ("key", "others know this log by another key")),
        ("stranger", 9, ("key", "others know this log by another key")),
        ("chest", 7, ("checkpoints", "two histories of this log are signed by the site")),
        ("chest", 9, ("checkpoints", "others hold a checkpoint of 9 entries")),
    ],
)
def test_the_site_s_own_key_alone_shows_that_a_log_was_forked_or_cut(
    place: Path, signer: str, size: int, finding: tuple[str, str]
) -> None:
    """A checkpoint in the log's name, of other entries or of more, by its key or another: no stranger breaks more than
    the part that names keys."""
    key = key_of(place, signer).named(origin_of("chest"))
    NoteFile(place / "head" / "more.note").append([signed_checkpoint(key, size, bytes(32))])
    parts = [part for _, verdict in judged(place).verdicts() for part in verdict.parts]
    ((name, sentence),) = [(part.name, part.said) for part in parts if part.state is not VerdictState.SHOWN]
    assert name == finding[0] and sentence.startswith(finding[1])


def test_expired_entries_do_not_break_what_is_left(tmp_path: Path) -> None:
    """The verdicts are those of a log that is whole; without the hashes nothing can be said."""
    made(tmp_path, 1500)
    log = opened(tmp_path, 1500)
    assert expired(log).deleted
    log.close()
    result = judged(tmp_path)
    assert (
        result.state is VerdictState.NOT_SHOWN
        and result.integrity.state is result.consistency.state is VerdictState.SHOWN
    )
    assert [part.name for part in result.completeness.parts if part.state is not VerdictState.SHOWN] == ["retention"]
    with (tmp_path / "audit" / "tree").open("r+b") as file:
        file.write(bytes(64))
    assert judged(tmp_path).state is VerdictState.BROKEN


def test_a_closed_file_that_ends_within_an_entry_is_broken(tmp_path: Path) -> None:
    """A crash tears the last file only; a torn end before others is a cut."""
    place = made(tmp_path, limit=900)
    closed = sorted((place / "audit").glob("log-*.jsonl"))[0]
    closed.write_bytes(closed.read_bytes()[:-10])
    assert states(judged(place))["chain"] is VerdictState.BROKEN


def test_memory_does_not_grow_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor with the checkpoints of it, of which the end of the file is read at once."""
    monkeypatch.setattr("audits.checkpoint.TAIL", 20_000)
    peaks = []
    for rounds in (700, 1400):
        log = opened(tmp_path, 1 << 30)
        monkeypatch.setattr("os.fsync", lambda descriptor: None)
        grown(log, rounds)
        log.close()
        Witness(tmp_path / "audit", key_of(tmp_path))
        examine(tmp_path / "audit", "chest")
        tracemalloc.start()
        examine(tmp_path / "audit", "chest")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 100_000  # of some 2,800 entries more


def test_what_a_log_is_compared_with_must_be_there(place: Path) -> None:
    """A mistyped place is an error, not silence."""
    with pytest.raises(LogError, match="does not exist"):
        examine(place / "audit", "chest", [place / "nowhere"])


def test_sites_of_a_run_are_compared_with_each_other(place: Path) -> None:
    """A single log is compared with what is given."""
    run = place / "run"
    for site in ("chest", "head"):
        shutil.copytree(place / "audit", run / "sites" / site / "audit")
    assert sites_of(find_logs(run), run)["head"] == (run / "sites" / "head" / "audit", (run,))
    assert sites_of(find_logs(place / "audit"), place / "audit") == {place.name: (place / "audit", ())}
