"""Times of a log's entries, and the key that others know it by."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from test_anchor import key_of, opened
from test_examine import chained_anew, judged, made, states

from audits import AuditKey, AuditLog, Event, State, Witness, examine, origin_of
from audits.checkpoint import Checkpoint, NoteFile

COVERED = 5
"""Entries that a witness has cosigned; with every release among them."""


def dated(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A log of seven entries, of which a witness has cosigned five."""
    log, key = opened(tmp_path, 1 << 20), key_of(tmp_path)
    Witness(tmp_path / "audit", key)
    witness = Witness(tmp_path / "head", key_of(tmp_path, "head"))
    witness.introduce(key.public)
    log.append(Event.OPEN, job="j")
    for number in range(COVERED - 1):
        log.append(Event.RECEIVE, job="j", round=number)
    witness.cosign(log.checkpoint())
    log.append(Event.CLOSE, job="j")
    log.append(Event.FINDING, reason="something")
    log.close()
    return tmp_path


def redate(place: Path, first: int, moment: Callable[[int], str]) -> None:
    """As the site's administrator can: new times, a new chain, a new tree and checkpoint with the site's own key."""
    path = place / "audit" / "log.jsonl"
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    for number, record in enumerate(records[first:]):
        record["time"] = moment(number)
    path.write_bytes(b"".join(chained_anew([json.dumps(record).encode() for record in records])))
    notes = [note for note in NoteFile(place / "audit" / "checkpoints") if Checkpoint.parse(note.text).size <= first]
    for name in ("checkpoints", "tree"):
        (place / "audit" / name).unlink()
    if notes:
        NoteFile(place / "audit" / "checkpoints").append(notes)
    opened(place, 1 << 20).close()


def times(place: Path) -> tuple[State, int | None]:
    [part] = [part for part in judged(place).integrity.parts if part.name == "times"]
    return part.state, part.entry


def test_entries_that_nobody_cosigned_and_that_are_dated_anew_are_not_shown(place: Path) -> None:
    """All else of the log holds: without the times, a log whose last entries are of 1999 would be shown."""
    redate(place, COVERED, lambda number: dated(datetime(1999, 1, 1, number, tzinfo=UTC)))
    found = judged(place)
    assert {name: state for name, state in states(found).items() if state is not State.SHOWN} == {
        "findings": State.NOT_SHOWN,
        "times": State.NOT_SHOWN,
    }
    assert times(place) == (State.NOT_SHOWN, COVERED)


def test_a_log_as_it_was_written_has_its_times_in_order(place: Path) -> None:
    """Written by a clock that is corrected by less than the tolerance, too."""
    assert times(place) == (State.SHOWN, None)
    begin = datetime.now(UTC) - timedelta(minutes=4)
    redate(place, COVERED, lambda number: dated(begin - timedelta(seconds=number)))
    assert times(place) == (State.SHOWN, None)


@pytest.mark.parametrize(
    ("moment", "state"),
    [
        (dated(datetime.now(UTC) - timedelta(minutes=6)), State.NOT_SHOWN),
        (dated(datetime.now(UTC) + timedelta(hours=1)), State.NOT_SHOWN),
        ("1999-01-01", State.BROKEN),
        ("9999-99-99T99:99:99.999999Z", State.BROKEN),
        ("9999-02-30T00:00:00.000000Z", State.BROKEN),
        ("0000-01-01T00:00:00.000000Z", State.BROKEN),
        ("", State.BROKEN),
    ],
    ids=[
        "before the tolerance",
        "in the future",
        "no time of day",
        "no such month",
        "no such day",
        "no such year",
        "nothing",
    ],
)
def test_what_cannot_be_the_time_of_an_entry_is_named_with_its_entry(place: Path, moment: str, state: State) -> None:
    """Dated back beyond the tolerance, dated in the future, or no time at all."""
    redate(place, COVERED + 1, lambda number: moment)
    assert times(place) == (state, COVERED + 1)


def test_an_entry_may_not_be_dated_before_a_checkpoint_that_precedes_it(tmp_path: Path) -> None:
    """Also where the entries before it were dated back together with it: what was signed of them has a time."""
    log, witness = opened(tmp_path, 1 << 20), Witness(tmp_path / "head", key_of(tmp_path, "head"))
    log.append(Event.OPEN, job="j")
    log.close()
    redate(tmp_path, 0, lambda number: "1999-01-01T00:00:00.000000Z")
    log = opened(tmp_path, 1 << 20)
    witness.introduce(key_of(tmp_path).public)
    assert log.cosigned([witness.cosign(log.checkpoint())], [witness.key.public]) == 1
    log.append(Event.CLOSE, job="j")
    log.close()
    redate(tmp_path, 1, lambda number: "1999-01-01T00:00:01.000000Z")
    found = examine(tmp_path / "audit", "chest", network=False)
    assert states(found)["times"] is State.NOT_SHOWN


def fresh(place: Path) -> None:
    """The log signed anew as a whole with a key that nobody knows, and without the file of keys."""
    for name in ("checkpoints", "tree", "keys"):
        (place / "audit" / name).unlink()
    (place / "chest.key").unlink()
    AuditLog(place / "audit", "chest", key_of(place)).close()


def test_the_key_that_others_know_binds_where_none_lies_with_the_log(tmp_path: Path) -> None:
    """By a folder that lists it, and by notes alone, of which no signature can be checked."""
    made(tmp_path)
    notes = tmp_path / "cosigned.note"
    notes.write_bytes((tmp_path / "head" / "witnessed").read_bytes())
    (tmp_path / "audit" / "keys").rename(tmp_path / "aside")
    assert judged(tmp_path).state is State.SHOWN
    (tmp_path / "aside").rename(tmp_path / "audit" / "keys")
    fresh(tmp_path)
    assert states(judged(tmp_path))["signature"] is State.BROKEN
    found = examine(tmp_path / "audit", "chest", [notes], network=False)
    assert states(found)["key"] is State.BROKEN
    assert examine(tmp_path / "audit", "chest", [], network=False).state is State.NOT_SHOWN


def test_a_fresh_key_beside_the_log_is_found_by_notes_that_another_key_signed(tmp_path: Path) -> None:
    """Nobody needs to list the earlier key."""
    made(tmp_path)
    notes = tmp_path / "cosigned.note"
    notes.write_bytes((tmp_path / "head" / "witnessed").read_bytes())
    assert states(examine(tmp_path / "audit", "chest", [notes], network=False))["key"] is State.SHOWN
    fresh(tmp_path)
    key = AuditKey.at(tmp_path / "chest.key", origin_of("chest"))
    (tmp_path / "audit" / "keys").write_text(f"{key.public}\n")
    assert states(examine(tmp_path / "audit", "chest", [notes], network=False))["key"] is State.BROKEN
