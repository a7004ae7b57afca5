"""Times of a log's entries, and the key that others know it by."""

import json
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from clocks import Hospital, days
from hypothesis import given, settings
from hypothesis import strategies as st
from small_logs import chained_anew, judged, key_of, made, opened, states
from tiers import examples

from audits import AuditKey, AuditLog, Event, VerdictState, Witness, examine, origin_of
from audits.checkpoint import Checkpoint, NoteFile

NOW = datetime.now(UTC)
STEPS = st.lists(st.integers(0, 8000), min_size=1, max_size=10)
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


def times(place: Path) -> tuple[VerdictState, int | None]:
    [part] = [part for part in judged(place).integrity.parts if part.name == "times"]
    return part.state, part.entry


def test_entries_that_nobody_cosigned_and_that_are_dated_anew_are_not_shown(place: Path) -> None:
    """All else of the log holds: without the times, a log whose last entries are of 1999 would be shown."""
    redate(place, COVERED, lambda number: dated(datetime(1999, 1, 1, number, tzinfo=UTC)))
    result = judged(place)
    assert {name: state for name, state in states(result).items() if state is not VerdictState.SHOWN} == {
        "findings": VerdictState.NOT_SHOWN,
        "times": VerdictState.NOT_SHOWN,
        "cosigned times": VerdictState.NOT_SHOWN,
    }
    assert times(place) == (VerdictState.NOT_SHOWN, COVERED)


def test_a_log_as_it_was_written_has_its_times_in_order(place: Path) -> None:
    """Written by a clock that is corrected by less than the tolerance, too."""
    assert times(place) == (VerdictState.SHOWN, None)
    begin = datetime.now(UTC) - timedelta(minutes=4)
    redate(place, COVERED, lambda number: dated(begin - timedelta(seconds=number)))
    assert times(place) == (VerdictState.SHOWN, None)


@pytest.mark.parametrize(
    ("moment", "state"),
    [
        (dated(datetime.now(UTC) - timedelta(minutes=6)), VerdictState.NOT_SHOWN),
        (dated(datetime.now(UTC) + timedelta(hours=1)), VerdictState.NOT_SHOWN),
        ("1999-01-01", VerdictState.BROKEN),
        ("9999-99-99T99:99:99.999999Z", VerdictState.BROKEN),
        ("9999-02-30T00:00:00.000000Z", VerdictState.BROKEN),
        ("0000-01-01T00:00:00.000000Z", VerdictState.BROKEN),
        ("", VerdictState.BROKEN),
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
def test_what_cannot_be_the_time_of_an_entry_is_named_with_its_entry(
    place: Path, moment: str, state: VerdictState
) -> None:
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
    result = examine(tmp_path / "audit", "chest", network=False)
    assert states(result)["times"] is VerdictState.NOT_SHOWN


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hospital:
    return Hospital(tmp_path, monkeypatch, NOW, limit=1 << 20)


def verdict_on(hospital: Hospital, *others: Path) -> dict[str, tuple[VerdictState, int | None]]:
    """What is said of times, with the entry."""
    hospital.log.close()
    result = examine(hospital.place / "audit", "chest", others, network=False)
    parts = {part.name: (part.state, part.entry) for _, item in result.verdicts() for part in item.parts}
    return {name: parts[name] for name in ("times", "cosigned times") if name in parts}


def test_times_that_fit_are_shown(hospital: Hospital) -> None:
    """Years between entries that others' times reach; clocks that differ by minutes; steps back of minutes, by NTP."""
    for moment in (NOW - days(3000), NOW - days(1500), NOW):
        hospital.write(moment, 3)
        hospital.write(moment - timedelta(minutes=4))
        hospital.cosign(moment + timedelta(minutes=4), "head")
        hospital.write(moment - timedelta(minutes=1))
        hospital.cosign(moment - timedelta(minutes=4), "heart")
        hospital.write(moment + timedelta(seconds=1), 2)
    assert verdict_on(hospital) == {"times": (VerdictState.SHOWN, None), "cosigned times": (VerdictState.SHOWN, None)}


@pytest.mark.parametrize("cosigned", [False, True])
def test_entries_of_2032_and_2026_and_2016_are_found(hospital: Hospital, cosigned: bool) -> None:
    """In this order: the first step back is named; with a cosignature, that others saw the first before its date."""
    for moment in (NOW + days(2200), NOW, NOW - days(3650)):
        hospital.write(moment, 2)
    if cosigned:
        hospital.cosign(NOW)
    result = verdict_on(hospital)
    assert result["times"] == (VerdictState.NOT_SHOWN, 2)
    assert result.get("cosigned times") == ((VerdictState.NOT_SHOWN, 1) if cosigned else None)


def test_entries_that_are_dated_before_what_precedes_them_was_cosigned_are_found(hospital: Hospital) -> None:
    """Where all entries are dated back alike, others' times alone show it; a month is allowed for the way."""
    hospital.write(NOW - days(90), 3)
    hospital.cosign(NOW)
    hospital.write(NOW - days(30))
    hospital.write(NOW - days(32))
    hospital.write(NOW - days(29))
    hospital.log.checkpoint()
    result = verdict_on(hospital)
    assert result == {"times": (VerdictState.NOT_SHOWN, 4), "cosigned times": (VerdictState.NOT_SHOWN, 4)}


def test_a_log_that_is_dated_back_as_a_whole_is_found_by_a_witness(hospital: Hospital) -> None:
    """Its own times are in order, and run years before others' signed times."""
    hospital.write(NOW - days(900), 3)
    hospital.cosign(NOW)
    hospital.write(NOW - days(899), 3)
    assert verdict_on(hospital) == {"times": (VerdictState.SHOWN, None), "cosigned times": (VerdictState.NOT_SHOWN, 3)}


def test_an_entry_that_others_cosigned_before_its_date_is_found(hospital: Hospital) -> None:
    """The newest checkpoint's cosignature counts, too; that of one party out of two may be too early."""
    hospital.write(NOW - days(30), 2)
    hospital.write(NOW - timedelta(minutes=6), 2)
    hospital.cosign(NOW - timedelta(minutes=12))
    hospital.cosign(NOW, "heart")
    assert verdict_on(hospital)["cosigned times"] == (VerdictState.SHOWN, None)
    hospital.log_again()
    hospital.write(NOW - timedelta(minutes=5), 2)
    hospital.cosign(NOW - timedelta(minutes=11))
    assert verdict_on(hospital)["cosigned times"] == (VerdictState.NOT_SHOWN, 5)


def test_a_checkpoint_that_is_dated_before_its_entries_is_found(hospital: Hospital) -> None:
    """Also where no entry follows it."""
    hospital.write(NOW, 3)
    hospital.clock.moment = NOW - days(3650)
    hospital.log.checkpoint()
    assert verdict_on(hospital)["times"] == (VerdictState.NOT_SHOWN, 2)


def test_others_copies_count_where_the_log_has_lost_its_cosignatures(hospital: Hospital) -> None:
    """A file of notes and the party's key, given with `--against`."""
    hospital.write(NOW, 2)
    note = hospital.cosign(NOW - days(5))
    other = hospital.place / "elsewhere"
    other.mkdir()
    (other / "witnessed").write_text(f"{note}\n")
    (other / "keys").write_text(f"{hospital.key('head')}\n")
    (hospital.place / "audit" / "keys").write_text(f"{hospital.key('chest')}\n")
    (hospital.place / "audit" / "checkpoints").unlink()
    hospital.log_again()
    assert verdict_on(hospital, other)["cosigned times"] == (VerdictState.NOT_SHOWN, 1)


def test_a_party_whose_signed_times_run_backwards_is_found(hospital: Hospital) -> None:
    """It signed more of the log in 2026 than it signed in 2032."""
    for moment in (NOW + days(2200), NOW, NOW - days(3650)):
        hospital.write(NOW, 2)
        hospital.cosign(moment)
    assert verdict_on(hospital)["cosigned times"] == (VerdictState.NOT_SHOWN, 3)


@pytest.mark.parametrize(("reached", "state"), [(NOW, VerdictState.SHOWN), (NOW - days(399), VerdictState.NOT_SHOWN)])
def test_a_leap_is_found_unless_others_times_reach_it(
    hospital: Hospital, reached: datetime, state: VerdictState
) -> None:
    """More than a year between two entries: the clock leapt, or the site was idle, which a cosignature shows."""
    hospital.write(NOW - days(400), 3)
    hospital.write(NOW, 3)
    hospital.cosign(reached)
    assert verdict_on(hospital)["times"] == (state, None if state is VerdictState.SHOWN else 3)


MINUTES = st.lists(st.integers(-4, 4), min_size=1, max_size=12)


@given(MINUTES, st.lists(st.integers(0, 300), min_size=12, max_size=12), st.integers(0, 240))
@settings(max_examples=examples(60))
def test_honest_clocks_are_never_doubted(steps: list[int], gaps: list[int], late: int) -> None:
    """Clocks that step by minutes around the true time, a site that is idle for months, cosignatures that take hours
    at most: with a year at the most between two jobs everything about times is shown."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        hospital = Hospital(Path(folder), patch, NOW, limit=1 << 20)
        true = NOW - days(sum(gaps) + 1)
        for step, gap in zip(steps, gaps, strict=False):
            true += days(gap)
            hospital.write(true + timedelta(seconds=30 * step))
            hospital.write(true + timedelta(seconds=-30 * step))
            hospital.cosign(true + timedelta(minutes=late), f"party-{late}")
        assert {state for state, _ in verdict_on(hospital).values()} == {VerdictState.SHOWN}


@given(STEPS)
@settings(max_examples=examples(60))
def test_any_step_beyond_the_tolerance_is_named_by_its_entry(dates: list[int]) -> None:
    """Whatever the order of dates in hours: the first entry that is dated before an earlier one, and no other."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        hospital = Hospital(Path(folder), patch, NOW, limit=1 << 20)
        for hours in dates:
            hospital.write(NOW - timedelta(hours=hours))
        first = next((at for at, hours in enumerate(dates) if hours > min(dates[: at + 1])), None)
        assert verdict_on(hospital)["times"] == (
            (VerdictState.SHOWN, None) if first is None else (VerdictState.NOT_SHOWN, first)
        )


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
    assert judged(tmp_path).state is VerdictState.SHOWN
    (tmp_path / "aside").rename(tmp_path / "audit" / "keys")
    fresh(tmp_path)
    assert states(judged(tmp_path))["signature"] is VerdictState.BROKEN
    result = examine(tmp_path / "audit", "chest", [notes], network=False)
    assert states(result)["key"] is VerdictState.BROKEN
    assert examine(tmp_path / "audit", "chest", [], network=False).state is VerdictState.NOT_SHOWN


def test_a_fresh_key_beside_the_log_is_found_by_notes_that_another_key_signed(tmp_path: Path) -> None:
    """Nobody needs to list the earlier key."""
    made(tmp_path)
    notes = tmp_path / "cosigned.note"
    notes.write_bytes((tmp_path / "head" / "witnessed").read_bytes())
    assert states(examine(tmp_path / "audit", "chest", [notes], network=False))["key"] is VerdictState.SHOWN
    fresh(tmp_path)
    key = AuditKey.at(tmp_path / "chest.key", origin_of("chest"))
    (tmp_path / "audit" / "keys").write_text(f"{key.public}\n")
    assert states(examine(tmp_path / "audit", "chest", [notes], network=False))["key"] is VerdictState.BROKEN
