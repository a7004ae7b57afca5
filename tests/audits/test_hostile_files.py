"""What a verifier is given to read may be no file at all, or one without end."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hostile import KINDS, alone, put
from small_logs import made

from audits.bounded_files import open_plain, read_bounded

PLACES = (
    "audit/log.jsonl",
    "audit/log-000000.jsonl",
    "audit/checkpoints",
    "audit/keys",
    "audit/tree",
    "audit/tlog/checkpoint",
    "audit/tlog/tile/entries/000.p/7",
    "audit/wire/0123456789abcdef.00000000",
    "head/keys",
    "head/witnessed",
    "head/receipts/log.jsonl",
    "notes",
)
"""In the place of what the readers below are pointed at."""
_READ = """
import json, sys
from collections.abc import Callable
from pathlib import Path
from audits import AuditError, check_site, examine, find_logs, verify
from audits.entry_proof import prove
from audits.excerpt import quote
from audits.export import ExportFormat, export_logs
from audits.external_evidence import ExternalEvidence
from audits.verifier import describe, totals
from audits.ui.index import Index

def judged(place):
    notes = [place / "notes"] if (place / "notes").exists() else []
    found = examine(place / "audit", "chest", [place / "head", *notes], network=False)
    return [(part.state, part.said) for _, verdict in found.verdicts() for part in verdict.parts]

READERS = {
    "examine": judged,
    "verify": lambda place: verify(place / "audit").reason,
    "describe": lambda place: sum(1 for _ in describe(place / "audit")),
    "totals": lambda place: totals(place / "audit").entries,
    "check_site": lambda place: check_site(place / "audit", "chest"),
    "find_logs": lambda place: len(find_logs(place / "audit")),
    "export": lambda place: export_logs({"chest": place / "audit"}, ExportFormat.JSONL, place / "out.jsonl"),
    "prove": lambda place: prove(place / "audit", 3)["format"],
    "quote": lambda place: len(quote(place / "audit", "chest", bool, ExternalEvidence.gather([], place)).entries),
    "index": lambda place: Index({"chest": place / "audit"}).refresh(),
}
for line in Path(sys.argv[1]).read_text().splitlines():
    found = {}
    for name, read in READERS.items():
        try:
            found[name] = [True, read(Path(line))]
        except AuditError as error:
            found[name] = [False, str(error)]
    print(json.dumps([line, found]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """By place and kind what each reader says, in one process of bounded memory."""
    folder = tmp_path_factory.mktemp("hostile")
    original = made(folder / "original")
    cases = {}
    for place in PLACES:
        for kind in KINDS:
            copy = folder / f"case-{len(cases)}"
            shutil.copytree(original, copy)
            (copy / place).parent.mkdir(exist_ok=True, parents=True)
            put(copy / place, kind)
            cases[str(copy)] = place, kind
    (folder / "cases").write_text("\n".join(cases))
    ran = alone(_READ, folder / "cases")
    assert ran.returncode == 0, ran.stderr[-2000:]
    return {cases[name]: result for name, result in map(json.loads, ran.stdout.splitlines())}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_plain_file_or_has_no_end_gives_a_sentence(
    answers: dict[tuple[str, str], dict[str, Any]], place: str, kind: str
) -> None:
    """Each reader ends with a result or a sentence without a path, in bounded memory, and never waits."""
    result = answers[place, kind]
    for whole, record in result.values():
        assert whole or (isinstance(record, str) and "/" not in record and record[-1] != "\n")
    whole, parts = result["examine"]
    if place in ("audit/log.jsonl", "audit/log-000000.jsonl", "audit/checkpoints", "audit/keys"):
        assert not whole or "broken" in {state for state, _ in parts}
    if place == "notes" and kind != "folder":
        assert not whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_bounded_read_takes_plain_files_only(tmp_path: Path, kind: str) -> None:
    """Links to plain files too; of one that is too long not a byte, also where its stated size is 0."""
    put(tmp_path / "hostile", kind)
    with pytest.raises(OSError, match="plain file|more than the 10 bytes"):
        read_bounded(tmp_path / "hostile", 10)
    if kind != "sparse":
        with pytest.raises(OSError, match="plain file"):
            open_plain(tmp_path / "hostile")
    (tmp_path / "plain").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    assert read_bounded(tmp_path / "link", 10) == b"0123456789"
    with pytest.raises(OSError, match="more than the 9 bytes"):
        read_bounded(tmp_path / "plain", 9)
    with pytest.raises(OSError, match="more than the 9 bytes"):
        read_bounded(Path("/proc/self/status"), 9)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError):
        read_bounded(tmp_path / "plain", 9)
    assert set(os.listdir("/proc/self/fd")) <= before
