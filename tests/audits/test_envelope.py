"""Statements about files, signed: others' tools read them, and nothing of them can be changed."""

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from audits import AuditKey, NoteError
from audits.envelope import open_envelope, pae, seal_statement, statement, subjects

KEY = AuditKey("medfedvqa/audit/chest", Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
OTHER = AuditKey("medfedvqa/audit/chest", Ed25519PrivateKey.from_private_bytes(bytes(32)))
FILES = {"report.json": b"{}", "report.html": b"<p>"}


def envelope(key: AuditKey = KEY) -> dict[str, Any]:
    return seal_statement(statement(FILES, "urn:example:said/1", {"job": "j"}), key)


def test_what_is_signed_is_encoded_as_the_specification_says() -> None:
    """The example of DSSE's protocol, and lengths in bytes."""
    assert pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    assert pae("\N{LATIN SMALL LETTER E WITH ACUTE}", b"") == b"DSSEv1 2 \xc3\xa9 0 "


def test_an_envelope_is_checked_with_nothing_but_ed25519_and_the_specification() -> None:
    """As somebody does who does not have this package."""
    result = envelope()
    payload, public = base64.b64decode(result["payload"]), Ed25519PublicKey.from_public_bytes(KEY.public.raw)
    kind = result["payloadType"].encode()
    signed = b"DSSEv1 " + b" ".join([str(len(kind)).encode(), kind, str(len(payload)).encode(), payload])
    public.verify(base64.b64decode(result["signatures"][0]["sig"]), signed)
    text = json.loads(payload)
    assert (
        text["_type"] == "https://in-toto.io/Statement/v1" and result["payloadType"] == "application/vnd.in-toto+json"
    )
    assert text["subject"][0]["digest"]["sha256"] == (
        "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    ), "the SHA-256 of {}"


def test_a_statement_comes_back_to_whoever_trusts_the_key() -> None:
    """With the digests of its files."""
    text = open_envelope(json.dumps(envelope()).encode(), KEY.public)
    assert text["predicate"] == {"job": "j"} and set(subjects(text)) == set(FILES)


def test_another_key_under_the_same_name_has_not_signed() -> None:
    """The name in an envelope is a hint, the key is what counts."""
    with pytest.raises(NoteError, match="not signed"):
        open_envelope(json.dumps(envelope(OTHER)).encode(), KEY.public)


@pytest.mark.parametrize("place", ["payload", "payloadType", "sig"])
def test_an_envelope_with_one_changed_byte_is_refused(place: str) -> None:
    """In what is said, in what it is said to be, and in the signature."""
    result = envelope()
    where = result["signatures"][0] if place == "sig" else result
    text = where[place]
    where[place] = text[:20] + ("A" if text[20] != "A" else "B") + text[21:]
    with pytest.raises(NoteError):
        open_envelope(json.dumps(result).encode(), KEY.public)


def test_a_note_of_the_log_is_no_envelope_and_an_envelope_no_note() -> None:
    """One key signs both; neither signature can stand for the other."""
    result = envelope()
    raw = base64.b64decode(result["signatures"][0]["sig"])
    assert not KEY.public.verifies(raw, base64.b64decode(result["payload"]))
    note = KEY.sign("medfedvqa/audit/chest\n1\n")
    result["signatures"][0]["sig"] = base64.b64encode(note.signatures[0][1][4:]).decode()
    with pytest.raises(NoteError, match="not signed"):
        open_envelope(json.dumps(result).encode(), KEY.public)


@pytest.mark.parametrize("said", [b"", b"[]", b"{}", b'{"payload":"","payloadType":1,"signatures":[]}', b"\xff"])
def test_what_is_no_envelope_is_refused(said: bytes) -> None:
    """With the error that callers catch."""
    with pytest.raises(NoteError):
        open_envelope(said, KEY.public)


def test_a_signed_text_that_is_no_statement_is_refused() -> None:
    """The right key is not enough."""
    with pytest.raises(NoteError, match="does not contain a statement"):
        open_envelope(
            json.dumps(seal_statement({"_type": "other", "subject": [], "predicate": {}}, KEY)).encode(), KEY.public
        )
