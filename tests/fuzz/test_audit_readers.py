"""What other sites, servers and auditors write about audit logs, mutated, through the readers of `audits` and reports.

`MEDFEDVQA_FUZZ` sets how many inputs each reader gets.
"""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from file_mutations import DEEPEST, LONGER, LONGEST, MARKER, VALUES, altered, bounded, inputs, mutated, nested, refused
from small_logs import BLANK, chained_anew, key_of, opened, rehashed, sealed
from small_logs import made as made_log

from audits import AuditError, AuditLog, Event, Exchange, JobRefused, LogError, NoteError, Refusal, VerifierKey, examine
from audits.checkpoint import Checkpoint, NoteFile
from audits.entry import Entry, parse_any, parse_line, read_line
from audits.envelope import open_envelope, seal_statement, statement, subjects
from audits.excerpt import quote
from audits.exchange import Kind, TaskSpec, TensorSpec
from audits.export import ExportFormat, export_logs
from audits.external_evidence import ExternalEvidence
from audits.gate import Gate, JobContext
from audits.policy import SitePolicy
from audits.signed_note import Note
from audits.witness import read_keys
from medfedvqa.federation.checkpoint_exchange import Down, Relayed, Up
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.report.collect import evidence_of
from privacy import DPSettings
from privacy.report import SourceReport, join, read_report, report_bytes, report_of, verify_report
from privacy.report.report_evidence import ReportEvidence
from privacy.report.report_files import ENVELOPE, JSON, document_bytes, sign_report

pytestmark = pytest.mark.sampled

Reads = Callable[[], object]
ENTRY = BLANK | {"seq": 0, "prev_hash": "0" * 64, "round": 1, "monotonic": 5}


def as_json(random: Random, document: Any) -> bytes:
    """The document with other values in it, or the bytes of it changed."""
    if random.random() < 0.3:
        return mutated(random, json.dumps(document).encode())
    return json.dumps(altered(random, document)).encode()


def test_mutated_lines_are_entries_or_no_entries() -> None:
    """Both readers of a line agree; what they take can be written again by every writer, whatever its nesting."""
    record = ENTRY | {"dp_event": {"events": [{"noise": 1.5}]}}
    record |= {"admission": {"code": "peers"}, "expiry": {"entries": 1, "days": 1, "basis": "date", "date": None}}

    def made(random: Random) -> bytes:
        try:
            return sealed(altered(random, record))
        except (ValueError, TypeError, AttributeError):
            return mutated(random, sealed(record))

    with bounded():
        refusals = 0
        for number, line in inputs("lines", made):
            refused(number, lambda line=line: shown(line), LogError)
            refusals += (slow := refused(number, lambda line=line: parse_any(line), LogError))
            assert slow == refused(number, lambda line=line: read_line(line), LogError)
    assert refusals


def shown(line: bytes) -> None:
    """As pages and exports do with an entry."""
    json.dumps(Entry.from_record(parse_line(line)).record(), indent=2).encode()


@pytest.mark.parametrize("field", ["round", "seq", "nbytes", "monotonic", "dp_event", "reason", "job"])
@pytest.mark.parametrize(
    "value",
    [LONGER, b"-" + LONGER, str(LONGEST).encode(), b"1" + b"0" * 400, DEEPEST, b'"\\ud800"', b"1.0", b"NaN", b"true"],
    ids=["4,301 digits", "negative", "4,300 digits", "10**400", "nested", "half a character", "float", "NaN", "true"],
)
def test_a_value_that_no_field_has_is_no_entry(field: str, value: bytes, tmp_path: Path) -> None:
    """As bytes in the line, in a log of one line: a typed error, and a broken chain at this entry."""
    marked = sealed(ENTRY | {field: MARKER})
    line = rehashed(marked.replace(json.dumps(MARKER).encode(), value))
    assert not refused(0, lambda: parse_line(sealed(ENTRY)))
    assert refused(0, lambda: parse_line(line), LogError) and refused(0, lambda: read_line(line), LogError)
    (tmp_path / "log.jsonl").write_bytes(line)
    assert examine(tmp_path, "chest", network=False).state == "broken"


def test_a_field_is_nested_as_deep_as_all_readers_follow() -> None:
    """32 levels, and whole numbers of 63 bits within."""
    for value, taken in ((nested(31), True), (nested(33), False), ({"a": 2**63 - 1}, True), ({"a": 10**400}, False)):
        line = sealed(ENTRY | {"dp_event": value if isinstance(value, dict) else {"a": value}})
        assert refused(0, lambda line=line: read_line(line), LogError) != taken


def test_mutated_notes_and_keys_are_read_or_refused(tmp_path: Path) -> None:
    """The files beside a log, and those that others hold, by bytes; and texts that JSON can hold and files cannot."""
    place = made_log(tmp_path)
    files = [place / "audit" / "checkpoints", place / "audit" / "keys", place / "head" / "witnessed"]
    originals = {path: path.read_bytes() for path in files}
    with bounded():
        for path, original in originals.items():
            for number, content in inputs(path.name, lambda random, original=original: mutated(random, original)):
                path.write_bytes(content)
                judge = lambda: examine(place / "audit", "chest", [place / "head"], network=False).record()  # noqa: E731
                refused(number, judge, AuditError)
                refused(number, lambda path=path: [*NoteFile(path)], LogError)
                refused(number, lambda path=path: read_keys(path), LogError)
            path.write_bytes(original)
    note = originals[files[2]].decode().removesuffix("\n")
    key = str(key_of(tmp_path).public)
    assert VerifierKey.parse(key).signed(Note.parse(note))
    for bad in ("\ud800", "\udfff", "9" * 4400, "1" + "0" * 400, "\x00"):
        for whole in (
            note.replace("\n7\n", f"\n{bad}\n"),
            note.replace("\ntime ", f"\ntime {bad}"),
            f"{note}{bad}",
            bad,
        ):
            refused(0, lambda whole=whole: told(whole, VerifierKey.parse(key)), NoteError)
        assert refused(0, lambda bad=bad: VerifierKey.parse(key.replace("chest", f"chest{bad}")), NoteError)


def told(report_bytes: str, key: VerifierKey) -> None:
    note = Note.parse(report_bytes)
    Checkpoint.parse(note.text)
    assert not key.signed(note) or key.cosigned(note) is None


def test_mutated_messages_about_logs_are_read_or_refused(tmp_path: Path) -> None:
    """What a server tells a site and a site a server: every string, number and list in them."""
    log = opened(tmp_path, 1 << 20)
    log.append(Event.OPEN, job="j")
    key, note = key_of(tmp_path).public, log.checkpoint()
    hash = bytes(32)
    down = Down(key, (note,), (Relayed(key, note, (hash,)),), (1, 2)).encoded()
    up = Up(key, note, {1: (hash,)}, (note,), {key.name: 1}).encoded()
    for name, message, read in (("down", down, Down.read), ("up", up, Up.read)):
        with bounded():
            refusals = 0
            for number, content in inputs(name, lambda random, m=message: as_json(random, json.loads(m))):
                refusals += refused(number, lambda content=content, read=read: heard(read(content), key), NoteError)
        assert refusals
    log.close()


def heard(message: Up | Down, key: VerifierKey) -> None:
    for note in (*message.cosigned, *([message.note] if isinstance(message, Up) else [])):
        key.signed(note), Checkpoint.parse(note.text)


def test_mutated_envelopes_are_opened_or_refused(tmp_path: Path) -> None:
    """By bytes and values of the envelope, and of the statement within, which the site's own key signs."""
    key = key_of(tmp_path)
    said = statement({"report.json": b"{}"}, "urn:x", {"report": MARKER})
    envelope = seal_statement(said, key)

    def made(random: Random) -> bytes:
        if random.random() < 0.5:
            return as_json(random, envelope)
        payload = as_json(random, said)
        coded = {"payload": base64.b64encode(payload).decode()}
        signature = key.signature(b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(payload), payload))
        signature = {"keyid": "x", "sig": base64.b64encode(signature).decode()}
        return json.dumps({**envelope, **coded, "signatures": [signature]}).encode()

    with bounded():
        for number, content in inputs("envelope", made):
            found = lambda content=content: subjects(open_envelope(content, key.public))  # noqa: E731
            refused(number, lambda found=found: [f"{name} {sha}".encode() for name, sha in found().items()], NoteError)


ROUNDS: tuple[Any, ...] = (1.0, 1.5, "1", True, False, -1, 2**31, 2**63, LONGEST, 10**400, None, [], {}, np.float64(1))


@pytest.mark.parametrize("round", ROUNDS, ids=range(len(ROUNDS)))
@pytest.mark.parametrize("way", ["release", "receive"])
def test_a_round_that_is_no_round_is_a_refusal_in_the_log(tmp_path: Path, way: str, round: Any) -> None:
    """Nothing passes in either direction, the log says why, and can be read."""
    spec = TensorSpec("prompt", (2,), "float32", Kind.PARAMETERS, "a prompt")
    exchange = Exchange("m", (TaskSpec("train", (spec,), (spec,)),))
    log = AuditLog(tmp_path, "chest")
    context = JobContext("j", "m", "aa" * 32, "1", "bb" * 32)
    gate = Gate(exchange, SitePolicy.from_mapping({"methods": ["m"], "kinds": ["parameters"]}), log, context)
    message = {"prompt": np.zeros(2, "float32")}
    with pytest.raises(AuditError, match="the round is not a whole number") as error:
        getattr(gate, way)("train", round, message)
    log.close()
    *_, last = (Entry.from_record(parse_line(line)) for line in (tmp_path / "log.jsonl").read_bytes().splitlines(True))
    assert (last.outcome, last.round, last.tensors) == ("refused", None, ()) and len(str(error.value)) < 200
    assert examine(tmp_path, "chest", network=False).integrity.parts[0].state == "shown"


@pytest.mark.parametrize("round", ROUNDS, ids=range(len(ROUNDS)))
def test_a_site_refuses_a_task_of_no_round_and_logs_it(
    sites: Callable[..., Any], quick_job: Callable[..., Any], round: Any
) -> None:
    """In process, where no decoder looks at it before, and with audit bytes that are a finding."""
    config = sites("chest")["chest"]
    runtime = SiteRuntime(config, quick_job(), "study-1")
    with pytest.raises(JobRefused) as refused:
        runtime.answer("start", round, {}, b"no message about logs")
    assert refused.value.code is Refusal.ORDER
    runtime.close()
    entries = [
        Entry.from_record(parse_line(line)) for line in (config.audit / "log.jsonl").read_bytes().splitlines(True)
    ]
    assert [(one.event, one.round) for one in entries if one.event == "finding"] == [("finding", None)]
    assert [one.event for one in entries if one.outcome == "refused"] == ["refusal"]


@pytest.mark.parametrize("value", [1.0, True, 2**63, "x", "\ud800"])
def test_a_log_takes_no_entry_that_it_could_not_read(tmp_path: Path, value: Any) -> None:
    """A writer's mistake is an error at once, and not a log that is broken from there on."""
    log = AuditLog(tmp_path, "chest")
    with pytest.raises(ValueError, match=r"the log's format does not allow|surrogates not allowed"):
        log.append(Event.FINDING, round=value, reason=value)
    log.append(Event.FINDING, reason="the next one")
    log.close()
    assert examine(tmp_path, "chest", network=False).integrity.parts[0].state == "shown"


@pytest.fixture
def reported(sites: Callable[..., Any], quick_job: Callable[..., Any]) -> tuple[Any, ReportEvidence]:
    """The configuration of a site that ran a private job, and what its report is made of."""
    config = sites("chest", require_dp=True, max_epsilon=20)["chest"]
    job = quick_job(answers="closed").model_copy(update={"dp": DPSettings(noise=1.5, count_noise=10.0)})
    runtime = SiteRuntime(config, job, "study-1")
    runtime.handle("start", 1, {})
    runtime.close()
    return config, evidence_of(config, None, None, None, None, (), False)


def test_reports_on_logs_with_any_values_are_judged_and_joined_or_refused(
    tmp_path: Path, reported: tuple[Any, ReportEvidence]
) -> None:
    """A site that chains, signs and proves whatever it likes: its report is judged, exported and joined with another's,
    or refused by a sentence."""
    config, evidence = reported
    key = key_of(tmp_path)
    report = report_of(evidence)
    lines = (config.audit / "log.jsonl").read_bytes().splitlines()

    def made(random: Random) -> bytes:
        records = [json.loads(line) for line in lines]
        for record in random.sample(records, random.randint(1, 2)):
            name = random.choice(["dp_event", "admission", "sharing", *record])
            record[name] = altered(random, record.get(name)) if random.random() < 0.5 else random.choice(VALUES)
        try:
            return b"".join(chained_anew([json.dumps(one).encode() for one in records]))
        except (ValueError, TypeError, AttributeError):
            return b"\n".join(lines) + b"\n"

    def judged(folder: Path, content: bytes) -> None:
        (folder / "audit" / "log.jsonl").write_bytes(content)
        for name in ("tree", "checkpoints"):
            (folder / "audit" / name).unlink(missing_ok=True)
        log = AuditLog(folder / "audit", "chest", key)
        log.close()
        quoted = quote(folder / "audit", "chest", lambda record: record["job"] in ("study-1", None))
        told = json.loads(report_bytes(report))
        told["evidence"]["log"] = json.loads(json.dumps(vars(quoted), default=vars))
        said = document_bytes(told["rows"], told["evidence"])
        (folder / JSON).write_bytes(said)
        [part.said.encode() for part in verify_report(folder, log=folder / "audit").parts]
        hostile = read_report(said)
        made = report_of(hostile.evidence)
        (folder / ENVELOPE).write_bytes(sign_report(made, {JSON: report_bytes(made)}, key))
        join([SourceReport(made, "00" * 32), SourceReport(report, "11" * 32)])

    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "keys").write_text(f"{key.public}\n")
    with bounded():
        for number, content in inputs("signed reports", made):
            refused(number, lambda content=content: judged(tmp_path, content))


@pytest.mark.parametrize("format", list(ExportFormat))
def test_logs_with_any_values_are_exported_or_refused(tmp_path: Path, format: ExportFormat) -> None:
    """What the readers take, every format can write."""
    folder, out = tmp_path / "audit", tmp_path / "out"
    log = AuditLog(folder, "chest")
    log.append(Event.OPEN, job=MARKER)
    log.append(Event.RELEASE, job=MARKER, round=1, dp_event={"delta": 1e-5}, epsilon_after=1.0)
    log.close()
    lines = (folder / "log.jsonl").read_bytes().splitlines()

    def made(random: Random) -> bytes:
        try:
            return b"".join(chained_anew([json.dumps(altered(random, json.loads(line))).encode() for line in lines]))
        except (ValueError, TypeError, AttributeError):
            return b"\n".join(lines) + b"\n"

    with bounded():
        for number, content in inputs(f"export {format}", made):
            (folder / "log.jsonl").write_bytes(content)
            out.unlink(missing_ok=True)
            refused(number, lambda: export_logs({"chest": folder}, format, out))


def test_others_evidence_that_is_none_is_refused(tmp_path: Path) -> None:
    """A folder given with `--against` that holds mutated files of all kinds."""
    place = made_log(tmp_path)
    for path in (place / "head" / "witnessed", place / "head" / "keys"):
        original = path.read_bytes()
        for number, content in inputs(f"evidence {path.name}", lambda random, o=original: mutated(random, o)):
            path.write_bytes(content)
            refused(number, lambda: ExternalEvidence.gather([place / "head"], place / "audit"), LogError)
        path.write_bytes(original)
