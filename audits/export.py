"""Audit logs in the forms that hospitals' archives take in: FHIR AuditEvents, JSON lines, syslog.

Every form says only what the log says. Memory does not grow with the log.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path

from audits.entry import Entry
from audits.errors import LogError
from audits.exchange import canonical
from audits.export_fhir import audit_event
from audits.export_syslog import syslog_lines
from audits.verifier import read, verify


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
