"""`medfedvqa audit show` and `verify` on logs of others, whose texts are theirs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from audits import AuditLog, Event, Isolation, Kind, Outcome, Protection, Refusal, TensorRecord

Command = Callable[..., Any]


def test_refused_jobs_are_listed_with_their_codes(medfedvqa: Command, tmp_path: Path) -> None:
    """With and without the id of the job, and as earlier versions logged them."""
    log = AuditLog(tmp_path / "audit", "chest")
    for job, code in (("job-1", Refusal.PEERS), (None, Refusal.SCHEMA)):
        more = {"outcome": Outcome.REFUSED, "reason": code.sentence, "admission": {"code": code.value}}
        log.append(Event.REFUSAL, job=job, **more)
    log.append(Event.OPEN, job="job-2", outcome=Outcome.REFUSED, reason="the policy of old")
    log.close()
    done = medfedvqa("audit", "show", str(tmp_path / "audit"))
    told = " ".join(done.stdout.split())
    assert done.returncode == 0 and "refusal refused peers" in told and "refusal refused schema" in told
    assert "job-1" in told and "job-2" in told and "the policy of old" in told


def test_what_kept_the_network_away_stands_with_the_entry(medfedvqa: Command, tmp_path: Path) -> None:
    """In each entry that says so, and in no other."""
    log = AuditLog(tmp_path / "audit", "chest")
    for isolation in (*Isolation, None):
        log.append(Event.OPEN, job=f"job-{isolation}", isolation=isolation)
    log.close()
    lines = medfedvqa("audit", "show", str(tmp_path / "audit")).stdout.splitlines()
    shown = [line.partition("open")[2] for line in lines if ", job job-" in line]
    assert shown == [*(f", isolation {one}, job job-{one}" for one in Isolation), ", job job-None"]


@pytest.mark.parametrize("text", ["[/]", "[bold]", "\x1b[2J\x1b]0;taken\x07", "a\nb"])
def test_texts_of_a_log_are_shown_and_not_obeyed(medfedvqa: Command, tmp_path: Path, text: str) -> None:
    """Neither as markup, which could end the command, nor as a terminal's control sequences."""
    log = AuditLog(tmp_path / "audit", text)
    tensor = TensorRecord(text, (), "float32", 4, None, Kind.STATISTIC, Protection.NONE)
    more = {"tensors": (tensor,), "nbytes": 4, "outcome": Outcome.SENT, "direction": "out"}
    log.append(Event.RELEASE, job=text, task=text, peer=text, reason=text, **more)
    log.close()
    for done in (
        medfedvqa("audit", "show", str(tmp_path / "audit")),
        medfedvqa("audit", "verify", str(tmp_path / "audit")),
    ):
        assert done.returncode in (0, 2) and not done.stderr
        assert "\x1b" not in done.stdout and "\x07" not in done.stdout
        assert "\x1b" in text or "\n" in text or text in done.stdout
