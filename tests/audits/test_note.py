"""Signed notes, keys and the files of checkpoints."""

import base64
import hashlib
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from audits import AuditKey, NoteError, VerifierKey
from audits.checkpoint import Checkpoint, NoteFile, signed_checkpoint
from audits.signed_note import MAX_NOTE, Note
from audits.tree import EMPTY_ROOT

SEED = bytes(range(32))
NAME = "medfedvqa/audit/chest"
TEXT = "medfedvqa/audit/chest\n2\n" + base64.b64encode(bytes(32)).decode() + "\n"


@pytest.fixture(scope="module")
def key() -> AuditKey:
    return AuditKey(NAME, Ed25519PrivateKey.from_private_bytes(SEED))


def key_id(kind: int, name: str = NAME) -> bytes:
    """As the specification has it: SHA-256 over name, line feed, type and key, cut to four bytes."""
    public = Ed25519PrivateKey.from_private_bytes(SEED).public_key().public_bytes_raw()
    return hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + public).digest()[:4]


def test_a_note_is_written_as_the_specification_says(key: AuditKey) -> None:
    """Text, empty line, dash, name, key id and Ed25519 signature of the text; made here without our code."""
    signature = Ed25519PrivateKey.from_private_bytes(SEED).sign(TEXT.encode())
    line = f"— {NAME} {base64.b64encode(key_id(1) + signature).decode()}\n"
    assert str(key.sign(TEXT)) == f"{TEXT}\n{line}"
    assert key.public.signed(Note.parse(f"{TEXT}\n{line}"))
    raw = Ed25519PrivateKey.from_private_bytes(SEED).public_key().public_bytes_raw()
    assert str(key.public) == f"{NAME}+{key_id(1).hex()}+{base64.b64encode(bytes([1]) + raw).decode()}"
    assert VerifierKey.parse(str(key.public)) == key.public


def test_a_published_verifier_key_is_read() -> None:
    """The example key of the signed-note specification's reference implementation."""
    text = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
    assert str(VerifierKey.parse(text)) == text
    note = (
        "If you think cryptography is the answer to your problem,\n"
        "then you don't know what your problem is.\n\n"
        "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
    )
    assert VerifierKey.parse(text).signed(Note.parse(note))
    assert not VerifierKey.parse(text).signed(Note.parse(note.replace("answer", "anvwer")))


def test_a_cosignature_is_over_time_and_note(key: AuditKey) -> None:
    """tlog-cosignature: id of type 4, eight bytes of time, signature over header, time line and text."""
    note = key.cosign(Note(TEXT, ()), 1679315147)
    ((name, raw),) = note.signatures
    signed = f"cosignature/v1\ntime 1679315147\n{TEXT}".encode()
    expected = Ed25519PrivateKey.from_private_bytes(SEED).sign(signed)
    assert (name, raw) == (NAME, key_id(4) + (1679315147).to_bytes(8, "big") + expected)
    assert key.public.cosigned(note) == 1679315147 and not key.public.signed(note)
    later = Note(TEXT, ((NAME, raw[:4] + (1679315148).to_bytes(8, "big") + raw[12:]),))
    assert key.public.cosigned(later) is None


@given(st.integers(0, 400), st.integers(1, 255))
def test_a_note_with_any_byte_changed_is_refused(offset: int, flip: int) -> None:
    """It is no note any more, or not signed."""
    key = AuditKey(NAME, Ed25519PrivateKey.from_private_bytes(SEED))
    written = bytearray(str(key.sign(TEXT)).encode())
    written[offset % len(written)] ^= flip
    try:
        note = Note.parse(written.decode())
    except (NoteError, UnicodeDecodeError):
        return
    assert not key.public.signed(note)


def test_a_signature_is_written_in_one_way(key: AuditKey) -> None:
    """With a dash, and with the canonical Base64 of a key id and of more bytes: else a note would have many forms."""
    raw = key.sign(TEXT).signatures[0][1]
    encoded = base64.b64encode(raw).decode()
    other = encoded[:-2] + chr(ord(encoded[-2]) + 1) + "="
    assert base64.b64decode(other, validate=True) == raw and Note.parse(f"{TEXT}\n— {NAME} {encoded}\n")
    for line in (f"{NAME} {encoded}", f"— {NAME} {other}", f"— {NAME} {base64.b64encode(raw[:4]).decode()}"):
        with pytest.raises(NoteError):
            Note.parse(f"{TEXT}\n{line}\n")


@pytest.mark.parametrize(
    "text",
    [
        "a\n1\n",
        "a\n01\n" + base64.b64encode(bytes(32)).decode() + "\n",
        "a\n-1\n" + base64.b64encode(bytes(32)).decode() + "\n",
        "a\n1\n" + base64.b64encode(bytes(31)).decode() + "\n",
        "a\n1\n" + base64.b64encode(bytes(32)).decode(),
        "a\n1\n" + base64.b64encode(bytes(32)).decode() + "\n\nx\n",
        "\n1\n" + base64.b64encode(bytes(32)).decode() + "\n",
        "a\n" + "9" * 19 + "\n" + base64.b64encode(bytes(32)).decode() + "\n",
    ],
)
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    """One way to write a size and a root, and bounded ones."""
    with pytest.raises(NoteError):
        Checkpoint.parse(text)


@pytest.mark.parametrize("text", ["", "x", "a+b", "a+00000000+AQ==", "— ", "a b+12345678+AA=="])
def test_what_is_no_verifier_key_is_refused(text: str) -> None:
    """Cut, damaged or of another type."""
    with pytest.raises(NoteError):
        VerifierKey.parse(text)


def test_the_key_is_made_at_first_use_for_its_owner_only(tmp_path: Path) -> None:
    """Mode 0600; the same key afterwards; one that others may read, or that is cut, is refused."""
    path = tmp_path / "site" / "audit.key"
    first = AuditKey.at(path, NAME)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and AuditKey.at(path, NAME).public == first.public
    path.chmod(0o640)
    with pytest.raises(NoteError, match="mode 0600"):
        AuditKey.at(path, NAME)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(NoteError, match="32 bytes"):
        AuditKey.at(path, NAME)
    with pytest.raises(NoteError, match="without spaces"):
        AuditKey.at(tmp_path / "other", "a site")


def test_notes_in_a_file_read_back_and_what_a_crash_tore_is_cut_off(tmp_path: Path, key: AuditKey) -> None:
    """At whichever byte: whole notes stay, and the next one follows them."""
    notes = [signed_checkpoint(key, size, EMPTY_ROOT) for size in range(3)]
    NoteFile(tmp_path / "notes").append(notes[:2])
    whole = (tmp_path / "notes").read_bytes()
    NoteFile(tmp_path / "notes").append(notes[2:])
    more = (tmp_path / "notes").read_bytes()
    for end in range(len(whole), len(more)):
        (tmp_path / "notes").write_bytes(more[:end])
        file = NoteFile(tmp_path / "notes")
        assert list(file) == notes[:2] and file.latest() == notes[1]
        file.append(notes[2:])
        assert list(NoteFile(tmp_path / "notes")) == notes and file.latest() == notes[2]


def test_heads_and_cosigned_notes_are_those_in_the_file(tmp_path: Path, key: AuditKey) -> None:
    """Over several blocks of the file, wherever the cosigned ones stand; a note that is none among them is an error."""
    other = AuditKey.at(tmp_path / "other.key", "other")
    notes = [signed_checkpoint(key, size, EMPTY_ROOT) for size in range(900)]
    for size in (0, 1, 300, 301, 899):
        notes[size] = notes[size].joined(other.cosign(notes[size], 1_800_000_000))
    file = NoteFile(tmp_path / "notes")
    file.append(notes)
    assert file.path.stat().st_size > 3 * MAX_NOTE
    assert list(file.heads()) == [(size, EMPTY_ROOT) for size in range(900)]
    assert [(size, Note.parse(note.decode())) for size, note in file.cosigned()] == [
        (size, notes[size]) for size in (0, 1, 300, 301, 899)
    ]
    file.path.write_bytes(file.path.read_bytes().replace(b"\n500\n", b"\n0500\n"))
    for read in (file.heads, file.cosigned):
        with pytest.raises(NoteError, match="is not a checkpoint"):
            list(read())


def test_an_absent_file_holds_no_note_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    """Lines that belong to no note are no silence."""
    assert list(NoteFile(tmp_path / "none")) == [] and NoteFile(tmp_path / "none").latest() is None
    (tmp_path / "bad").write_text("x\n— a b\n\n")
    with pytest.raises(NoteError):
        list(NoteFile(tmp_path / "bad"))


def test_a_file_of_notes_that_has_an_empty_line_alone_is_empty(tmp_path: Path) -> None:
    """As a crash may leave it."""
    (tmp_path / "notes").write_text("\n")
    assert list(NoteFile(tmp_path / "notes")) == []
