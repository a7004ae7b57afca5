"""Lines of a log, checked fast: against a pattern that is made from the grammar, and by `parse_any` where that does not
fit.

The pattern admits nothing that `parse_line` refuses; what it does not know (escapes, large numbers, newer formats) goes
there. Values are kept as the canonical JSON that stands in the line.
"""

import json
import re
from collections.abc import Callable
from hashlib import sha256
from operator import itemgetter
from typing import Any, NamedTuple

from audits.entry import ENVELOPE, FORMAT, GRAMMARS, hashed_bytes, parse_any
from audits.exchange import canonical
from audits.field_types import bounded

RELEASE, RECEIVE, OPEN, CLOSE, WIRE = b'"release"', b'"receive"', b'"open"', b'"close"', b'"wire"'
EXPIRED, FINDING = b'"expired"', b'"finding"'
SENT, ACCEPTED, REFUSED = b'"sent"', b'"accepted"', b'"refused"'


class LogLine(NamedTuple):
    """What the verifier needs of an entry; bytes are canonical JSON, `null` in an entry of a higher format number."""

    seq: int
    prev_hash: str
    leaf_hash: str
    entry: bytes
    """What the hash is over."""
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
    newer: bool = False
    """Whether the entry holds what this version does not know."""


_MEMBERS = ("event", "outcome", "job", "round", "task", "peer", "nbytes", "site", "reason", "tensors", "time")
_OPTIONAL = ("wire", "expiry")
_SPECIAL = {
    "leaf_hash": rb'(?P<leaf_member>,"leaf_hash":"(?P<leaf_hash>[0-9a-f]{64})")',
    "prev_hash": rb',"prev_hash":"(?P<prev_hash>[0-9a-f]{64})"',
}
"""Members whose values the pattern knows better than the grammar."""
_CONTROLS = bytes([*range(32), ord("\\")])
_PLAIN = bytes.maketrans(_CONTROLS, bytes(len(_CONTROLS)).replace(b"\0", b"?"))
"""Changes the bytes that the pattern reads as a part of a text, and that no text has in canonical JSON unescaped."""
_Groups = tuple[bytes | None, ...]


class _Fast:
    """The pattern of one format's lines."""

    def __init__(self, number: int) -> None:
        members = GRAMMARS[number]
        members_patterns = [self._member(name, number) for name in members.forms]
        pattern = re.compile(rb"\{" + b"".join(members_patterns).removeprefix(b",") + rb"\}\n", re.DOTALL)
        places = {name: place - 1 for name, place in pattern.groupindex.items()}
        self.match, self.leaf = pattern.fullmatch, places["leaf_member"] + 1
        self.values: Callable[[_Groups], Any] = itemgetter(
            *(places[name] for name in ("seq", "prev_hash", "leaf_hash", *_MEMBERS, *_OPTIONAL))
        )
        parts = [name for name, form in members.forms.items() if not form.exact]
        self.parts: Callable[[_Groups], _Groups] = itemgetter(*(places[name] for name in parts))
        self.empty = tuple(None if name in members.optional else b"null" for name in parts)

    def _member(self, name: str, number: int) -> bytes:
        members = GRAMMARS[number]
        form = members.forms[name]
        pattern = b"%d" % number if name == "format" else form.pattern
        if name == "seq" or name in _MEMBERS or not form.exact:
            pattern = b"(?P<%s>%s)" % (name.encode(), pattern)
        member = _SPECIAL.get(name, b',"%s":%s' % (name.encode(), pattern))
        return b"(?:%s)?" % member if name in members.optional else member


_FAST = tuple(_Fast(number) for number in sorted(GRAMMARS, reverse=True))


def read_line(line: bytes) -> LogLine:
    """What a line says, also one of a newer format. Raises `LogError` where `parse_any` does."""
    for fast in _FAST:
        if match := fast.match(line):
            groups = match.groups()
            begin, end = match.span(fast.leaf)
            entry = line[:begin] + line[end:-1]
            digest = sha256(b"\0" + entry).hexdigest()
            seq, prev, leaf, *values = fast.values(groups)
            parts = fast.parts(groups)
            sound = digest == leaf.decode() and (parts == fast.empty or _canonical(parts))
            if sound and entry.translate(_PLAIN) == entry and (line.isascii() or _utf8(line)):
                return LogLine._make((int(seq), prev.decode(), digest, entry, *values, False))
            break
    return _slowly(line)  # which says what is wrong with it, if anything is


def _canonical(parts: _Groups) -> bool:
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


def _slowly(line: bytes) -> LogLine:
    record, newer = parse_any(line)
    if record["format"] > FORMAT:
        record = {name: record[name] for name in ENVELOPE.forms}
    values = (canonical(record.get(name)) for name in _MEMBERS)
    optional = (canonical(record[name]) if name in record else None for name in _OPTIONAL)
    leaf = record["leaf_hash"]
    return LogLine._make(
        (record["seq"], record["prev_hash"], leaf, hashed_bytes(line, leaf), *values, *optional, newer)
    )
