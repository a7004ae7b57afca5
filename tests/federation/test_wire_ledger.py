"""The byte ledger of a site's process, without a federation."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import Prefix

from audits import AuditKey, Event, origin_of, read
from audits.byte_ledger import Traffic, WireWindow, reconcile
from medfedvqa.federation.flare.allowed_messages import RESULT, classify
from medfedvqa.federation.flare.frame_counts import WireLedger

SITE = "chest"


def frame(channel: str, topic: str, origin: str = SITE, to: str = "server", **more: Any) -> dict[str, Any]:
    heads = {MessageHeaderKey.ORIGIN: origin, MessageHeaderKey.DESTINATION: to, MessageHeaderKey.MSG_TYPE: "req"}
    return {**heads, MessageHeaderKey.CHANNEL: channel, MessageHeaderKey.TOPIC: topic, **more}


DATA = Prefix(type=Types.DATA)


@given(st.text(), st.text())
def test_a_channel_that_is_not_on_the_list_is_unlisted(channel: str, topic: str) -> None:
    """Whatever it is called."""
    assert classify(DATA, frame(f"x{channel}", topic), SITE, None, "server").traffic is Traffic.UNLISTED


@pytest.mark.parametrize(
    ("job", "far", "heads"),
    [
        (None, "server", frame(*RESULT, origin="head.job")),
        (None, "server", frame(*RESULT, origin="server")),
        ("job", "server", frame(*RESULT, origin=f"{SITE}.job")),
        (None, "server", {}),
    ],
    ids=["another site's", "the server's own", "past the site's process", "nobody's"],
)
def test_frames_that_are_not_the_sites_own_or_take_another_way_are_unlisted(
    job: str | None, far: str, heads: dict[str, Any]
) -> None:
    """A site passes on what its own jobs send, and its jobs send through it."""
    assert classify(DATA, heads, SITE, job, far).traffic is Traffic.UNLISTED


def key_at(folder: Path) -> AuditKey:
    """The key that signs the site's log."""
    return AuditKey.at(folder / "audit.key", origin_of(SITE))


def test_an_unlisted_frame_is_refused_and_counted(tmp_path: Path) -> None:
    """Nothing of it is sent; the log says that it was tried."""
    ledger = WireLedger(tmp_path, SITE, None, key_at(tmp_path))
    with pytest.raises(CommError):
        ledger.admit(DATA, frame("metrics", "loss"), 10, "server")
    with pytest.raises(CommError):
        ledger.admit(DATA, frame("task", "heart_beat"), 1 << 20, "server")
    ledger.flush(last=True)
    found = reconcile(read(tmp_path))
    assert found.ok and found.refused_frames == 2 and not found.left and not found.running


def test_counts_outlive_a_process_that_is_killed(tmp_path: Path) -> None:
    """All of them, also those that it had not yet put into the log."""
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from medfedvqa.federation.flare.frame_counts import WireLedger\n"
        "from audits import AuditKey\n"
        "key = AuditKey.at(Path(sys.argv[1], 'audit.key'), 'medfedvqa/audit/chest')\n"
        "ledger = WireLedger(Path(sys.argv[1]), 'chest', 'job', key)\n"
        "for number in range(100):\n"
        "    ledger.mailed(1)\n"
        "    if number == 60: ledger.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=os.environ)
    other = WireLedger(tmp_path, SITE, None, key_at(tmp_path))
    assert other.sweep() == 1 and other.sweep() == 0
    windows = [
        WireWindow.from_record(entry.wire) for entry in read(tmp_path) if entry.event is Event.WIRE and entry.wire
    ]
    assert [(one.number, one.mailed, one.last) for one in windows] == [(0, 61, False), (1, 39, True)]


def test_counts_of_a_machine_that_went_down_are_a_finding(tmp_path: Path) -> None:
    """The last of them may not have reached the disk."""
    (tmp_path / "wire").mkdir()
    lines = [["job", "0123456789abcdef", 0, "job", "another-boot"], ["mail", 5]]
    (tmp_path / "wire" / "0123456789abcdef.00000000").write_text("".join(json.dumps(line) + "\n" for line in lines))
    WireLedger(tmp_path, SITE, None, key_at(tmp_path)).sweep()
    found = reconcile(read(tmp_path))
    assert not found.ok and "went down" in found.findings[0].reason
