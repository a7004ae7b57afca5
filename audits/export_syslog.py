"""An entry as syslog messages (RFC 5424), every fact of it as structured data.

An entry with tensors becomes a message of its own and one for each tensor, so that no message is longer than receivers
take (RFC 5424, 6.1: 2048 bytes); `entry` in a tensor's message is the `leaf_hash` of the entry that it belongs to.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from audits.entry import Entry, Event, Outcome
from audits.escaping import for_syslog
from audits.exchange import canonical
from audits.refusals import known_code

LOG_AUDIT = 13
WARNING, NOTICE, INFO = 4, 5, 6
ENTERPRISE = 32473  # the number that RFC 5612 sets aside for those who have none
_SEVERITIES = {
    Event.FINDING: WARNING,
    Event.RECOVERED: NOTICE,
    Event.EXPIRED: NOTICE,
    Event.EXPORTED: NOTICE,
    Event.ROTATED: NOTICE,
}
_NAME = re.compile(r"[!-~]{1,255}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{1,6}Z")


def syslog_lines(entry: Entry) -> Iterator[str]:
    """The entry's messages without line feeds: the entry, then its tensors in order."""
    facts = vars(entry)
    inside = () if _TIME.fullmatch(entry.time) else ("time",)
    omitted = {"time", "tensors"}.difference(inside)
    fields = {name: value for name, value in facts.items() if name not in omitted and value is not None}
    text = f"{entry.event} {entry.outcome}" if entry.outcome else str(entry.event)
    if code := known_code(entry.admission):
        fields["code"] = code.value
        text += f", {code}"
    yield _message(entry, str(entry.event), "entry", fields, f"{text}, {len(entry.tensors)} tensors")
    for position, tensor in enumerate(entry.tensors):
        about = {"entry": entry.leaf_hash, "seq": entry.seq, "site": entry.site, "position": position}
        tensor_fields = {name: value for name, value in vars(tensor).items() if value is not None}
        yield _message(entry, "tensor", "tensor", about | tensor_fields, f"{text}, tensor {position + 1}")


def _message(entry: Entry, message: str, element: str, facts: Mapping[str, Any], text: str) -> str:
    host = entry.site if _NAME.fullmatch(entry.site) else "-"
    params = " ".join(f'{name}="{_escape(value)}"' for name, value in facts.items())
    time = entry.time if _TIME.fullmatch(entry.time) else "-"
    header = f"<{8 * LOG_AUDIT + _severity(entry)}>1 {time} {host} medfedvqa - {message}"
    return f"{header} [{element}@{ENTERPRISE} {params}] {text}"


def _severity(entry: Entry) -> int:
    if entry.outcome is Outcome.REFUSED:
        return WARNING
    return _SEVERITIES.get(entry.event, INFO)


def _escape(value: Any) -> str:
    """A parameter's value, text as it is and anything else as JSON."""
    return for_syslog(value if isinstance(value, str) else canonical(value).decode())
