"""What another version writes is called so, never broken and never shown; files that are none are one sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_files import GOLDEN, REPORTS, lines_of, put, rewritten

from audits import (
    Checkpoint,
    LogError,
    NewerFormat,
    NoteError,
    VerdictState,
    VerifierKey,
    examine,
    read,
    verify,
)
from audits.entry import FORMAT, parse_any, parse_line, read_line
from audits.entry_proof import check
from audits.errors import OlderFormat
from audits.exchange import canonical
from audits.log import AuditLog
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation.site_state import StateFile
from medfedvqa.report.collect import _read, _run
from privacy.ledger_journal import Head, JournalRow, LedgerError, NewerRecord, OlderRecord, link, read_export
from privacy.ledger_replay import Book
from privacy.report import NewerReport, ReportError, read_report, verify_report
from privacy.report.report_files import ENVELOPE, JSON, MAX_REPORT


def later(record: dict[str, Any]) -> None:
    """As a version with another format number may write an entry."""
    envelope = ("seq", "prev_hash", "time", "site")
    for name in record.keys() - set(envelope):
        del record[name]
    record |= {"format": FORMAT + 1, "what": {"colour": ["blue", 3]}}


NEWER: dict[str, Callable[[dict[str, Any]], object]] = {
    "a higher number": later,
    "an optional field more": lambda record: record.update({"attestation": {"by": "tpm"}}),
    "another event": lambda record: record.update({"event": "paused"}),
    "another kind of tensor": lambda record: [one.update({"kind": "gradients"}) for one in record["tensors"]],
}


@pytest.mark.parametrize("case", NEWER)
def test_a_log_of_a_newer_version_is_called_so_and_never_broken(case: str, tmp_path: Path) -> None:
    """Chain and tree cover its entries; what they say is not shown. Tampering with one is broken all the same, and this
    version neither appends to the log nor reads entries out of it."""
    old = lines_of(GOLDEN / f"formats-{FORMAT}")
    lines = rewritten(old, NEWER[case])
    found = examine(put(tmp_path / "log", lines), "chest", network=True)
    parts = {part.name: part for _, verdict in found.verdicts() for part in verdict.parts}
    assert parts["chain"].state is VerdictState.SHOWN and parts["format"].state is VerdictState.NOT_SHOWN
    assert "newer version" in parts["format"].said and found.state is VerdictState.NOT_SHOWN
    assert VerdictState.BROKEN not in {part.state for part in parts.values()} and found.entries == len(lines)
    with pytest.raises(NewerFormat, match="newer version"):
        list(read(tmp_path / "log"))
    if parse_any(lines[-1])[1]:
        with pytest.raises(NewerFormat, match="newer version"):
            AuditLog(tmp_path / "log", "chest").append("open")  # type: ignore[arg-type]
    changed = b"".join(lines).replace(b'"site":"chest"', b'"site":"cheat"', 1)
    assert verify(put(tmp_path / "changed", [changed])).first_bad == 0


OLDER = r"is of a development state before 0\.2\.0, which is no longer read: version 0\.2\.0 reads it$"


def test_a_log_without_format_numbers_is_called_one_of_a_development_state(tmp_path: Path) -> None:
    """Also where a later version continued it: it is not verified, not read and not continued, and not called broken.
    A changed byte of a line without a number is damage all the same."""
    lines = rewritten(lines_of(GOLDEN / "formats-1"), lambda record: record["seq"] < 2 and record.pop("format"))
    folder = put(tmp_path / "log", lines)
    for use in (lambda: verify(folder), lambda: examine(folder, "chest", network=False), lambda: list(read(folder))):
        with pytest.raises(OlderFormat, match=OLDER):
            use()
    with pytest.raises(OlderFormat, match=OLDER):
        AuditLog(put(tmp_path / "short", lines[:1]), "chest").append("open")  # type: ignore[arg-type]
    assert verify(put(tmp_path / "changed", [lines[0].replace(b"chest", b"cheat", 1)])).first_bad == 0


@pytest.mark.parametrize("number", ["1", 1.0, True, -1, 0, None])
def test_a_format_is_a_whole_number_of_one_or_more(number: Any) -> None:
    """Anything else is broken, by both readers."""
    line = rewritten(lines_of(GOLDEN / f"formats-{FORMAT}")[:1], lambda record: record.update({"format": number}))[0]
    for reader in (parse_line, read_line):
        with pytest.raises(LogError) as caught:
            reader(line)
        assert not isinstance(caught.value, NewerFormat)


def test_extension_lines_of_a_newer_checkpoint_are_passed_over() -> None:
    """Unknown lines are ignored, as C2SP demands; a newer number makes this version say nothing of them."""
    root = bytes(32)
    known = Checkpoint("medfedvqa/audit/chest", 1, root, ("format 1", "time T", "weather fine today", "place here"))
    assert known.extensions["time"] == "T" and Checkpoint.parse(known.text) == known
    assert Checkpoint("medfedvqa/audit/chest", 1, root, ("format 2", "time T")).extensions == {}


def ledger_rows(change: Callable[[dict[str, Any]], object]) -> list[JournalRow]:
    """The golden ledger with its records changed and chained anew."""
    head, rows = Head(), []
    for row in read_export(GOLDEN / "formats-1" / "ledger.jsonl"):
        change(row.record)
        head = Head(head.seq + 1, link(head.hash, row.record))
        rows.append(JournalRow(head.seq, rows[-1].hash if rows else Head().hash, head.hash, row.record))
    return rows


NEWER_RECORDS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a higher number": lambda record: record.update({"format": 2}),
    "a field more": lambda record: record.update({"witness": "w"}),
    "another event": lambda record: record.update({"event": "lent"}),
    "another mechanism": lambda record: [
        event.update({"mechanism": "staircase"}) for one in record.get("plan", ()) for event in one["events"]
    ],
}


@pytest.mark.parametrize("case", NEWER_RECORDS)
def test_a_ledger_of_a_newer_version_is_called_so(case: str) -> None:
    """Nothing may be trained under it by this version, and it is not said to be damaged."""
    with pytest.raises(NewerRecord, match="newer version"):
        Book().apply(ledger_rows(NEWER_RECORDS[case]))


def test_a_ledger_without_format_numbers_is_called_one_of_a_development_state() -> None:
    """Nothing may be trained under it, and it is not said to be damaged."""
    with pytest.raises(OlderRecord, match=OLDER):
        Book().apply(ledger_rows(lambda record: record.pop("format")))


def test_a_ledger_record_without_a_field_of_its_event_is_refused() -> None:
    """One grammar: each event has exactly its fields."""
    with pytest.raises(LedgerError, match="does not follow") as caught:
        Book().apply(ledger_rows(lambda record: record.pop("time")))
    assert not isinstance(caught.value, NewerRecord)


def test_state_and_results_of_another_version_are_called_so(tmp_path: Path) -> None:
    """By a sentence, before anything of it is used; a damaged state is another sentence."""
    import torch

    fields = torch.load(GOLDEN / "formats-1" / "state.pt", weights_only=True)
    for more in ({"format": 2}, {"colour": 1}):
        torch.save(fields | more, tmp_path / "job.pt")
        with pytest.raises(FederationError, match="newer version"):
            StateFile(tmp_path, "job").load()
    del fields["format"]
    torch.save(fields, tmp_path / "job.pt")
    with pytest.raises(FederationError, match=OLDER):
        StateFile(tmp_path, "job").load()
    (tmp_path / "job.pt").write_bytes((GOLDEN / "formats-1" / "state.pt").read_bytes()[:700])
    with pytest.raises(FederationError, match="damaged"):
        StateFile(tmp_path, "job").load()
    results = json.loads((GOLDEN / "formats-1" / "results.json").read_text())
    (tmp_path / "results.json").write_text(json.dumps(results | {"schema_version": 4}))
    with pytest.raises(ConfigError, match="newer version"):
        _read(tmp_path / "results.json", _run)


@pytest.mark.parametrize(
    "change",
    [
        lambda report: report.update({"format": "medfedvqa.privacy-report/3"}),
        lambda report: report["sections"].update({"weather": "fine"}),
        lambda report: report["evidence"]["policy"].update({"max_rounds": 3}),
        lambda report: report["sections"]["trust"].update({"aggregation": "in an enclave"}),
    ],
)
def test_a_report_of_a_newer_version_is_not_shown_and_its_bytes_are_still_compared(
    change: Callable[[dict[str, Any]], object], tmp_path: Path
) -> None:
    """Not broken by its schema; but these bytes are not those that the site signed, and that is broken."""
    document = json.loads((REPORTS[0] / JSON).read_text("utf-8"))
    change(document)
    content = json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"
    with pytest.raises(NewerReport, match="newer version"):
        read_report(content)
    (tmp_path / JSON).write_bytes(content)
    parts = {part.name: part.state for part in verify_report(tmp_path).parts}
    assert parts["schema"] is VerdictState.NOT_SHOWN and parts["signature"] is VerdictState.NOT_SHOWN
    shutil.copy(REPORTS[0] / ENVELOPE, tmp_path)
    parts = {part.name: part.state for part in verify_report(tmp_path).parts}
    assert parts["schema"] is VerdictState.NOT_SHOWN and parts["signature"] is VerdictState.BROKEN


def test_a_report_about_entries_without_format_numbers_is_called_one_of_a_development_state(tmp_path: Path) -> None:
    """Its proofs are not checked, and not called broken; who signed the edited file is."""
    document = json.loads((REPORTS[0] / JSON).read_text("utf-8"))
    entries = document["evidence"]["log"]["entries"]
    lines = [canonical(entry["record"]) + b"\n" for entry in entries]
    for entry, line in zip(entries, rewritten(lines, lambda record: record.pop("format")), strict=True):
        entry["record"] = json.loads(line)
    (tmp_path / JSON).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    parts = {part.name: part for part in verify_report(tmp_path).parts}
    assert parts["proofs"].state is VerdictState.NOT_SHOWN and "before 0.2.0" in parts["proofs"].said
    assert parts["figures"].state is VerdictState.NOT_SHOWN


def test_a_report_that_is_too_large_or_too_deep_is_one_sentence(tmp_path: Path) -> None:
    """More than 100 MB, and nested 10,000 deep, as a whole and within a record of the evidence."""
    with open(tmp_path / JSON, "wb") as file:
        file.truncate(101 << 20)
    with pytest.raises(ReportError, match="no report can be read"):
        verify_report(tmp_path)
    with pytest.raises(ReportError, match="larger than"):
        read_report(bytes(MAX_REPORT + 1))
    deep = "[" * 10_000 + "]" * 10_000
    with pytest.raises(ReportError, match="not a report"):
        read_report(deep.encode())
    document = json.loads((REPORTS[0] / JSON).read_text("utf-8"))
    document["evidence"]["log"]["entries"][0]["record"]["dp_event"] = "DEEP"
    content = json.dumps(document, indent=1).replace('"DEEP"', deep).encode()
    with pytest.raises(ReportError):
        read_report(content)
    (tmp_path / JSON).write_bytes(content)
    assert verify_report(tmp_path).state is VerdictState.BROKEN


def test_a_proof_of_a_newer_format_is_called_so() -> None:
    """A bundle whose name of the format has a higher number; any other name is none."""
    bundle = json.loads((GOLDEN / "formats-1" / "log" / "proof.json").read_text())
    key = VerifierKey.parse(bundle["keys"][0])
    with pytest.raises(NewerFormat, match="the proof was written by a newer version"):
        check(json.dumps(bundle | {"format": "medfedvqa audit proof 2"}).encode(), [key])
    with pytest.raises(NoteError):
        check(json.dumps(bundle | {"format": "medfedvqa audit proof 0"}).encode(), [key])
