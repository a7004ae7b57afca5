"""A refused job is seen wherever a site's people look: in the process's log, on the pages, in the exports."""

import json
import logging
import threading
import urllib.request
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

import pytest
from logs import HOSTILE, serve

from audits import AuditLog, Event, Outcome, Refusal, examine
from audits.export import ExportFormat, export_logs
from audits.verifier import totals

DIGEST = "ab" * 32


def refuse(log: AuditLog, code: str, job: str | None = None, reason: str | None = None) -> None:
    """As the process that refuses a job does, whether it knows the job's id or not."""
    admission = {"code": code, "definition": DIGEST if job is None else None}
    log.append(Event.REFUSAL, job=job, outcome=Outcome.REFUSED, reason=reason, admission=admission)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two jobs that were refused as this version logs it, one as earlier versions did, and a job that ran."""
    log = AuditLog(tmp_path / "run" / "sites" / "chest" / "audit", "chest")
    log.append(Event.OPEN, job="before", outcome=Outcome.REFUSED, reason="the policy of old")
    log.append(Event.OPEN, job="j")
    log.append(Event.CLOSE, job="j")
    refuse(log, Refusal.PEERS, job="k", reason=Refusal.PEERS.sentence)
    refuse(log, Refusal.SCHEMA, reason=Refusal.SCHEMA.sentence)
    log.close()
    return tmp_path / "run"


@pytest.fixture
def audit(run: Path) -> Path:
    return run / "sites" / "chest" / "audit"


@pytest.fixture
def page(run: Path) -> Iterator[Callable[[str], str]]:
    with serve(run) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield lambda name: urllib.request.urlopen(server.url + name).read().decode()
        finally:
            server.shutdown()
            thread.join()


def test_the_log_of_the_process_names_code_and_sentence_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line each, on the level of warnings; neither the reason nor anything of the job is in it."""
    log = AuditLog(tmp_path, "chest")
    with caplog.at_level(logging.INFO):
        refuse(log, Refusal.BUDGET, job=HOSTILE, reason="a detail")
        refuse(log, HOSTILE, reason="a detail")
        log.append(Event.OPEN, job="j")
    log.close()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"a job was refused (budget): {Refusal.BUDGET.sentence}"),
        ("WARNING", "a job was refused (no code): see the audit log"),
    ]


def test_a_refused_job_is_not_one_that_was_left_open(audit: Path) -> None:
    """Neither as this version logs it nor as earlier ones did; it counts among what was refused."""
    (jobs,) = [part for part in examine(audit, "chest").completeness.parts if part.name == "jobs"]
    assert jobs.state == "shown" and totals(audit).refused == 3


def test_the_pages_list_refused_jobs_with_their_codes_and_filter_by_them(page: Callable[[str], str]) -> None:
    """Also one of which no id is known."""
    assert 'href="entries?site=chest&amp;event=refusal">2<' in page("")
    listed = page("entries?event=refusal")
    assert "2 entries" in listed and "peers" in listed and "schema" in listed
    item = page("entries?code=schema")
    assert ">1 entry<" in item and 'seq=4"' in item and 'seq=3"' not in item
    assert "the policy of old" in page("entry?site=chest&seq=0")
    entry = page("entry?site=chest&seq=4")
    assert DIGEST in entry and escape(Refusal.SCHEMA.sentence) in entry


def test_archives_get_the_code(audit: Path, tmp_path: Path) -> None:
    """FHIR as a coding of the event and a security alert, syslog as a parameter of a warning."""
    assert export_logs({"chest": audit}, ExportFormat.FHIR, tmp_path / "fhir") == 5
    events = [json.loads(line) for line in (tmp_path / "fhir").read_text(encoding="utf-8").splitlines()]
    refusal = {"system": "urn:medfedvqa:refusal", "code": "peers", "display": Refusal.PEERS.sentence}
    assert events[3]["subtype"] == [{"system": "urn:medfedvqa:event", "code": "refusal"}, refusal]
    assert events[3]["type"]["display"] == "Security Alert" and events[3]["outcome"] == "4"
    export_logs({"chest": audit}, ExportFormat.SYSLOG, tmp_path / "syslog")
    message = (tmp_path / "syslog").read_text(encoding="utf-8").splitlines()[3]
    assert message.startswith("<108>1 ") and ' code="peers"' in message and message.endswith("peers, 0 tensors")
