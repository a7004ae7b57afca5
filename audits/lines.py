"""Lines of a log, checked fast: against a pattern of the canonical form, and by the slow way where that does not fit.

The pattern admits nothing that `parse_line` refuses; what it does not know (escapes, large numbers) goes there. Values
are kept as the canonical JSON that stands in the line.
"""

import hashlib
import json
import re
from typing import Any, NamedTuple

from audits.exchange import canonical
from audits.log import parse_line

RELEASE, RECEIVE, OPEN, CLOSE, WIRE = b'"release"', b'"receive"', b'"open"', b'"close"', b'"wire"'
EXPIRED, FINDING = b'"expired"', b'"finding"'
SENT, ACCEPTED, REFUSED = b'"sent"', b'"accepted"', b'"refused"'


class Line(NamedTuple):
    """What the verifier needs of an entry; bytes are canonical JSON."""

    seq: int
    prev_hash: str
    leaf_hash: str
    event: bytes
    outcome: bytes
    job: bytes
    round: bytes
    task: bytes
    peer: bytes
    direction: bytes
    nbytes: bytes
    site: bytes
    reason: bytes
    tensors: bytes
    wire: bytes | None


_TEXT = rb'"[^"\\\x00-\x1f]*+"'
_WHOLE = rb"(?:0|-?[1-9][0-9]{0,17})"
_ANY = rb"(?:null|" + _TEXT + rb"|" + _WHOLE + rb")"
_PART = rb"(?:null|\{.*?\})"
_FLOAT = rb"(?:null|[-+.0-9e]+)"
_HEX = rb'"([0-9a-f]{64})"'
_TENSOR = (
    rb'\{"dtype":%(t)s,"kind":%(t)s,"name":%(t)s,"nbytes":%(n)s,"protection":%(t)s,"sha256":(?:null|%(t)s),'
    rb'"shape":\[(?:%(n)s(?:,%(n)s)*+)?\]\}' % {b"t": _TEXT, b"n": _WHOLE}
)
_TENSORS = rb"\[(?:%s(?:,%s)*+)?\]" % (_TENSOR, _TENSOR)
_FORMS = {
    "actor": _ANY, "code_digest": _ANY, "code_version": _ANY, "direction": _ANY, "dp_event": _PART,
    "epsilon_after": _FLOAT, "epsilon_before": _FLOAT, "event": _TEXT, "exchange": _ANY, "job": _ANY, "leaf_hash": _HEX,
    "method": _ANY, "model_digest": _ANY, "monotonic": _WHOLE, "nbytes": _WHOLE, "outcome": _ANY, "peer": _ANY,
    "policy": _ANY, "prev_hash": _HEX, "reason": _ANY, "round": _ANY, "seq": _WHOLE, "site": _TEXT, "task": _ANY,
    "tensors": _TENSORS, "time": _TEXT,
}  # fmt: skip
_KEPT = ("seq", "event", "outcome", "job", "round", "task", "peer", "direction", "nbytes", "site", "reason", "tensors")
_PARTS = ("dp_event", "epsilon_after", "epsilon_before")


def _member(name: str, form: bytes) -> bytes:
    key = name.encode()
    if name == "leaf_hash":
        return rb'(?P<leaf>"leaf_hash":"(?P<leaf_hash>[0-9a-f]{64})",)'
    if name == "prev_hash":
        return rb'"prev_hash":"(?P<prev_hash>[0-9a-f]{64})",'
    if name in _KEPT or name in _PARTS:
        return rb'"%s":(?P<%s>%s),' % (key, key, form)
    return rb'"%s":%s,' % (key, form)


_LINE = re.compile(
    rb"\{" + b"".join(_member(*pair) for pair in _FORMS.items())[:-1] + rb'(?:,"wire":(?P<wire>\{.*\}))?\}\n', re.DOTALL
)


def read_line(line: bytes) -> Line:
    """What a line says. Raises `LogError` where `parse_line` does."""
    found = _LINE.fullmatch(line)
    if found is None or not _plain(line, found):
        return _slowly(line)
    begin, end = found.span("leaf")
    digest = hashlib.sha256(b"\0" + line[:begin])
    digest.update(line[end:-1])
    if digest.hexdigest().encode() != found["leaf_hash"]:
        return _slowly(line)  # which says what is wrong with it
    seq, *kept = found.group(*_KEPT)
    return Line._make((int(seq), found["prev_hash"].decode(), found["leaf_hash"].decode(), *kept, found["wire"]))


def _plain(line: bytes, found: "re.Match[bytes]") -> bool:
    """Whether the parts of a line that the pattern leaves open are written in the one way, too."""
    try:
        if not line.isascii():
            line.decode()
        parts = [part for part in found.group(*_PARTS, "wire") if part not in (None, b"null")]
        return all(canonical(json.loads(part)) == part for part in parts)
    except (ValueError, RecursionError):
        return False


def _slowly(line: bytes) -> Line:
    record: dict[str, Any] = parse_line(line)
    kept = (canonical(record[name]) for name in _KEPT[1:])
    wire = canonical(record["wire"]) if "wire" in record else None
    return Line._make((record["seq"], record["prev_hash"], record["leaf_hash"], *kept, wire))
