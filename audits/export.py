"""Exports audit logs in formats that hospitals' archives accept: FHIR AuditEvents, JSON lines, syslog.

Every format holds only the facts in the log. Memory does not grow with the log.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from audits.entry import Entry, Event, Outcome, TensorRecord
from audits.errors import LogError, known_code
from audits.escaping import for_fhir, for_syslog
from audits.exchange import canonical
from audits.verifier import read, verify

# An entry as a FHIR R4 (4.0.1) AuditEvent.
#
# The resource's id is the entry's hash, so that it leads back to the log and a second import changes nothing. Facts for
# which FHIR has no element are in `entity.detail`, under their names in the log.

DICOM = "http://dicom.nema.org/resources/ontology/DCM"
ENTITY_TYPES = "http://terminology.hl7.org/CodeSystem/audit-entity-type"
ENTITY_ROLES = "http://terminology.hl7.org/CodeSystem/object-role"
URN = "urn:medfedvqa:"
"""Prefix of the project's own systems: `event`, `refusal` (codes); `site`, `peer`, `actor`, `job`, `entry` (names)."""

Json = dict[str, Any]


def _coding(system: str, code: str, display: str) -> Json:
    return {"system": system, "code": code, "display": display}


_APPLICATION = _coding(DICOM, "110100", "Application Activity")
_TYPES: Mapping[Event, tuple[Json, str]] = {
    Event.RELEASE: (_coding(DICOM, "110106", "Export"), "R"),
    Event.ROTATED: (_coding(DICOM, "110127", "Security Configuration"), "U"),
    Event.EXPORTED: (_coding(DICOM, "110106", "Export"), "R"),
    Event.RECEIVE: (_coding(DICOM, "110107", "Import"), "C"),
    Event.FINDING: (_coding(DICOM, "110113", "Security Alert"), "E"),
    Event.REFUSAL: (_coding(DICOM, "110113", "Security Alert"), "E"),
}
_SUBTYPES: Mapping[Event, Json] = {
    Event.OPEN: _coding(DICOM, "110120", "Application Start"),
    Event.CLOSE: _coding(DICOM, "110121", "Application Stop"),
}
_SOURCE = _coding(DICOM, "110153", "Source Role ID")
_DESTINATION = _coding(DICOM, "110152", "Destination Role ID")
_PROCESS = _coding(DICOM, "110150", "Application")
_OTHER = _coding(ENTITY_TYPES, "4", "Other")
_OBJECT = _coding(ENTITY_TYPES, "2", "System Object")
_JOB = _coding(ENTITY_ROLES, "20", "Job")

_OF_JOB = ("method", "round", "task", "exchange", "code_version", "code_digest", "model_digest")
_ELSEWHERE = frozenset(
    ("leaf_hash", "time", "site", "event", "actor", "job", "peer", "tensors", "policy", "reason", *_OF_JOB)
)


def audit_event(entry: Entry) -> Json:
    """The entry as an AuditEvent, which holds each fact of the entry once."""
    kind, action = _TYPES.get(entry.event, (_APPLICATION, "E"))
    subtypes = [{"system": URN + "event", "code": str(entry.event)}]
    if entry.event in _SUBTYPES:
        subtypes.append(_SUBTYPES[entry.event])
    if code := known_code(entry.admission):
        subtypes.append(_coding(URN + "refusal", code.value, code.sentence))
    event = {
        "resourceType": "AuditEvent",
        "id": entry.leaf_hash,
        "type": kind,
        "subtype": subtypes,
        "action": action,
        "recorded": for_fhir(entry.time),
        "outcome": "4" if entry.outcome is Outcome.REFUSED else "0",
        "agent": _agents(entry),
        "source": {"observer": _reference("site", entry.site)},
        "entity": _entities(entry),
    }
    return event | {"outcomeDesc": for_fhir(entry.reason)} if entry.reason else event


def _agents(entry: Entry) -> list[Json]:
    """The site, who runs the job, and the other end of the message."""
    site_role, peer_role = {"out": (_SOURCE, _DESTINATION), "in": (_DESTINATION, _SOURCE)}.get(
        entry.direction or "", (_PROCESS, _PROCESS)
    )
    site = {"type": {"coding": [site_role]}, "who": _reference("site", entry.site), "requestor": False}
    if entry.policy:
        site["policy"] = [f"{URN}policy:{for_fhir(entry.policy)}"]
    agents = [site]
    if entry.actor:
        agents.append({"who": _reference("actor", entry.actor), "requestor": True})
    if entry.peer:
        agents.append({"type": {"coding": [peer_role]}, "who": _reference("peer", entry.peer), "requestor": False})
    return agents


def _entities(entry: Entry) -> list[Json]:
    facts = vars(entry)
    log_entry = {"what": _identifier("entry", entry.leaf_hash), "type": _OTHER, "name": "audit log entry"}
    entities = [log_entry | _details({name: facts[name] for name in facts if name not in _ELSEWHERE})]
    if entry.job:
        job = {"what": _identifier("job", entry.job), "type": _OTHER, "role": _JOB, "name": "job"}
        entities.append(job | _details({name: facts[name] for name in _OF_JOB}))
    return entities + [_tensor(tensor) for tensor in entry.tensors]


def _tensor(tensor: TensorRecord) -> Json:
    facts = {name: value for name, value in vars(tensor).items() if name != "name"}
    return {"type": _OBJECT, "name": for_fhir(tensor.name)} | _details(facts)


def _details(facts: Mapping[str, Any]) -> Json:
    """An entity's `detail`: text as it is, other values as JSON, without empty ones."""
    details = [
        {"type": name, "valueString": for_fhir(str(value) if isinstance(value, str) else canonical(value).decode())}
        for name, value in facts.items()
        if value not in (None, "")
    ]
    return {"detail": details} if details else {}


def _identifier(what: str, value: str) -> Json:
    return {"identifier": {"system": URN + what, "value": for_fhir(value)}}


def _reference(what: str, value: str) -> Json:
    return _identifier(what, value) | {"display": for_fhir(value)}


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
    """The log's own records, from which a reader can recompute the hashes."""
    SYSLOG = "syslog"
    """RFC 5424, one message for the entry and one for each of its tensors."""


def export_logs(logs: Mapping[str, Path], form: ExportFormat, out: Path, since: datetime | None = None) -> int:
    """Writes the entries of the logs (site: folder), site by site, into the new file `out`; returns their number.

    `since`: leaves out entries that are dated earlier; one without a readable date is kept.

    Raises `LogError` if a log does not hold, cannot be read, or changes meanwhile, or if `out` is there
    already or cannot be written; then there is no file.
    """
    verified = verified_entries(logs)
    draft = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with open(draft, "xb", opener=_private) as file:
            count = 0
            for entries in verified:
                for entry in filter(partial(_is_since, since), entries):
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


def verified_entries(logs: Mapping[str, Path]) -> list[Iterator[Entry]]:
    """The entries of each log (site: folder), after all logs were verified. Raises `LogError` if one does not hold."""
    ends = {folder: _end(site, folder) for site, folder in logs.items()}
    return [_until(folder, end) for folder, end in ends.items()]


def _end(site: str, folder: Path) -> int:
    """One more than the last entry's number. Raises `LogError` if the log's chain is broken."""
    verdict = verify(folder)
    if not verdict.ok:
        raise LogError(
            f"nothing was exported: the log of {site} breaks at entry {verdict.first_bad}; see medfedvqa audit verify"
        )
    return verdict.entries


def _until(folder: Path, end: int) -> Iterator[Entry]:
    """The entries below this number: in a growing log, only those that were verified."""
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
