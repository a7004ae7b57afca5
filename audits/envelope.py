"""Signed statements about files: in-toto statements in DSSE envelopes, which other tools check as well.

Sources: DSSE 1.0 (secure-systems-lab/dsse, protocol and envelope), in-toto Statement v1. The signature is Ed25519 by
the key that signs the site's log. The signed bytes begin with `DSSEv1`, as no note and no cosignature does.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from audits.errors import NoteError
from audits.exchange import canonical
from audits.signed_note import AuditKey, VerifierKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
MAX_ENVELOPE = 1 << 20  # bytes
_DIGEST = re.compile(r"[0-9a-f]{64}")


def pae(payload_type: str, payload: bytes) -> bytes:
    """The signed bytes: type and payload, each after its length (DSSE's pre-authentication encoding)."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def statement(files: Mapping[str, bytes], predicate_type: str, predicate: Mapping[str, Any]) -> dict[str, Any]:
    """An in-toto statement about files, given by name; it holds their SHA-256."""
    digests = ({"name": name, "digest": {"sha256": hashlib.sha256(data).hexdigest()}} for name, data in files.items())
    return {"_type": STATEMENT, "subject": list(digests), "predicateType": predicate_type, "predicate": dict(predicate)}


def seal_statement(statement_json: Mapping[str, Any], key: AuditKey) -> dict[str, Any]:
    """The envelope of a statement, signed, as plain JSON."""
    payload = canonical(statement_json)
    signature = key.signature(pae(PAYLOAD_TYPE, payload))
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": key.public.hint, "sig": base64.b64encode(signature).decode()}],
    }


def open_envelope(envelope: bytes, key: VerifierKey) -> dict[str, Any]:
    """The statement in an envelope. Raises `NoteError` unless this key has signed it, alone or with others."""
    try:
        if len(envelope) > MAX_ENVELOPE:
            raise ValueError
        parts = json.loads(envelope)
        payload = base64.b64decode(parts["payload"], validate=True)
        signed_bytes = pae(parts["payloadType"], payload)
        signatures = [base64.b64decode(raw["sig"], validate=True) for raw in parts["signatures"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
        raise NoteError("this is not a signed envelope (DSSE)") from None
    if parts["payloadType"] != PAYLOAD_TYPE or not any(key.verifies(raw, signed_bytes) for raw in signatures):
        raise NoteError("the envelope is not signed with the required key")
    try:
        content = json.loads(payload)
        if content["_type"] == STATEMENT and isinstance(content["predicate"], dict) and subjects(content):
            return dict(content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise NoteError("the envelope does not contain a statement about files (in-toto)")


def subjects(content: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256 of each file in a statement, by file name. Raises `ValueError` for a malformed name or digest."""
    digests = {subject["name"]: subject["digest"]["sha256"] for subject in content["subject"]}
    for name, digest in digests.items():
        if not isinstance(name, str) or not _DIGEST.fullmatch(digest):
            raise ValueError
        name.encode()
    return digests
