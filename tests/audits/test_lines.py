"""The fast reader of lines admits exactly what the definition admits."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_logs import BLANK, rehashed, sealed
from tiers import examples

from audits import LogError
from audits.entry import MOST_DEPTH, bounded, parse_any, read_line
from audits.exchange import canonical

TENSOR = {
    **{"name": "prompt", "shape": [2, 3], "dtype": "float32", "nbytes": 24, "sha256": "ab" * 32},
    **{"kind": "parameters", "protection": "none"},
}
PLACE = {"seq": 7, "prev_hash": "12" * 32, "round": 1, "monotonic": 5}
TEXTS = st.none() | st.text(st.characters(codec="utf-8"), max_size=20)
WHOLE = st.integers(-(2**63), 2**63 - 1)
NUMBERS = WHOLE | st.floats(allow_nan=False, allow_infinity=False)
PARTS = st.none() | st.dictionaries(st.text(max_size=5), NUMBERS | TEXTS | st.lists(NUMBERS, max_size=2), max_size=3)
OPTIONAL = ("wire", "admission", "code", "sharing", "expiry")
RECORDS = st.fixed_dictionaries(
    {
        "dp_event": PARTS,
        "epsilon_after": st.none() | NUMBERS,
        "reason": TEXTS,
        "job": TEXTS,
        "round": st.none() | WHOLE,
        "nbytes": st.integers(0, 2**63 - 1),
        "tensors": st.lists(
            st.sampled_from([TENSOR, TENSOR | {"sha256": None, "shape": []}, TENSOR | {"name": 'a"b\\'}])
        ),
    },
    optional=dict.fromkeys(OPTIONAL, st.dictionaries(st.text(max_size=5), NUMBERS | TEXTS, max_size=3) | st.none()),
)


def accepted(read: Any, line: bytes) -> Any:
    try:
        return read(line)
    except LogError:
        return None


def alike(line: bytes) -> bool:
    """Both readers refuse the line, or both take the same from it; whether it is an entry of a known format."""
    slow, fast = accepted(parse_any, line), accepted(read_line, line)
    assert (slow is None) == (fast is None)
    if slow is None or fast is None:
        return False
    record, newer = slow
    assert fast.newer == newer
    assert (fast.seq, fast.prev_hash, fast.leaf_hash) == (record["seq"], record["prev_hash"], record["leaf_hash"])
    if newer:
        return False
    for name in ("event", "outcome", "job", "round", "task", "peer", "nbytes", "site", "time"):
        assert getattr(fast, name) == record[name]
    assert msgspec.json.encode(fast.tensors) == canonical(record["tensors"])
    assert isinstance(fast.tensors, tuple), "a list comes from the slow reader"
    assert (fast.wire, fast.expiry) == (record.get("wire"), record.get("expiry"))
    return True


@given(RECORDS)
def test_both_readers_take_the_same_from_a_line(record: dict[str, Any]) -> None:
    """Whatever texts, numbers and tensors it holds; a `wire` of null is written nowhere."""
    line = sealed(BLANK | PLACE | record)
    written = all(record.get(name, {}) is not None for name in OPTIONAL)
    assert alike(line) == written


@given(RECORDS, st.data())
@settings(max_examples=examples(200))
def test_both_readers_refuse_the_same_lines(record: dict[str, Any], data: st.DataObject) -> None:
    """With any byte changed, left out or doubled, also where the hash is made to fit."""
    line = bytearray(sealed(BLANK | PLACE | record))
    place = data.draw(st.integers(0, len(line) - 1))
    byte = data.draw(
        st.sampled_from([b"", b'"', b"\\", b"0", b"1", b" ", b"{", b"}", b",", b"\n", b"\x00", b"\xff", b"-", b"e"])
    )
    line[place : place + data.draw(st.integers(0, 2))] = byte
    assert not alike(bytes(line)) or line == sealed(BLANK | PLACE | record)
    alike(rehashed(bytes(line)))


@pytest.mark.parametrize("byte", [*range(32), 34, 92])
def test_a_text_holds_no_byte_that_json_escapes(byte: int) -> None:
    """Where the hash is made to fit, too; the same text without it is taken."""
    line = sealed(BLANK | PLACE | {"reason": "some text"})
    assert alike(line)
    assert not alike(rehashed(line.replace(b"some text", b"some%c text" % byte)))


def test_a_line_of_a_higher_format_is_newer_to_both_readers() -> None:
    """It is no entry that this version knows, and no damage either."""
    line = rehashed(sealed(BLANK | PLACE).replace(b'"format":1,', b'"format":10,'))
    assert not alike(line) and accepted(read_line, line).newer


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_nesting_is_bounded(wrap: Callable[[Any], Any]) -> None:
    """A value of a line may be as deep as the limit and no deeper, so that no reader runs out of stack."""
    value: Any = 1
    for _ in range(MOST_DEPTH):
        value = wrap(value)
    assert bounded(value) and not bounded(wrap(value)) and not bounded([1, wrap(value)])
