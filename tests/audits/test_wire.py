"""Holding counts of bytes against releases."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audits import AuditLog, Entry, Event, Kind, LogError, NewerFormat, Outcome, Protection, TensorRecord, read
from audits.byte_ledger import (
    ENVELOPE,
    HEADER,
    LIMITS,
    LOG_BYTES,
    PER_TENSOR,
    PREFIX,
    FrameCount,
    Reconciler,
    ResultCount,
    Traffic,
    WireWindow,
    reconcile,
)

TENSOR = TensorRecord("shared", (2, 3), "float32", 24, "ab" * 32, Kind.PARAMETERS, Protection.NONE)
ENCODED, FRAME = 900, 2000  # bytes
RESULT = ResultCount("train", 1, 1, 1, 24, 0, ENCODED)


def count(
    traffic: Traffic, payload: int, frame: int, job: str | None = "job", announced: int | None = None
) -> FrameCount:
    record = payload if announced is None else announced
    return FrameCount(traffic, job, True, 1, frame, payload, frame, record)


SENT = count(Traffic.RESULT, ENCODED, FRAME)
JOB = WireWindow("job", "j", 0, sent=(SENT,), results=(RESULT,), last=True)
SITE = WireWindow("site", "s", 0, sent=(replace(SENT), count(Traffic.PRESENCE, 400, 1400, None)))


def entries(*windows: WireWindow, released: int = 1) -> Iterator[Entry]:
    """A log of these windows, after a release."""
    common: dict[str, Any] = {"prev_hash": "", "leaf_hash": "", "time": "", "monotonic": 0, "site": "a", "job": "job"}
    for seq in range(released):
        sent = {"tensors": (TENSOR,), "nbytes": 24, "outcome": Outcome.SENT, "peer": "server", "round": 1}
        yield Entry(**common, seq=seq, event=Event.RELEASE, task="train", **sent)
    for seq, window in enumerate(windows, released):
        job = {"job": None if window.process == "site" else "job"}
        yield Entry(**{**common, **job}, seq=seq, event=Event.WIRE, wire=window.record())


def unexplained(*windows: WireWindow, released: int = 1) -> list[int]:
    return [finding.nbytes for finding in reconcile(entries(*windows, released=released)).findings]


def test_a_job_whose_frames_hold_its_releases_is_explained_to_the_last_byte() -> None:
    """Values, their encoding, and frames of named kinds add up to what left."""
    result = reconcile(entries(JOB, SITE))
    assert result.ok and result.covered and result.running == 1
    assert result.left == {"values of released tensors": 24, "encoding of task results": FRAME - 24, "presence": 1400}


def test_a_log_without_a_byte_ledger_claims_nothing() -> None:
    """The in-process engine sends no frames."""
    result = reconcile(entries())
    assert result.ok and not result.covered


def test_a_window_reads_back_from_the_log(tmp_path: Path) -> None:
    """Through the file, with its types."""
    log = AuditLog(tmp_path, "a")
    log.append(Event.WIRE, wire=JOB.record())
    (entry,) = read(tmp_path)
    assert entry.wire is not None and WireWindow.from_record(entry.wire) == JOB


@pytest.mark.parametrize("broken", [{}, {"sent": 3}, {**JOB.record(), "sent": [{"traffic": 3}]}])
def test_a_window_of_another_format_is_refused(broken: dict[str, Any]) -> None:
    """No guessing."""
    with pytest.raises(LogError, match="format"):
        WireWindow.from_record(broken)


@pytest.mark.parametrize("more", [{"colour": 1}, {"sent": [{"traffic": "smoke signals"}]}, {"results": [{"x": 1}]}])
def test_a_window_of_a_newer_version_is_no_broken_one(more: dict[str, Any]) -> None:
    """Members and kinds of traffic that this version does not know are called so."""
    with pytest.raises(NewerFormat):
        WireWindow.from_record(JOB.record() | more)


@given(st.integers(1, 10**6))
def test_bytes_beyond_what_was_handed_over_are_found(more: int) -> None:
    """However few."""
    sent = count(Traffic.REQUEST, 100 + more, 1100 + more, announced=100)
    result = reconcile(entries(replace(JOB, sent=(SENT, sent)), SITE))
    assert more in [finding.nbytes for finding in result.findings] and not result.ok


@given(st.integers(1, 10**6))
def test_bytes_that_the_site_passed_on_beyond_what_the_job_sent_are_found(more: int) -> None:
    """However few."""
    passed = count(Traffic.RESULT, ENCODED + more, FRAME + more)
    assert unexplained(JOB, replace(SITE, sent=(passed,))) == [more]


def test_a_result_without_a_release_is_found() -> None:
    """Also one of another round, or with tensors of other sizes."""
    assert unexplained(JOB, SITE, released=0) == [24]
    for other in (replace(RESULT, round=2), replace(RESULT, nbytes=25, encoded=ENCODED + 1)):
        result = reconcile(entries(replace(JOB, results=(other,)), SITE))
        assert any("no release" in finding.reason for finding in result.findings)


def test_more_around_a_results_tensors_than_their_encoding_needs_is_found() -> None:
    """By the byte above the stated bound."""
    most = 24 + ENVELOPE + PER_TENSOR
    for encoded, findings in ((most, []), (most + 1, [1])):
        sent = count(Traffic.RESULT, encoded, encoded + 1000)
        job = replace(JOB, sent=(sent,), results=(replace(RESULT, encoded=encoded),))
        assert unexplained(job, replace(SITE, sent=(sent,))) == findings


def test_what_a_result_tells_of_audit_logs_is_a_kind_of_its_own_and_bounded() -> None:
    """Checkpoints and cosignatures travel beside the tensors."""
    for beside, findings in ((LOG_BYTES, []), (LOG_BYTES + 1, [1])):
        encoded = ENCODED + beside
        sent = count(Traffic.RESULT, encoded, encoded + 1000)
        job = replace(JOB, sent=(sent,), results=(replace(RESULT, beside=beside, encoded=encoded),))
        result = reconcile(entries(job, replace(SITE, sent=(sent,))))
        assert [finding.nbytes for finding in result.findings] == findings
        assert result.left["checkpoints and cosignatures of audit logs"] == beside


def test_a_result_that_was_sent_twice_needs_no_second_release() -> None:
    """FLARE sends again what the server did not confirm."""
    twice = replace(SENT, frames=2, nbytes=2 * FRAME, payload=2 * ENCODED, announced=2 * ENCODED)
    job = replace(JOB, sent=(twice,), results=(replace(RESULT, messages=2, nbytes=48, encoded=2 * ENCODED),))
    result = reconcile(entries(job, replace(SITE, sent=(replace(twice),))))
    assert result.ok and result.left["values of released tensors"] == 48


@pytest.mark.parametrize("traffic", [kind for kind, limit in LIMITS.items() if limit])
def test_a_frame_longer_than_its_kind_may_have_is_found(traffic: Traffic) -> None:
    """By what is above the limit."""
    limit = LIMITS[traffic]
    assert limit is not None
    long = FrameCount(traffic, None, True, 1, limit + 7, limit - 100, limit + 7, limit - 100)
    assert unexplained(JOB, replace(SITE, sent=(*SITE.sent, long))) == [7]


def test_shares_for_other_sites_must_be_sealed_and_declared() -> None:
    """Mail needs a release to the sites, and no more than was sealed may leave."""
    mail = count(Traffic.MAIL, 100, 1100)
    assert unexplained(replace(JOB, sent=(SENT, mail), mailed=100), SITE) == [100]
    for more in (1, 10):
        assert unexplained(replace(JOB, sent=(SENT, mail), mailed=100 - more), SITE) == [more, 100]


def test_a_result_is_no_longer_than_the_job_encoded_and_a_header_than_such_may_be() -> None:
    """By a byte."""
    for more in (0, 1):
        sent = count(Traffic.RESULT, ENCODED + more, FRAME)
        assert unexplained(replace(JOB, sent=(sent,)), replace(SITE, sent=(sent,))) == ([more] if more else [])
        header = PREFIX + 2 * HEADER + more
        sent = count(Traffic.RESULT, ENCODED, ENCODED + header)
        assert unexplained(replace(JOB, sent=(sent,))) == ([header] if more else [])


def test_a_vault_s_results_and_mail_are_what_left_it() -> None:
    """It has no frames of a network: what it encoded and sealed counts, and mail needs a release as elsewhere."""
    vault = replace(JOB, process="vault", sent=())
    assert reconcile(entries(vault)).left == {
        "values of released tensors": 24,
        "encoding of task results": ENCODED - 24,
    }
    assert reconcile(entries(replace(vault, mailed=100))).left[Traffic.MAIL] == 100
    assert (unexplained(vault), unexplained(replace(vault, mailed=100))) == ([], [100])


def test_counts_whose_beginning_expired_are_no_finding() -> None:
    """Nor are the releases that they belong to, which expired with them; in a log that is whole they are both."""
    late = replace(JOB, number=4), replace(SITE, number=7)
    assert len(unexplained(*late, released=0)) > 1
    reconciler = Reconciler(expired=True)
    for entry in entries(*late, released=0):
        reconciler.add(entry)
    assert reconciler.result().ok


def test_missing_counts_are_a_finding() -> None:
    """An entry that was left out, or a machine that went down."""
    assert unexplained(replace(JOB, number=1), SITE) == [0]
    assert unexplained(replace(JOB, gap=True), SITE) == [0]


def test_an_entry_that_was_written_twice_counts_once() -> None:
    """As when a process dies between the log and its own journal."""
    assert reconcile(entries(JOB, JOB, SITE)).left == reconcile(entries(JOB, SITE)).left


def test_a_job_that_still_runs_is_not_compared_yet() -> None:
    """Its own counts come after those of the site."""
    job = replace(JOB, last=False, sent=(), results=())
    result = reconcile(entries(job, SITE))
    assert result.ok and result.running == 2


def test_entry_by_entry_is_the_same_as_all_at_once() -> None:
    """For whoever streams."""
    reconciler = Reconciler()
    for entry in entries(JOB, SITE):
        reconciler.add(entry)
    assert reconciler.result() == reconcile(entries(JOB, SITE))
