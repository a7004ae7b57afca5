"""An entry as a FHIR R4 (4.0.1) AuditEvent.

The resource's id is the entry's hash, so that it leads back to the log and a second import changes nothing. What FHIR
has no element for stands in `entity.detail`, under the name that it has in the log.
"""

from collections.abc import Mapping
from typing import Any

from audits.entry import Entry, Event, Outcome, TensorRecord
from audits.escaping import for_fhir
from audits.exchange import canonical
from audits.refusals import known_code

DICOM = "http://dicom.nema.org/resources/ontology/DCM"
ENTITY_TYPES = "http://terminology.hl7.org/CodeSystem/audit-entity-type"
ENTITY_ROLES = "http://terminology.hl7.org/CodeSystem/object-role"
URN = "urn:medfedvqa:"
"""Begins the project's own systems: `event`, `refusal` (codes); `site`, `peer`, `actor`, `job`, `entry` (names)."""

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
    """The entry as an AuditEvent, with every fact of the entry in one place each."""
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
    """`detail` of an entity: text, or anything else as JSON; nothing for what does not apply."""
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
