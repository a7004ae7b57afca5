"""Audit logs in the forms that hospitals' archives take in: FHIR AuditEvents, JSON lines, syslog.

Every form says only what the log says. Memory does not grow with the log.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from audits.entry import Entry, Event, Outcome
from audits.errors import LogError
from audits.escaping import for_syslog
from audits.exchange import canonical
from audits.export_fhir import audit_event
from audits.refusals import known_code
from audits.verifier import read, verify

# An entry as syslog messages (RFC 5424), every fact of it as structured data.
#
# An entry with tensors becomes a message of its own and one for each tensor, so that no message is longer than
# receivers take (RFC 5424, 6.1: 2048 bytes); `entry` in a tensor's message is the `leaf_hash` of the entry that it
# belongs to.

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


class ExportFormat(StrEnum):
    """How entries are written, one line or more for each."""

    FHIR = "fhir"
    """FHIR R4 AuditEvent, one resource a line (NDJSON, as FHIR's bulk interfaces take it)."""
    JSONL = "jsonl"
    """The log's own records: whoever receives one can compute its hash again."""
    SYSLOG = "syslog"
    """RFC 5424, one message for the entry and one for each of its tensors."""


def export_logs(logs: Mapping[str, Path], form: ExportFormat, out: Path, since: datetime | None = None) -> int:
    """Writes the entries of the logs (site: folder), site by site, into the new file `out`; returns their number.

    `since`: leaves out entries that are dated earlier; one without a readable date is kept.

    Raises `LogError` if a log does not hold, cannot be read, or changes meanwhile, or if `out` is there
    already or cannot be written; then there is no file.
    """
    ends = {folder: _end(site, folder) for site, folder in logs.items()}
    draft = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with open(draft, "xb", opener=_private) as file:
            count = 0
            for folder, end in ends.items():
                for entry in filter(partial(_is_since, since), _until(folder, end)):
                    file.writelines(line + b"\n" for line in _WRITERS[form](entry))
                    count += 1
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, out)  # unlike a rename, never replaces a file
    except FileExistsError:
        raise LogError("the file to export into exists already: name a new one") from None
    except OSError as error:
        raise LogError(f"the export cannot be written ({error.strerror}): name a file in a writable folder") from None
    finally:
        draft.unlink(missing_ok=True)
    return count


def _end(site: str, folder: Path) -> int:
    """The number after that of the last entry of a log that holds."""
    verdict = verify(folder)
    if not verdict.ok:
        raise LogError(f"nothing was exported: the log of {site} breaks at entry {verdict.first_bad}; have it verified")
    return verdict.entries


def _until(folder: Path, end: int) -> Iterator[Entry]:
    """The entries before the one of this number: of a log that grows, those that were verified."""
    for entry in read(folder):
        if entry.seq >= end:
            return
        yield entry


def _is_since(since: datetime | None, entry: Entry) -> bool:
    try:
        return since is None or datetime.fromisoformat(entry.time) >= since
    except (ValueError, TypeError):
        return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o640)


_Writer = Callable[[Entry], Iterable[bytes]]
_WRITERS: Mapping[ExportFormat, _Writer] = {
    ExportFormat.FHIR: lambda entry: (canonical(audit_event(entry)),),
    ExportFormat.JSONL: lambda entry: (canonical(entry.record()),),
    ExportFormat.SYSLOG: lambda entry: (line.encode() for line in syslog_lines(entry)),
}
