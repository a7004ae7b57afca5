"""Lines of a log, checked fast: against a pattern of the canonical form, and by the slow way where that does not fit.

The pattern admits nothing that `parse_line` refuses; what it does not know (escapes, large numbers) goes there. Values
are kept as the canonical JSON that stands in the line.
"""

import json
import re
from hashlib import sha256
from typing import Any, NamedTuple

from audits.entry import parse_line
from audits.exchange import canonical
from audits.fields import bounded

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
    nbytes: bytes
    site: bytes
    reason: bytes
    tensors: bytes
    time: bytes
    wire: bytes | None
    expiry: bytes | None


_TEXT = rb'"[^"\\\x00-\x1f]*+"'
_WHOLE = rb"(?:0|-?[1-9][0-9]{0,17})"
_MAYBE = rb"(?:null|" + _TEXT + rb")"
_PART = rb"(?:null|\{.*?\})"
_INTEGER = rb"(?:null|" + _WHOLE + rb")"
_FLOAT = rb"(?:null|" + _WHOLE + rb"|-?[0-9]+\.[0-9]+(?:e[-+][0-9]+)?|-?[0-9]e[-+][0-9]+)"
_TENSOR = (
    rb'\{"dtype":%(t)s,"kind":%(t)s,"name":%(t)s,"nbytes":%(n)s,"protection":%(t)s,"sha256":(?:null|%(t)s),'
    rb'"shape":\[(?:%(n)s(?:,%(n)s)*+)?\]\}' % {b"t": _TEXT, b"n": _WHOLE}
)
_TENSORS = rb"\[(?:%s(?:,%s)*+)?\]" % (_TENSOR, _TENSOR)
_FORMS = {
    "code_digest": _MAYBE, "code_version": _MAYBE, "direction": _MAYBE, "dp_event": _PART,
    "epsilon_after": _FLOAT, "epsilon_before": _FLOAT, "event": _TEXT, "exchange": _MAYBE, "job": _MAYBE,
    "leaf_hash": _TEXT, "method": _MAYBE, "model_digest": _MAYBE, "monotonic": _WHOLE, "nbytes": _WHOLE,
    "outcome": _MAYBE, "peer": _MAYBE, "policy": _MAYBE, "prev_hash": _TEXT, "reason": _MAYBE, "round": _INTEGER,
    "seq": _WHOLE, "site": _TEXT, "task": _MAYBE, "tensors": _TENSORS, "time": _TEXT,
}  # fmt: skip
_KEPT = ("seq", "event", "outcome", "job", "round", "task", "peer", "nbytes", "site", "reason", "tensors", "time")
_PARTS = ("dp_event", "epsilon_after", "epsilon_before")
_BEFORE = {"code_digest": b"code", "job": b"expiry", "site": b"sharing"}
"""Optional members within the line, by the member that follows each."""


def _member(name: str, form: bytes) -> bytes:
    key = name.encode()
    if name == "leaf_hash":
        return rb'("leaf_hash":"([0-9a-f]{64})",)'
    if name == "prev_hash":
        return rb'"prev_hash":"([0-9a-f]{64})",'
    return (rb'"%s":(%s),' if name in _KEPT + _PARTS else rb'"%s":%s,') % (key, form)


# With exactly 20 groups, CPython 3.11 keeps the tuples of `groups` on a free list, which looks like a leak.
_LINE = re.compile(
    rb"\{"
    + _member("actor", _MAYBE)
    + rb'(?:"admission":(\{.*?\}),)?'
    + b"".join(
        (rb'(?:"%s":(\{.*?\}),)?' % _BEFORE[name] if name in _BEFORE else b"") + _member(name, form)
        for name, form in _FORMS.items()
    )[:-1]
    + rb'(?:,"wire":(\{.*\}))?\}\n',
    re.DOTALL,
).fullmatch
_NULLS = (None, None, b"null", b"null", b"null", None, None, None)


def read_line(line: bytes) -> Line:
    """What a line says. Raises `LogError` where `parse_line` does."""
    found = _LINE(line)
    if found is None:
        return _slowly(line)
    (
        admission, code, dp_event, after, before, event, expiry, job, _, leaf, nbytes, outcome, peer, prev,
        reason, round, seq, sharing, site, task, tensors, time, wire,
    ) = found.groups()  # fmt: skip
    parts = admission, code, dp_event, after, before, expiry, sharing, wire
    begin, end = found.span(9)
    digest = sha256(b"\0" + line[:begin] + line[end:-1]).hexdigest()
    hashed = digest == leaf.decode()
    if not (hashed and (parts == _NULLS or _canonical(parts)) and (line.isascii() or _utf8(line))):
        return _slowly(line)  # which says what is wrong with it, if anything is
    return Line(
        int(seq), prev.decode(), digest, event, outcome, job, round, task, peer, nbytes, site, reason,
        tensors, time, wire, expiry,
    )  # fmt: skip


def _canonical(parts: tuple[bytes | None, ...]) -> bool:
    """Whether the parts of a line that the pattern leaves open are written in the one way, too."""
    try:
        return all(part is None or _is_part(part) for part in parts)
    except (ValueError, RecursionError):
        return False


def _is_part(part: bytes) -> bool:
    value = json.loads(part)
    return bounded(value) and canonical(value) == part


def _utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _slowly(line: bytes) -> Line:
    record: dict[str, Any] = parse_line(line)
    kept = (canonical(record[name]) for name in _KEPT[1:])
    optional = (canonical(record[name]) if name in record else None for name in ("wire", "expiry"))
    return Line._make((record["seq"], record["prev_hash"], record["leaf_hash"], *kept, *optional))
