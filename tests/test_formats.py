"""What was written once is read for six years: golden files of every format, later formats, and files that are none.

`tests/golden/make.py` wrote the golden files; they are never written again.
"""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from golden_files import GOLDEN, NUMBERS, REPORTS, lines_of, put

from audits import Checkpoint, VerdictState, VerifierKey, examine, read, verify
from audits.checkpoint import CHECKPOINTS, SUCCESSIONS, NoteFile, read_successions
from audits.entry import FORMAT, Entry, read_line
from audits.entry_proof import check
from audits.exchange import canonical
from audits.sharing import sharing_of
from audits.witness import KEYS, read_keys
from medfedvqa.backup.back_up import BackupSecret
from medfedvqa.backup.restore import restore
from medfedvqa.federation.site_config import load_site_config
from medfedvqa.federation.site_state import StateFile
from medfedvqa.report.collect import _read, _run
from privacy import Ledger
from privacy.ledger_journal import LedgerError, read_export
from privacy.ledger_replay import Book
from privacy.report import JoinedReport, read_report, report_of, verdicts, verify_joined, verify_report
from privacy.report.figures import differences, figure_of
from privacy.report.replay import same
from privacy.report.report_files import ENVELOPE, JSON, document_bytes, indented_json

every_format = pytest.mark.parametrize("folder", [GOLDEN / f"formats-{number}" for number in NUMBERS], ids=str)
IDENTITY = "AGE-SECRET-KEY-134FCZGVRQALU3NLYVNMMNMYQH0H4J6ECZPRHVUU5ZR9WJTZJCRUQ09KRVC"
SITES = ("abdomen", "chest", "head")
FLOAT = re.compile(rb"\d\.\d{9,}")
"""The last digit of one may change without changing the number that is read."""


@every_format
def test_a_golden_log_verifies_with_its_checkpoints_keys_and_proof(folder: Path) -> None:
    """Chain, tree, signature, cosignature and the bundle for one entry; nothing is broken, and nothing called newer."""
    found = examine(folder / "log", "chest", network=False)
    parts = {part.name: part.state for _, verdict in found.verdicts() for part in verdict.parts}
    assert {parts[name] for name in ("chain", "tree", "signature", "tail")} == {VerdictState.SHOWN}
    assert (
        VerdictState.BROKEN not in parts.values()
        and "format" not in parts
        and parts["cosigned times"] is not VerdictState.BROKEN
    )
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


every_report = pytest.mark.parametrize("folder", REPORTS, ids=lambda folder: folder.name)


@every_report
def test_a_golden_report_verifies(folder: Path) -> None:
    """Its signature, proofs and figures; other code made its sentences, which are not compared.

    The epsilon of the first is one of a version whose noise holds in exact arithmetic only, and it says that.
    """
    key = VerifierKey.parse((folder / "chest.key").read_text().strip())
    found = verify_report(folder, key, code_digest="0" * 64)
    parts = {part.name: part.state for part in found.parts}
    for name in ("schema", "key", "signature", "proofs", "figures", "all of it"):
        assert parts[name] is VerdictState.SHOWN, name
    (code,) = (part for part in found.parts if part.name == "code")
    withdrawn = "hold in exact arithmetic only" in code.said
    assert withdrawn is (folder == REPORTS[0]) and code.state is not VerdictState.BROKEN
    assert parts["wording"] is VerdictState.NOT_COMPARED and VerdictState.BROKEN not in parts.values()


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
    made = report_of(report.evidence).rows
    figures = {row: value for row, value in report.rows.items() if not figure_of(row).wording}
    assert len(figures) > 300 and not list(differences(report.rows, made, report.lacks))
    for row, value in figures.items():
        other = tuple(map(flipped, value)) or ("x",) if isinstance(value, tuple) else flipped(value)
        assert list(differences({**report.rows, row: other}, made, report.lacks)) == [row]
        del (fewer := dict(report.rows))[row]
        assert list(differences(fewer, made, report.lacks)) == [row]
    identity = report.rows["identity.report"]
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
    """Through the verifier, with the file's own signature beside it: every 23rd leaf, wording included; of the
    rows, which repeat units and sources, fewer."""
    key = VerifierKey.parse((folder / "chest.key").read_text().strip())
    document = json.loads((folder / JSON).read_text("utf-8"))
    shutil.copy(folder / ENVELOPE, tmp_path)
    paths = list(leaves(document))
    for path in paths[::23] if "sections" in document else paths[1::223]:
        changed = edit(document, path)
        content = (
            indented_json(changed) if "sections" in changed else document_bytes(changed["rows"], changed["evidence"])
        )
        (tmp_path / JSON).write_bytes(content)
        assert verify_report(tmp_path, key).state is VerdictState.BROKEN, path


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
    rules = tuple(rule._replace(statement=f"{rule.statement} (reworded)", sections="Z") for rule in verdicts.listed())
    monkeypatch.setattr("privacy.report.verdicts.listed", lambda: rules)
    parts = {part.name: part.state for part in verify_report(folder, key, code_digest="0" * 64).parts}
    assert parts["figures"] is VerdictState.SHOWN and parts["wording"] is VerdictState.NOT_COMPARED
    parts = {part.name: part.state for part in verify_report(folder, key, code_digest=digest).parts}
    assert parts["figures"] is VerdictState.SHOWN and parts["wording"] is VerdictState.BROKEN


def test_a_joined_report_is_compared_by_its_figures() -> None:
    """Not signed, so that a changed sentence is not shown to be anybody's; a changed figure is broken, a higher number
    of the format is a newer version."""
    content = (GOLDEN / "formats-1" / "joined.json").read_bytes()
    made = JoinedReport.read(content)
    assert verify_joined(content, made).state is VerdictState.SHOWN
    for old, new, state in (
        (b"At none of these", b"At each of these", VerdictState.NOT_SHOWN),
        (b'"nbytes": 49260', b'"nbytes": 49261', VerdictState.BROKEN),
        (b"joined-privacy-reports/1", b"joined-privacy-reports/2", VerdictState.NOT_SHOWN),
        (b"joined-privacy-reports/1", b"joined-privacy-reports/0", VerdictState.BROKEN),
        (b'"job"', b'"jab"', VerdictState.BROKEN),
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

    assert set(GRAMMARS[FORMAT].checks) == {one.name for one in fields(Entry)}


def test_a_golden_backup_restores_a_site(tmp_path: Path) -> None:
    """Into a folder of the site's name: its log, its ledger with the charge, its settings."""
    done = restore(GOLDEN / "formats-1" / "backup", tmp_path / "chest", BackupSecret("key", IDENTITY))
    assert "audit" in done.placed and "ledger" in done.placed and not done.kept
    assert verify(tmp_path / "chest" / "audit").ok
    with closing(Ledger(tmp_path / "chest" / "ledger", "chest")) as ledger:
        assert ledger.charge_of("job-1", "train", 1) is not None
    assert load_site_config(tmp_path / "chest" / "site.yml", "chest").data.organ == "chest"


def test_a_golden_succession_of_keys_holds() -> None:
    """Both keys have signed it."""
    (succession,) = read_successions(GOLDEN / "formats-1" / SUCCESSIONS)
    assert succession.size == 7 and succession.old.name == succession.new.name == "medfedvqa/audit/chest"
