"""Which lines of a log expire: those that others' signed times, or a person's date, show to be old enough."""

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from clocks import Hospital, days
from hypothesis import given, settings
from hypothesis import strategies as st
from small_logs import states
from tiers import examples

from audits import Event, LogError, VerdictState, examine, read, verify
from audits.checkpoint import NoteFile
from audits.retention import RETENTION_DAYS, ExpiryResult, expire
from audits.verifier import Basis, Expiry

NOW = datetime.now(UTC)
OLD = NOW - days(RETENTION_DAYS + 300)


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hospital:
    return Hospital(tmp_path, monkeypatch, OLD)


def aged(hospital: Hospital) -> Hospital:
    """Six entries that a witness cosigned long ago, six of today, and a cosignature of today."""
    hospital.write(OLD, 6)
    hospital.cosign(OLD)
    hospital.write(NOW, 6)
    hospital.cosign(NOW)
    return hospital


def test_a_clock_that_is_ahead_makes_nothing_expire(hospital: Hospital) -> None:
    """Entries of today, cosigned today, and a machine that believes that 2,200 days have passed."""
    hospital.write(NOW, 9)
    hospital.cosign(NOW)
    before = list(read(hospital.place / "audit"))
    result = expire(hospital.log, now=NOW + days(2200))
    assert result.deleted == 0 and result.waiting == len(hospital.closed()) > 2
    assert list(read(hospital.place / "audit")) == before


def test_a_log_that_nobody_cosigned_keeps_its_lines(hospital: Hospital) -> None:
    """Also entries that are old by the site's own clock: it may have been wrong when they were written."""
    hospital.write(OLD, 6)
    hospital.write(NOW, 3)
    result = expire(hospital.log)
    assert result.deleted == 0 and result.waiting > 0 and hospital.closed()[0] == 0


def test_entries_expire_once_cosigned_times_show_their_age(hospital: Hospital) -> None:
    """The oldest files go, those of today stay; the log says what shows it, and all verdicts agree."""
    aged(hospital)
    closed = hospital.closed()
    result = expire(hospital.log)
    hospital.log.close()
    assert result.deleted > 0 == result.waiting
    assert set(closed) - set(hospital.closed()) == set(closed[: result.deleted])
    *_, last = read(hospital.place / "audit")
    first = hospital.closed()[0]
    assert last.event is Event.EXPIRED and last.expiry == Expiry(first, RETENTION_DAYS, Basis.COSIGNED).record()
    assert 0 < first <= 6
    outcome = states(examine(hospital.place / "audit", "chest", network=False))
    assert verify(hospital.place / "audit").ok and outcome["times"] is VerdictState.SHOWN
    assert outcome["retention"] is outcome["cosigned times"] is VerdictState.SHOWN
    assert expire(hospital.log_again()) == ExpiryResult(0, 0)


@pytest.mark.parametrize(
    ("dated", "first", "newest"),
    [(NOW, OLD, NOW), (NOW, NOW, NOW + days(4000)), (OLD, NOW, NOW), (OLD, OLD, OLD + days(9))],
    ids=["an early witness", "a late witness", "a clock that was behind", "no recent time"],
)
def test_one_wrong_clock_is_not_enough(hospital: Hospital, dated: datetime, first: datetime, newest: datetime) -> None:
    """A witness that dates its first cosignature back, or its last one ahead; a site that wrote under an old date."""
    hospital.write(dated, 6)
    hospital.cosign(first)
    hospital.write(NOW, 6)
    hospital.cosign(newest, "heart")
    assert expire(hospital.log).deleted == 0 and hospital.closed()[0] == 0
    assert expire(hospital.log, now=OLD).deleted == 0


def test_only_the_beginning_of_a_log_expires(hospital: Hospital) -> None:
    """Times in the order 2032, 2026, 2016: a later date earlier in the log keeps all that follows."""
    for moment in (NOW + days(2200), NOW, OLD):
        hospital.write(moment, 3)
        hospital.cosign(OLD, f"of {moment.year}".replace(" ", "-"))
    hospital.write(NOW, 3)
    hospital.cosign(NOW, "lung")
    closed = hospital.closed()
    assert expire(hospital.log).deleted == expire(hospital.log, date=NOW.date()).deleted == 0
    assert hospital.closed() == closed


def test_a_person_may_give_the_date(hospital: Hospital) -> None:
    """For a site that nobody cosigns: the log says the date and that a person gave it; it is not shown as others'."""
    hospital.write(OLD, 6)
    hospital.write(NOW, 3)
    assert expire(hospital.log, date=NOW.date()).deleted > 0
    hospital.log.close()
    *_, last = read(hospital.place / "audit")
    assert last.expiry and (last.expiry["basis"], last.expiry["date"]) == ("date", NOW.date().isoformat())
    assert "by the date" in str(last.reason) and verify(hospital.place / "audit").ok
    result = states(examine(hospital.place / "audit", "chest", network=False))
    assert result["retention"] is VerdictState.NOT_SHOWN and result["chain"] is VerdictState.SHOWN
    assert "by a date that a person gave" in json.dumps(examine(hospital.place / "audit", "chest").record())


def test_the_date_has_to_be_the_machines_and_not_before_others(hospital: Hospital) -> None:
    """A mistyped date, and one that cosignatures refute, delete nothing."""
    aged(hospital)
    closed = hospital.closed()
    with pytest.raises(LogError, match="differs from this machine's date"):
        expire(hospital.log, date=(NOW - days(20)).date())
    with pytest.raises(LogError, match="after the given date"):
        expire(hospital.log, date=(NOW - days(20)).date(), now=NOW - days(20))
    assert hospital.closed() == closed


def test_a_cosignature_of_another_history_shows_nothing(hospital: Hospital) -> None:
    """The site's key signed it, and a witness cosigned it in time; the log that is there has other entries."""
    hospital.write(OLD, 6)
    other = hospital.forged(bytes(32), OLD)
    hospital.write(NOW, 3)
    NoteFile(hospital.place / "audit" / "checkpoints").append([other])
    hospital.cosign(NOW, "heart")
    assert expire(hospital.log_again()).deleted == 0


@pytest.mark.parametrize(
    "record",
    [{}, {"entries": "6"}, {"entries": True, "days": 1}, {"entries": 6, "days": 1, "basis": []}, {"entries": -1}],
)
def test_an_entry_that_names_no_expiry_excuses_nothing(hospital: Hospital, record: dict[str, object]) -> None:
    """Nor does one whose sentence has a number of 4,300 digits, or none: entries are missing then."""
    hospital.write(NOW, 6)
    for reason in (
        None,
        "",
        f"the lines of entries 0 to {'9' * 4400} are past the retention of 1 days and are deleted",
    ):
        hospital.log.append(Event.EXPIRED, reason=reason)
        hospital.log.append(Event.EXPIRED, reason=reason, expiry=record)
    hospital.log.close()
    assert verify(hospital.place / "audit").ok
    (hospital.place / "audit" / "log-000000.jsonl").unlink()
    assert verify(hospital.place / "audit").first_bad == 0


DAYS = st.sampled_from([-4000, -2500, -1000, 0, 2200])
STEPS = st.lists(
    st.tuples(DAYS, st.sampled_from([None, "head", "heart", "lung", "knee"]), DAYS), min_size=6, max_size=14
)


@given(STEPS, DAYS, st.sampled_from([400, 1200, 2192]))
@settings(max_examples=examples(150))
def test_whatever_the_clocks_say_no_line_goes_before_others_show_its_age(
    steps: list[tuple[int, str | None, int]], clock: int, most: int
) -> None:
    """Any order of dates and cosignatures: what goes is a beginning, and of each of its entries a cosigned time lies
    `most` days before another one; the log holds afterwards."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        hospital, signed, dated = Hospital(Path(folder), patch, NOW, 1500), [], []
        for at, party, cosigned in steps:
            hospital.write(NOW + days(at))
            dated.append(at)
            if party and party not in [item for _, _, item in signed]:
                hospital.cosign(NOW + days(cosigned), party)
                signed.append((len(dated), cosigned, party))
        closed = hospital.closed()
        result = expire(hospital.log, most, now=NOW + days(clock))
        hospital.log.close()
        assert set(closed) - set(hospital.closed()) == set(closed[: result.deleted])
        assert verify(hospital.place / "audit").ok
        for entry in range(next(read(hospital.place / "audit")).seq):
            covering = [cosigned for size, cosigned, _ in signed if size > entry]
            newest = max(cosigned for _, cosigned, _ in signed)
            assert min(newest, clock) - max(dated[entry], min(covering)) >= most
