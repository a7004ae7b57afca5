"""A witness outside: a server on the loopback that follows C2SP tlog-witness by lines of its own."""

import base64
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from small_logs import defined_root, filled, key_of, opened

from audits import LogError, NoteError, VerifierKey
from audits.checkpoint import CHECKPOINTS, NoteFile
from audits.tlog_witness import ask_witness

NAME = "witness.example/w1"
Answer = tuple[int, bytes]


class Outside:
    """The other side. It knows all leaves, and so compares the proof's end with the root of section 2.1.1."""

    def __init__(self, log_key: str, leaves: Callable[[], list[bytes]]) -> None:
        self._private = Ed25519PrivateKey.generate()
        raw = b"\x04" + self._private.public_key().public_bytes_raw()
        self.id = hashlib.sha256(NAME.encode() + b"\n" + raw).digest()[:4]
        self.key = f"{NAME}+{self.id.hex()}+{base64.b64encode(raw).decode()}"
        self.size, self._leaves, self._log_key = 0, leaves, log_key
        self.bodies: list[str] = []

    def __call__(self, body: bytes) -> Answer:
        self.bodies.append(body.decode())
        head, _, note = body.decode().partition("\n\n")
        old, *proof = head.split("\n")
        text, _, signatures = note.partition("\n\n")
        text += "\n"
        origin, size, root, *_ = text.split("\n")
        name, key_id, raw = self._log_key.split("+", 2)
        if origin != name:
            return 404, b""
        signed = base64.b64decode(signatures.removeprefix(f"\u2014 {name} ").strip())
        assert signed[:4].hex() == key_id
        VerifierKey(name, base64.b64decode(raw)[1:])._public.verify(signed[4:], text.encode())
        if old != f"old {self.size}":
            return 409, f"{self.size}\n".encode()
        leaves = self._leaves()
        if bool(proof) != (0 < self.size < int(size)) or base64.b64decode(root) != defined_root(leaves[: int(size)]):
            return 422, b""
        self.size, now = int(size), int(time.time())
        signature = self._private.sign(f"cosignature/v1\ntime {now}\n{text}".encode())
        line = base64.b64encode(self.id + now.to_bytes(8, "big") + signature).decode()
        other = base64.b64encode(bytes(76)).decode()
        return 200, f"\u2014 other.example/w {other}\n\u2014 {NAME} {line}\n".encode()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    log = opened(tmp_path, 1 << 20)
    filled(log, 5)
    yield log
    log.close()


@pytest.fixture
def outside(tmp_path: Path, log: Any) -> Outside:
    def leaves() -> list[bytes]:
        lines = (tmp_path / "audit" / "log.jsonl").read_bytes().splitlines()
        return [bytes.fromhex(json.loads(line)["leaf_hash"]) for line in lines]

    return Outside(str(key_of(tmp_path).public), leaves)


def test_a_growing_log_is_cosigned_from_where_the_witness_is(tmp_path: Path, log: Any, outside: Outside) -> None:
    """The first time from 0; then from the last cosigned size; also a second time for the same size."""
    key = VerifierKey.parse(outside.key)
    assert ask_witness(log, key, outside) == 5 and outside.bodies[-1].startswith("old 0\n\n")
    filled(log, 4)
    assert ask_witness(log, key, outside) == 9 and outside.bodies[-1].startswith("old 5\n")
    assert ask_witness(log, key, outside) == 9 and outside.bodies[-1].startswith("old 9\n\n")
    assert len(outside.bodies) == 3
    cosigned = [note for note in NoteFile(tmp_path / "audit" / CHECKPOINTS) if key.cosigned(note) is not None]
    assert len(cosigned) >= 2 and not any("other.example" in str(note) for note in cosigned)


def test_a_witness_that_knows_more_says_its_size_and_is_asked_once_more(log: Any, outside: Outside) -> None:
    """As after a restored backup of the checkpoints; one that goes on refusing is not asked a third time."""
    key = VerifierKey.parse(outside.key)
    log.checkpoint()
    outside.size = 3
    filled(log, 2)
    assert ask_witness(log, key, outside) == 7 and [body.split("\n")[0] for body in outside.bodies] == [
        "old 0",
        "old 3",
    ]
    filled(log, 1)
    asked = []

    def refusing(body: bytes) -> Answer:
        asked.append(body)
        return 409, b"2\n"

    with pytest.raises(NoteError, match="another history"):
        ask_witness(log, key, refusing)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((403, b""), "by another key"),
        ((404, b""), "does not know this log"),
        ((409, b"0\n"), "another history"),
        ((409, b"6\n"), "shortened or rolled back"),
        ((409, b"x"), "which size"),
        ((409, b"007\n"), "which size"),
        ((409, b""), "which size"),
        ((422, b""), "does not accept the proof"),
        ((500, b"SECRET"), "the status 500"),
        ((200, b""), "lacks a cosignature"),
        ((200, b"SECRET\n"), "not a signed note"),
        ((200, b"\xff\n"), "does not consist of signatures"),
        ((200, f"\u2014 {NAME} {base64.b64encode(bytes(76)).decode()}\n".encode()), "lacks a cosignature"),
    ],
)
def test_each_refusal_is_one_sentence_and_stores_nothing(
    tmp_path: Path, log: Any, outside: Outside, answer: Answer, sentence: str
) -> None:
    log.checkpoint()
    before = (tmp_path / "audit" / CHECKPOINTS).read_bytes()
    with pytest.raises((NoteError, LogError), match=sentence) as caught:
        ask_witness(log, VerifierKey.parse(outside.key), lambda body: answer)
    assert "SECRET" not in str(caught.value) and (tmp_path / "audit" / CHECKPOINTS).read_bytes() == before
