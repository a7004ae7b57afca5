"""What was written once is read for six years: golden files of every format, later formats, and files that are none.

`tests/golden/make.py` wrote the golden files; they are never written again.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from audits import Checkpoint, LogError, NewerFormat, NoteError, State, VerifierKey, check, examine, read, verify
from audits.checkpoint import CHECKPOINTS, NoteFile
from audits.entry import FORMAT, Entry, parse_any, parse_line
from audits.exchange import canonical
from audits.lines import read_line
from audits.log import AuditLog
from audits.sharing import sharing_of
from audits.witness import KEYS, read_keys
from medfedvqa.cli.report_inputs import _read, _run
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation.state import StateFile
from privacy.book import Book
from privacy.journal import Head, LedgerError, NewerRecord, Row, link, read_export
from privacy.report import Joined, NewerReport, ReportError, read_report, sections_of, verify_joined, verify_report
from privacy.report.files import ENVELOPE, JSON, MAX_REPORT
from privacy.report.replay import same
from privacy.report.wording import differences, figures_of

GOLDEN = Path(__file__).with_name("golden")
NUMBERS = sorted(int(folder.name.removeprefix("formats-")) for folder in GOLDEN.glob("formats-*"))
every_format = pytest.mark.parametrize("folder", [GOLDEN / f"formats-{number}" for number in NUMBERS], ids=str)
SITES = ("abdomen", "chest", "head")
FLOAT = re.compile(rb"\d\.\d{9,}")
"""The last digit of one may change without changing the number that is read."""


def lines_of(folder: Path) -> list[bytes]:
    return (folder / "log" / "log.jsonl").read_bytes().splitlines(keepends=True)


def rewritten(lines: list[bytes], change: Callable[[dict[str, Any]], object]) -> list[bytes]:
    """The same entries, changed, with a chain that holds."""
    head, new = "0" * 64, []
    for line in lines:
        record = {name: value for name, value in json.loads(line).items() if name != "leaf_hash"} | {"prev_hash": head}
        change(record)
        head = sha256(b"\0" + canonical(record)).hexdigest()
        new.append(canonical(record | {"leaf_hash": head}) + b"\n")
    return new


def put(folder: Path, lines: list[bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.jsonl").write_bytes(b"".join(lines))
    return folder


@every_format
def test_a_golden_log_verifies_with_its_checkpoints_keys_and_proof(folder: Path) -> None:
    """Chain, tree, signature, cosignature and the bundle for one entry; nothing is broken, and nothing called newer."""
    found = examine(folder / "log", "chest", network=False)
    parts = {part.name: part.state for _, verdict in found.verdicts() for part in verdict.parts}
    assert {parts[name] for name in ("chain", "tree", "signature", "tail")} == {State.SHOWN}
    assert State.BROKEN not in parts.values() and "format" not in parts and parts["cosigned times"] is not State.BROKEN
    keys = list(read_keys(folder / "log" / KEYS).values())
    (own,) = [key for key in keys if key.name == "medfedvqa/audit/chest"]
    assert check((folder / "log" / "proof.json").read_bytes(), [own]).record["seq"] == 2
    dated = [Checkpoint.parse(note.text).extensions for note in NoteFile(folder / "log" / CHECKPOINTS)]
    assert all(one["time"].endswith("Z") for one in dated)


@every_format
def test_a_golden_log_says_what_was_put_into_it(folder: Path) -> None:
    """Every event, and the sites of the computation on shares, whose sentence is made of the object."""
    entries = list(read(folder / "log"))
    number = int(folder.name.removeprefix("formats-"))
    assert {entry.format for entry in entries} == {number}
    assert [entry.event.value for entry in entries[:3]] == ["open", "receive", "release"]
    sharing = sharing_of(entries[3])
    assert sharing and sharing.sites == SITES and sharing.dealer == "server" and sharing.protocol == "mix"
    assert str(sharing) == entries[3].reason
    for line, entry in zip(lines_of(folder), entries, strict=True):
        assert canonical(entry.record()) + b"\n" == line and read_line(line).leaf_hash == entry.leaf_hash


@every_format
def test_any_changed_byte_of_a_golden_log_is_broken_and_never_newer(folder: Path, tmp_path: Path) -> None:
    """Every 29th byte, flipped in its lowest bit: a changed number of the format is tampering, too."""
    whole = b"".join(lines_of(folder))
    place = whole.find(b'"format":')
    for offset in {*range(0, len(whole) - 1, 29), *(range(place, place + 11) if place > 0 else ())}:
        changed = bytearray(whole)
        changed[offset] ^= 1
        verdict = verify(put(tmp_path / "log", [bytes(changed)]))
        assert verdict.first_bad == whole.count(b"\n", 0, offset), offset


@every_format
def test_a_golden_ledger_is_read_and_a_changed_byte_is_found(folder: Path, tmp_path: Path) -> None:
    """Its own and one that took charges over; bytes of the file, flipped, is an error with a sentence."""
    for name in ("ledger.jsonl", "imported.jsonl"):
        book = Book()
        book.apply(read_export(folder / name))
        assert book.debits or book.jobs
        whole = (folder / name).read_bytes()
        for offset in range(0, len(whole), 5):
            (tmp_path / name).write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
            with pytest.raises(LedgerError):
                Book().apply(read_export(tmp_path / name))


@every_format
def test_golden_site_state_is_read(folder: Path) -> None:
    """With its arrays, shares and draws."""
    saved = StateFile(folder, "state").load()
    assert saved and (saved.task, saved.round, saved.state) == ("train", 2, {"step": 3, "name": "chest"})
    assert saved.reply["prompt"].tolist() == [[0, 1, 2], [3, 4, 5]] and saved.draw and saved.dealt
    assert saved.dealt.seed == b"seed" and saved.contributions[0].shares == {"chest": b"share"}


@every_format
def test_golden_results_are_read(folder: Path) -> None:
    """As a report takes them in."""
    run = _read(folder / "results.json", _run)
    assert run.sites == SITES and run.status == "finished" and run.backbone == "medclip-slake"


REPORTS = [folder for number in NUMBERS if (folder := GOLDEN / f"formats-{number}" / "report").exists()]
every_report = pytest.mark.parametrize("folder", REPORTS, ids=lambda folder: folder.parent.name)


@every_report
def test_a_golden_report_verifies(folder: Path) -> None:
    """Its signature, proofs and figures; other code made its sentences, which are not compared."""
    key = VerifierKey.parse((folder / "chest.key").read_text().strip())
    found = verify_report(folder, key, code_digest="0" * 64)
    parts = {part.name: part.state for part in found.parts}
    for name in ("schema", "key", "signature", "proofs", "figures", "code", "all of it"):
        assert parts[name] is State.SHOWN, name
    assert parts["wording"] is State.NOT_COMPARED and State.BROKEN not in parts.values()


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict | list):
        for step, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, (*path, step))
    else:
        yield path


def flipped(value: Any) -> Any:
    """Another value of the same type; None becomes a number or a text."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return "x" if value is None else value[:-1] + ("0" if value[-1:] != "0" else "1")


def edit(document: Any, path: tuple[str | int, ...]) -> Any:
    """A copy in which one leaf is another."""
    copy = json.loads(json.dumps(document))
    holder = copy
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = flipped(holder[path[-1]])
    return copy


@every_report
def test_every_figure_digest_and_proof_of_a_golden_report_counts(folder: Path) -> None:
    """Each figure of the sections, one by one, is unlike what the evidence gives; each changed part of the evidence
    gives the report another identity. None of it needs the signature, which covers every byte."""
    document = json.loads((folder / JSON).read_text("utf-8"))
    report = read_report((folder / JSON).read_bytes())
    figures = figures_of(sections_of(report.evidence), whole=True)
    told = figures_of(report.sections)
    flat = list(leaves(json.loads(json.dumps(told))))
    assert len(flat) > 300
    for path in flat:
        assert next(differences(edit(json.loads(json.dumps(told)), path), json.loads(json.dumps(figures)), ""), None), (
            path
        )
    identity = document["sections"]["identity"]["report"]
    evidence = document["evidence"]
    for path in leaves(evidence):
        content = edit(evidence, path)
        plain = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        assert sha256(plain).hexdigest() != identity, path
    assert (
        sha256(json.dumps(evidence, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()
        == identity
    )


@every_report
def test_a_flipped_leaf_of_a_golden_report_never_verifies(folder: Path, tmp_path: Path) -> None:
    """Through the verifier, with the file's own signature beside it: every 23rd leaf, wording included."""
    key = VerifierKey.parse((folder / "chest.key").read_text().strip())
    document = json.loads((folder / JSON).read_text("utf-8"))
    shutil.copy(folder / ENVELOPE, tmp_path)
    for path in list(leaves(document))[::23]:
        (tmp_path / JSON).write_text(json.dumps(edit(document, path), indent=1, ensure_ascii=False) + "\n", "utf-8")
        assert verify_report(tmp_path, key).state is State.BROKEN, path


def test_a_reworded_report_still_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence of the code, a rule's statement, the letter of a section, whole sections of explanations: figures
    hold, and wording is not compared. The same under the report's own code is broken."""
    folder = REPORTS[-1]
    key = VerifierKey.parse((folder / "chest.key").read_text().strip())
    digest = read_report((folder / JSON).read_bytes()).evidence.tool.code_digest
    monkeypatch.setattr("privacy.report.claim.OBSERVER", "anybody who sees what leaves the site")
    monkeypatch.setattr("privacy.report.build.NEVER", ("nothing",))
    monkeypatch.setattr("privacy.report.build.mappings", lambda facts: ())
    monkeypatch.setattr("privacy.report.build.outside", lambda facts: ())
    rules = tuple((name, f"{said} (reworded)", "Z", test) for name, said, _, test in verdict_rules())
    monkeypatch.setattr("privacy.report.verdicts._RULES", rules)
    parts = {part.name: part.state for part in verify_report(folder, key, code_digest="0" * 64).parts}
    assert parts["figures"] is State.SHOWN and parts["wording"] is State.NOT_COMPARED
    parts = {part.name: part.state for part in verify_report(folder, key, code_digest=digest).parts}
    assert parts["figures"] is State.SHOWN and parts["wording"] is State.BROKEN


def verdict_rules() -> Any:
    from privacy.report import verdicts

    return verdicts._RULES


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
    assert parts["chain"].state is State.SHOWN and parts["format"].state is State.NOT_SHOWN
    assert "newer version" in parts["format"].said and found.state is State.NOT_SHOWN
    assert State.BROKEN not in {part.state for part in parts.values()} and found.entries == len(lines)
    with pytest.raises(NewerFormat, match="newer version"):
        list(read(tmp_path / "log"))
    if parse_any(lines[-1])[1]:
        with pytest.raises(NewerFormat, match="newer version"):
            AuditLog(tmp_path / "log", "chest").append("open")  # type: ignore[arg-type]
    changed = b"".join(lines).replace(b'"site":"chest"', b'"site":"cheat"', 1)
    assert verify(put(tmp_path / "changed", [changed])).first_bad == 0


def test_a_log_goes_on_in_a_newer_format(tmp_path: Path) -> None:
    """Entries of format 0 that this version continues verify as one chain."""
    folder = put(tmp_path / "log", lines_of(GOLDEN / "formats-0"))
    log = AuditLog(folder, "chest")
    log.append("close", job="job-2")  # type: ignore[arg-type]
    log.close()
    entries = list(read(folder))
    assert verify(folder).ok and [entry.format for entry in entries[-2:]] == [0, FORMAT]


def test_nobody_adds_to_the_format_without_a_number() -> None:
    """A field more in a line without `format` is no newer version: none writes such lines."""
    line = rewritten(lines_of(GOLDEN / "formats-0")[:1], lambda record: record.update({"more": 1}))[0]
    for reader in (parse_line, read_line):
        with pytest.raises(LogError) as caught:
            reader(line)
        assert not isinstance(caught.value, NewerFormat)


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


def ledger_rows(change: Callable[[dict[str, Any]], object]) -> list[Row]:
    """The golden ledger with its records changed and chained anew."""
    head, rows = Head(), []
    for row in read_export(GOLDEN / "formats-1" / "ledger.jsonl"):
        change(row.record)
        head = Head(head.seq + 1, link(head.hash, row.record))
        rows.append(Row(head.seq, rows[-1].hash if rows else Head().hash, head.hash, row.record))
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


def test_a_ledger_record_without_a_field_of_its_event_is_refused() -> None:
    """One grammar: each event has exactly its fields."""
    with pytest.raises(LedgerError, match="does not follow") as caught:
        Book().apply(ledger_rows(lambda record: record.pop("time")))
    assert not isinstance(caught.value, NewerRecord)


def test_state_and_results_of_a_newer_version_are_called_so(tmp_path: Path) -> None:
    """By a sentence, before anything of it is used; a damaged state is another sentence."""
    import torch

    fields = torch.load(GOLDEN / "formats-1" / "state.pt", weights_only=True)
    for more in ({"format": 2}, {"colour": 1}):
        torch.save(fields | more, tmp_path / "job.pt")
        with pytest.raises(FederationError, match="newer version"):
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
        lambda report: report.update({"format": "medfedvqa.privacy-report/2"}),
        lambda report: report["sections"].update({"weather": "fine"}),
        lambda report: report["evidence"]["policy"].update({"max_rounds": 3}),
        lambda report: report["sections"]["trust"].update({"aggregation": "in an enclave"}),
    ],
)
def test_a_report_of_a_newer_version_is_not_shown_and_its_bytes_are_still_compared(
    change: Callable[[dict[str, Any]], object], tmp_path: Path
) -> None:
    """Not broken by its schema; but these bytes are not those that the site signed, and that is broken."""
    document = json.loads((REPORTS[-1] / JSON).read_text("utf-8"))
    change(document)
    content = json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"
    with pytest.raises(NewerReport, match="newer version"):
        read_report(content)
    (tmp_path / JSON).write_bytes(content)
    parts = {part.name: part.state for part in verify_report(tmp_path).parts}
    assert parts["schema"] is State.NOT_SHOWN and parts["signature"] is State.NOT_SHOWN
    shutil.copy(REPORTS[-1] / ENVELOPE, tmp_path)
    parts = {part.name: part.state for part in verify_report(tmp_path).parts}
    assert parts["schema"] is State.NOT_SHOWN and parts["signature"] is State.BROKEN


def test_a_report_that_is_too_large_or_too_deep_is_one_sentence(tmp_path: Path) -> None:
    """More than 100 MB, and nested 10,000 deep, as a whole and within a record of the evidence."""
    with open(tmp_path / JSON, "wb") as file:
        file.truncate(101 << 20)
    with pytest.raises(ReportError, match="no report to read"):
        verify_report(tmp_path)
    with pytest.raises(ReportError, match="at most"):
        read_report(bytes(MAX_REPORT + 1))
    deep = "[" * 10_000 + "]" * 10_000
    with pytest.raises(ReportError, match="no report"):
        read_report(deep.encode())
    document = json.loads((REPORTS[0] / JSON).read_text("utf-8"))
    document["evidence"]["log"]["entries"][0]["record"]["dp_event"] = "DEEP"
    content = json.dumps(document, indent=1).replace('"DEEP"', deep).encode()
    with pytest.raises(ReportError):
        read_report(content)
    (tmp_path / JSON).write_bytes(content)
    assert verify_report(tmp_path).state is State.BROKEN


def test_a_proof_of_a_newer_format_is_called_so() -> None:
    """A bundle whose name of the format has a higher number; any other name is none."""
    bundle = json.loads((GOLDEN / "formats-1" / "log" / "proof.json").read_text())
    key = VerifierKey.parse(bundle["keys"][0])
    with pytest.raises(NewerFormat, match="the proof was written by a newer version"):
        check(json.dumps(bundle | {"format": "medfedvqa audit proof 2"}).encode(), [key])
    with pytest.raises(NoteError):
        check(json.dumps(bundle | {"format": "medfedvqa audit proof 0"}).encode(), [key])


def test_a_joined_report_is_compared_by_its_figures() -> None:
    """Not signed, so that a changed sentence is not shown to be anybody's; a changed figure is broken, a higher number
    of the format is a newer version."""
    content = (GOLDEN / "formats-0" / "joined.json").read_bytes()
    made = Joined.model_validate_json(content)
    assert verify_joined(content, made).state is State.SHOWN
    for old, new, state in (
        (b"At none of these", b"At each of these", State.NOT_SHOWN),
        (b'"nbytes": 49260', b'"nbytes": 49261', State.BROKEN),
        (b"joined-privacy-reports/1", b"joined-privacy-reports/2", State.NOT_SHOWN),
        (b"joined-privacy-reports/1", b"joined-privacy-reports/0", State.BROKEN),
        (b'"job"', b'"jab"', State.BROKEN),
    ):
        assert old in content
        assert verify_joined(content.replace(old, new), made).state is state, new


def test_figures_of_reports_are_alike_to_the_last_digits_only() -> None:
    """What machines differ by is no difference; what a person could change is one."""
    assert same(1.0, 1.0 + 1e-9) and not same(1.0, 1.001)


def test_every_field_of_an_entry_is_in_the_grammar_once() -> None:
    """Both readers and the writer take the fields from the class."""
    from dataclasses import fields

    from audits.entry import GRAMMARS

    assert set(GRAMMARS[FORMAT].forms) == {one.name for one in fields(Entry)}
    assert set(GRAMMARS[FORMAT].forms) - set(GRAMMARS[0].forms) == {"format"}
