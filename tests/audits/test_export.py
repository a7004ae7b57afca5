"""Logs as FHIR AuditEvents, JSON lines and syslog."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fhir.resources.R4B.auditevent import AuditEvent
from hypothesis import given
from hypothesis import strategies as st
from logs import HOSTILE, fix_clocks, peak, write_logs

from audits import AuditLog, Entry, Event, LogError, find_logs, read
from audits.escaping import visible
from audits.export import ExportFormat, audit_event, export_logs, syslog_lines

GOLDEN = Path(__file__).with_name("golden")
ESCAPED = re.compile(r'\\(["\\\]])')
PARAM = r'[^ ="\]]{1,32}="(?:[^"\\\]]|\\["\\\]])*"'
MESSAGE = re.compile(  # RFC 5424, section 6, as far as it is used
    r"<\d{1,3}>1 \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,6}Z [!-~]{1,255} medfedvqa - [!-~]{1,32} "
    rf"\[[a-z]+@\d+(?P<params>(?: {PARAM})+)\] [ -~]+"
)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Path]:
    fix_clocks(monkeypatch)
    write_logs(tmp_path / "run")
    return find_logs(tmp_path / "run")


def entries(logs: dict[str, Path]) -> list[Entry]:
    return [entry for folder in logs.values() for entry in read(folder)]


def resources(logs: dict[str, Path], out: Path) -> Iterator[tuple[Entry, Any]]:
    """Each entry with what FHIR got of it."""
    export_logs(logs, ExportFormat.FHIR, out)
    lines = out.read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    return zip(entries(logs), map(json.loads, lines), strict=True)


def params(line: str) -> dict[str, str]:
    """The structured data of a message, unescaped."""
    result = MESSAGE.fullmatch(line)
    assert result, line
    pairs = (pair.split("=", 1) for pair in re.findall(PARAM, result["params"]))
    return {name: ESCAPED.sub(r"\1", value[1:-1]) for name, value in pairs}


@pytest.mark.parametrize("form", ExportFormat)
def test_exports_are_as_they_always_were(form: ExportFormat, logs: dict[str, Path], tmp_path: Path) -> None:
    """Byte for byte the golden file: archives have parsers for it."""
    assert export_logs(logs, form, tmp_path / "out") == len(entries(logs))
    assert (tmp_path / "out").read_bytes() == (GOLDEN / f"export.{form}").read_bytes()


def test_json_lines_are_the_logs_own_lines(logs: dict[str, Path], tmp_path: Path) -> None:
    """Their hashes can be computed again where they are received."""
    export_logs(logs, ExportFormat.JSONL, tmp_path / "out")
    whole = b"".join((folder / "log.jsonl").read_bytes() for folder in logs.values())
    assert (tmp_path / "out").read_bytes() == whole


def test_every_resource_is_a_valid_audit_event(logs: dict[str, Path], tmp_path: Path) -> None:
    """R4's model takes it and gives it back; ids are the entries' hashes; no entity has a name and a query (sev-1)."""
    for entry, result in resources(logs, tmp_path / "out"):
        resource = AuditEvent.model_validate(result)
        assert json.loads(resource.model_dump_json()) == result
        assert resource.id == entry.leaf_hash and result["recorded"] == entry.time
        assert all("query" not in entity for entity in result["entity"])


def test_every_fact_of_an_entry_is_in_its_resource(logs: dict[str, Path], tmp_path: Path) -> None:
    """Nothing gets lost: each value stands in the resource once or more, text as it is and the rest as JSON."""
    for entry, result in resources(logs, tmp_path / "out"):
        record = {json.dumps(text, ensure_ascii=False)[1:-1] for text in strings(result)}
        facts = [*entry.record().items(), *(fact for tensor in entry.tensors for fact in vars(tensor).items())]
        for name, value in facts:
            if value is not None and value != "" and name != "tensors":
                text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), sort_keys=True)
                quoted = json.dumps(str(text), ensure_ascii=False)[1:-1]
                assert any(sentence == quoted or sentence.endswith(f":{quoted}") for sentence in record), name
        assert result["outcome"] == ("4" if entry.outcome == "refused" else "0")


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)
    elif isinstance(value, str):
        yield value


def test_a_fact_that_the_format_gains_is_exported_as_well(logs: dict[str, Path]) -> None:
    """A field that no mapping knows stands among the entry's details, and in its syslog message."""
    entry = entries(logs)[0]
    grown = replace(entry)
    vars(grown)["novel"] = {"bytes": 12}
    details = audit_event(grown)["entity"][0]["detail"]
    assert {"type": "novel", "valueString": '{"bytes":12}'} in details
    assert params(next(syslog_lines(grown)))["novel"] == '{"bytes":12}'


def test_syslog_says_every_fact_of_entries_and_tensors(logs: dict[str, Path], tmp_path: Path) -> None:
    """Every line is an RFC 5424 message below 2048 bytes, and unescaped it says what the log says."""
    export_logs(logs, ExportFormat.SYSLOG, tmp_path / "out")
    lines = iter((tmp_path / "out").read_text(encoding="utf-8").split("\n"))
    for entry in entries(logs):
        line = next(lines)
        record = params(line)
        severity = 4 if entry.outcome == "refused" else 5 if entry.event == "recovered" else 6
        assert len(line.encode()) < 2048 and line.startswith(f"<{13 * 8 + severity}>")
        for name, value in entry.record().items():
            if name not in ("tensors", "time", "reason"):
                assert record.get(name) == shown(value), name
        for tensor in entry.tensors:
            about = params(next(lines))
            assert about["entry"] == entry.leaf_hash
            assert {name: about.get(name) for name in vars(tensor)} == {n: shown(v) for n, v in vars(tensor).items()}
    assert next(lines) == "" and next(lines, None) is None


def shown(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


@given(st.text())
def test_no_text_breaks_a_syslog_message(text: str) -> None:
    """Whatever a site or a job is called, the message is one line, and what shows itself comes back as it was."""
    entry = Entry(
        seq=0, prev_hash="0", leaf_hash="1", time="2026-03-01T08:00:00.000250Z", monotonic=1, site=text,
        event=Event.OPEN, job=text,
    )  # fmt: skip
    (line,) = syslog_lines(entry)
    assert len(line.splitlines()) == 1
    assert line.isprintable() or set(filter(lambda item: not item.isprintable(), line)) == {"\u00a0"}
    assert params(line)["job"] == visible(text) == params(line)["site"]
    if text.isascii() and text.isprintable():
        assert params(line)["job"] == text


def test_an_attack_in_a_name_stays_a_name(logs: dict[str, Path], tmp_path: Path) -> None:
    """A job's name that looks like the end of a parameter or of a line is neither."""
    for form in ExportFormat:
        export_logs(logs, form, tmp_path / form)
    line = next(line for line in (tmp_path / "syslog").read_text().splitlines() if "script" in line)
    assert params(line)["job"] == HOSTILE and params(line)["reason"] == "line one\\u000aline two ü"
    named = [result for _, result in resources(logs, tmp_path / "again") if result["subtype"][0]["code"] == "open"]
    assert HOSTILE in list(strings(named[-1]))


@pytest.mark.parametrize("form", ExportFormat)
def test_a_broken_log_is_not_exported(form: ExportFormat, logs: dict[str, Path], tmp_path: Path) -> None:
    """The error names the site and the first bad entry, and there is no file."""
    log = logs["head"] / "log.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"round":2', b'"round":7', 1))
    with pytest.raises(LogError, match="head breaks at entry 3"):
        export_logs(logs, form, tmp_path / "here" / "out")
    with pytest.raises(LogError, match="breaks"):
        export_logs(logs, form, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_file_that_exists_is_left_as_it_is(logs: dict[str, Path], tmp_path: Path) -> None:
    """Nothing is written over, and a folder that cannot be written to is an error in a sentence."""
    (tmp_path / "out").write_text("mine")
    with pytest.raises(LogError, match="exists already"):
        export_logs(logs, ExportFormat.JSONL, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine" and len(list(tmp_path.iterdir())) == 2
    with pytest.raises(LogError, match="cannot be written"):
        export_logs(logs, ExportFormat.JSONL, tmp_path / "nowhere" / "out")


def test_memory_does_not_grow_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporting four megabytes takes less than one and a half."""
    monkeypatch.setattr("os.fsync", lambda file: None)
    log = AuditLog(tmp_path / "audit", "chest")
    for _ in range(140):
        log.append(Event.OPEN, reason="r" * 30_000)
    for form in ExportFormat:
        assert peak(partial(export_logs, {"chest": tmp_path / "audit"}, form, tmp_path / form)) < 3 << 19
        assert (tmp_path / form).stat().st_size > 4_000_000


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_time_that_is_none_is_no_part_of_a_syslog_header(text: str) -> None:
    """It stands among the parameters, where nothing in it ends the line or the header."""
    entry = Entry(
        seq=0, prev_hash="0", leaf_hash="1", time=text, monotonic=1, site="chest", event=Event.OPEN,
    )  # fmt: skip
    (line,) = syslog_lines(entry)
    assert line.startswith("<110>1 - chest medfedvqa - open [entry@32473 ") and len(line.splitlines()) == 1
    assert params(line.replace("1 - chest", "1 2026-03-01T08:00:00.000250Z chest", 1))["time"] == visible(text)


def test_an_export_since_a_time_leaves_out_what_is_older(tmp_path: Path) -> None:
    """An export each day from the last one's time on has every entry, at the border in both."""
    log = AuditLog(tmp_path / "audit", "chest")
    times = [log.append(Event.OPEN, job=str(number)).time for number in range(3)]
    log.close()
    for number, time in enumerate(times):
        out = tmp_path / f"{number}.jsonl"
        count = export_logs({"chest": tmp_path / "audit"}, ExportFormat.JSONL, out, datetime.fromisoformat(time))
        assert count == len(out.read_text().splitlines()) == 3 - number
    late = datetime.fromisoformat(times[2]) + timedelta(seconds=1)
    assert export_logs({"chest": tmp_path / "audit"}, ExportFormat.JSONL, tmp_path / "late", late) == 0
