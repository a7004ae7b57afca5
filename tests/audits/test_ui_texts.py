"""The pages of a log whose texts are an attack: no character of a page's source hides, and long names are no links."""

import unicodedata
from pathlib import Path

import pytest
from logs import serve

from audits import AuditLog, Event, Kind, Outcome, Protection, TensorRecord

HIDDEN = "\x1b[2J\u202eNEKORB\u200b\x9b\u2066\x00"


@pytest.mark.parametrize("text", [HIDDEN, HIDDEN * 2_000])
def test_no_page_holds_a_character_that_hides(tmp_path: Path, text: str) -> None:
    """Neither between the elements nor in an attribute, whatever site, job, task, peer and tensor are called; each page
    is small, and the job's entries can still be asked for by its name where an address may be as long."""
    log = AuditLog(tmp_path / "sites" / "chest" / "audit", text)
    tensor = TensorRecord(text, (), "float32", 4, None, Kind.STATISTIC, Protection.NONE)
    more = {"tensors": (tensor,), "nbytes": 4, "outcome": Outcome.SENT, "direction": "out"}
    log.append(Event.RELEASE, job=text, task=text, peer=text, reason=text, **more)
    log.close()
    with serve(tmp_path) as server:
        for page in ("", "entries", "entry?site=chest&seq=0", "tensors", "budgets", "verdicts"):
            answer = server.answer(server.url.partition(str(server.server_port))[2] + page)
            source = answer.body.decode()
            assert answer.status == 200 and len(source) < 100_000
            assert all(item in "\n \u00a0" or unicodedata.category(item)[0] not in "CZ" for item in source), page
            assert r"\u202eNEKORB" in source or page in ("budgets", "verdicts")
        overview = server.answer(server.url.partition(str(server.server_port))[2]).body.decode()
        assert ("entries?job=%1B" in overview) == (len(text) < 100)
