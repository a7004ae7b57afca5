"""Reading logs: does the chain hold, and what crossed the border."""

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import peak
from small_logs import BLANK, made, sealed
from tiers import examples

from audits import (
    AuditLog,
    Exchange,
    Gate,
    JobContext,
    Kind,
    LogError,
    NewerFormat,
    ReleaseRefused,
    SitePolicy,
    TaskSpec,
    TensorSpec,
    find_logs,
    read,
    verify,
)
from audits.verifier import TensorTotal, Walk, describe, totals


def chain(entries: int) -> list[bytes]:
    lines: list[bytes] = []
    before = "0" * 64
    for number in range(entries):
        place = {"seq": number, "prev_hash": before, "round": number, "monotonic": 1000 + number}
        lines.append(sealed(BLANK | place))
        before = json.loads(lines[-1])["leaf_hash"]
    return lines


def stored(folder: Path, lines: list[bytes]) -> Path:
    (folder / "log.jsonl").write_bytes(b"".join(lines))
    return folder


GOLDEN_HEAD = "15315eedeb67a3da5a0ee240886e07c78ed1eb19af766375706dbeec5d65bf1c"


def test_a_log_of_format_1_verifies_for_ever(tmp_path: Path) -> None:
    """The hash over three fixed entries is fixed: later versions must read logs of earlier ones."""
    verdict = verify(stored(tmp_path, chain(3)))
    assert verdict.ok and verdict.entries == 3 and verdict.torn_bytes == 0
    assert verdict.head == json.loads(chain(3)[-1])["leaf_hash"] == GOLDEN_HEAD


def test_an_empty_log_holds(tmp_path: Path) -> None:
    """A site that has done nothing has nothing to hide."""
    assert verify(stored(tmp_path, [])).ok
    assert totals(tmp_path).entries == 0


def changed(line: bytes, **facts: Any) -> bytes:
    return sealed(json.loads(line) | facts)


TAMPERED: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int]] = {
    "changed": (lambda lines: [*lines[:2], lines[2].replace(b'"round":2', b'"round":3'), *lines[3:]], 2),
    "changed and hashed anew": (lambda lines: [*lines[:2], changed(lines[2], round=9), *lines[3:]], 3),
    "first deleted": (lambda lines: lines[1:], 0),
    "deleted": (lambda lines: lines[:2] + lines[3:], 2),
    "deleted and numbered anew": (lambda lines: [*lines[:2], changed(lines[3], seq=2), *lines[4:]], 2),
    "inserted copy": (lambda lines: [*lines[:3], lines[2], *lines[3:]], 3),
    "inserted entry": (lambda lines: [*lines[:2], changed(lines[2], round=9), *lines[2:]], 3),
    "inserted blank line": (lambda lines: [*lines[:1], b"\n", *lines[1:]], 1),
    "reordered": (lambda lines: [*lines[:1], lines[2], lines[1], *lines[3:]], 1),
    "broken number": (lambda lines: [*lines[:4], changed(lines[4], seq=7)], 4),
    "number of another type": (lambda lines: [*lines[:4], changed(lines[4], seq="4")], 4),
    "field removed": (lambda lines: [sealed({"seq": 0, "prev_hash": "0" * 64})], 0),
    "field added": (lambda lines: [changed(lines[0], note=""), *lines[1:]], 1),
    "no object": (lambda lines: [b"[1]\n"], 0),
    "not UTF-8": (lambda lines: [*lines, b"\xff\n"], 5),
    "nested beyond reason": (lambda lines: [b"[" * 100_000 + b"\n"], 0),
    "hash that is not text": (lambda lines: [lines[0].replace(b'"leaf_hash":"', b'"leaf_hash":NaN,"x":"')], 0),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_tampering_is_found_where_it_begins(tmp_path: Path, case: str) -> None:
    """Changed, removed, added and moved entries are found, with the position of the first that does not hold."""
    tamper, position = TAMPERED[case]
    verdict = verify(stored(tmp_path, tamper(chain(5))))
    assert not verdict.ok and verdict.reason
    assert verdict.first_bad == verdict.entries == position


@pytest.mark.parametrize(
    ("written", "otherwise"),
    [
        (b'"nbytes":0', b'"nbytes":9,"nbytes":0'),
        (b'"nbytes":0', b'"nbytes": 0'),
        (b'"nbytes":0', b'"nbytes":-0'),
        (b'"chest"', b'"\\u0063hest"'),
        (b"}\n", b"}\r\n"),
        (b'"round":0,"seq":0', b'"seq":0,"round":0'),
    ],
)
def test_one_entry_can_be_written_in_one_way_only(tmp_path: Path, written: bytes, otherwise: bytes) -> None:
    """A line that says what its hash covers, but in other bytes, is refused: two readers could differ about it."""
    (line,) = chain(1)
    assert written in line and json.loads(line.replace(written, otherwise)) == json.loads(line)
    assert verify(stored(tmp_path, [line.replace(written, otherwise)])).first_bad == 0


CHAIN = b"".join(chain(4))


@given(st.integers(0, len(CHAIN) - 1), st.integers(1, 255))
@settings(max_examples=examples(200))
def test_any_single_changed_byte_is_found(offset: int, flip: int) -> None:
    """Whatever byte becomes whatever other, the verdict names its entry; a changed last line feed is a torn line."""
    changed = bytearray(CHAIN)
    changed[offset] ^= flip
    with tempfile.TemporaryDirectory() as folder:
        verdict = verify(stored(Path(folder), [bytes(changed)]))
    if offset == len(CHAIN) - 1:
        assert verdict.entries == 3 and verdict.torn_bytes
    else:
        assert verdict.first_bad == verdict.entries == CHAIN.count(b"\n", 0, offset)


@pytest.mark.parametrize("cut", [1, 100, -1])
def test_a_torn_last_line_is_reported_as_such(tmp_path: Path, cut: int) -> None:
    """What a crash leaves behind is no tampering, and is not read as an entry."""
    torn = chain(3)[2][:cut]
    verdict = verify(stored(tmp_path, [*chain(2), torn]))
    assert verdict.ok and (verdict.entries, verdict.torn_bytes) == (2, len(torn))
    assert len(list(read(tmp_path))) == 2


def test_a_log_cut_at_its_end_shows_by_its_head(tmp_path: Path) -> None:
    """The chain alone cannot show that its end is missing; a head kept elsewhere can."""
    whole, cut = verify(stored(tmp_path, chain(4))), verify(stored(tmp_path, chain(3)))
    assert cut.ok and cut.head != whole.head


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    """Ten times the entries take no more memory, give or take a few lines."""
    peaks = []
    for entries in (1, 60, 600):
        folder = stored(tmp_path, chain(entries))
        peaks.append(peak(partial(verify, folder)) + peak(partial(totals, folder)))
    assert peaks[2] < peaks[1] + 16_384


def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line longer than any entry is bad at once, terminated or not."""
    for module in ("verifier", "log_files"):
        monkeypatch.setattr(f"audits.{module}.MAX_LINE", 2000)
    for end in (b"", b"\n"):
        stored(tmp_path, [*chain(2), b"x" * 2_000_000 + end])
        assert peak(partial(verify, tmp_path)) < 1_000_000
        verdict = verify(tmp_path)
        assert (verdict.first_bad, verdict.torn_bytes) == (2, 0)
        with pytest.raises(LogError, match="entry 2"):
            list(read(tmp_path))


def test_a_missing_log_is_an_error(tmp_path: Path) -> None:
    """Nothing to verify is not the same as verified."""
    for reading in (verify, totals, lambda folder: list(describe(folder)), find_logs):
        with pytest.raises(LogError) as caught:
            reading(tmp_path)
        assert str(tmp_path) not in str(caught.value)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's output with two sites; each releases twice, receives once and is refused once."""
    prompt = TensorSpec("prompt", (2, 3), "float32", Kind.PARAMETERS, "A prompt.")
    rows = TensorSpec("rows", (), "int64", Kind.STATISTIC, "A count.")
    exchange = Exchange("m", (TaskSpec("train", up=(prompt, rows), down=(prompt,)),))
    policy = SitePolicy(("m",), (Kind.PARAMETERS, Kind.STATISTIC))
    up = {"prompt": np.ones((2, 3), "float32"), "rows": np.array(3)}
    for site in ("chest", "head"):
        log = AuditLog(tmp_path / "sites" / site / "audit", site)
        gate = Gate(exchange, policy, log, JobContext("job", "m", "0" * 64, "1", "0" * 64))
        gate.open()
        for round in range(2):
            gate.release("train", round, up)
        gate.receive("train", 1, {"prompt": up["prompt"]})
        with pytest.raises(ReleaseRefused):
            gate.release("train", 2, {"prompt": up["prompt"]})
        log.close()
    return tmp_path


def test_totals_are_the_sums_of_what_passed(run: Path) -> None:
    """Bytes and messages per direction and per tensor; refused messages count as refused only."""
    result = totals(run / "sites" / "chest" / "audit")
    assert (result.entries, result.refused) == (5, 1)
    assert (result.messages_out, result.bytes_out) == (2, 2 * (24 + 8))
    assert (result.messages_in, result.bytes_in) == (1, 24)
    assert result.tensors == (
        TensorTotal("in", "server", "prompt", 1, 24),
        TensorTotal("out", "server", "prompt", 2, 48),
        TensorTotal("out", "server", "rows", 2, 16),
    )


def test_every_tensor_of_every_entry_is_described(run: Path) -> None:
    """One row per tensor, in order, and one for an entry without tensors."""
    rows = list(describe(run / "sites" / "head" / "audit"))
    assert [(row.entry.seq, row.tensor and row.tensor.name) for row in rows] == [
        (0, None),
        *((1, "prompt"), (1, "rows"), (2, "prompt"), (2, "rows")),
        *((3, "prompt"), (4, "rows")),
    ]
    assert {row.tensor.shape for row in rows if row.tensor} == {(2, 3), ()}


def test_descriptions_stop_where_the_log_is_damaged(run: Path) -> None:
    """Nothing is told from a line that does not hold; the error has its position."""
    path = run / "sites" / "head" / "audit" / "log.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round":1', b'"round":8', 1))
    with pytest.raises(LogError, match="entry 2"):
        list(describe(path.parent))


def test_logs_are_found_in_a_runs_output_and_in_a_sites_own_folder(run: Path) -> None:
    """By site name, whichever folder is pointed at."""
    sites = run / "sites"
    assert find_logs(run) == {"chest": sites / "chest" / "audit", "head": sites / "head" / "audit"}
    assert find_logs(sites / "head" / "audit") == {"head": sites / "head" / "audit"}


def test_an_entry_of_a_newer_format_is_not_passed_over(tmp_path: Path) -> None:
    """Reading stops there and says where."""
    made(tmp_path)
    file = tmp_path / "audit" / "log.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[2] = sealed(json.loads(lines[2]) | {"format": 99})
    file.write_bytes(b"".join(lines))
    with pytest.raises(NewerFormat, match="entry 2"):
        list(read(tmp_path / "audit"))


def test_a_log_whose_first_line_cannot_be_read_counts_from_0(tmp_path: Path) -> None:
    """Iterating says what is wrong with it, at entry 0."""
    made(tmp_path)
    file = tmp_path / "audit" / "log.jsonl"
    file.write_bytes(b"{}" + file.read_bytes())
    walk = Walk(tmp_path / "audit")
    assert walk.first_entry() == 0 and list(walk) == [] and walk.verdict().first_bad == 0
