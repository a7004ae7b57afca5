"""A witness for others' logs, asked by a log that follows C2SP tlog-witness and RFC 6962 by lines of its own."""

import base64
import hashlib
import http.client
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audits import AuditKey, LogError, Note, VerifierKey, Witness
from audits.tlog_witness import MAX_BODY, WitnessService

ORIGIN = "other.example/log"


def root(leaves: list[bytes]) -> bytes:
    """RFC 6962, section 2.1."""
    if len(leaves) < 2:
        return hashlib.sha256(b"".join(b"\0" + leaf for leaf in leaves)).digest()
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + root(leaves[:half]) + root(leaves[half:])).digest()


def proof(old: int, leaves: list[bytes], is_whole: bool = True) -> list[bytes]:
    """RFC 6962, section 2.1.2; nothing from an empty log."""
    if old in (0, len(leaves)):
        return [] if is_whole or not old else [root(leaves)]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    if old <= half:
        return [*proof(old, leaves[:half], is_whole), root(leaves[half:])]
    return [*proof(old - half, leaves[half:], False), root(leaves[:half])]


class OtherLog:
    """A log without extension lines, of another make than this project's."""

    def __init__(self, origin: str = ORIGIN) -> None:
        self._origin, self._private = origin, Ed25519PrivateKey.generate()
        raw = b"\1" + self._private.public_key().public_bytes_raw()
        self._id = hashlib.sha256(origin.encode() + b"\n" + raw).digest()[:4]
        self.key = VerifierKey.parse(f"{origin}+{self._id.hex()}+{base64.b64encode(raw).decode()}")
        self.leaves = [b"leaf %d" % number for number in range(200)]

    def text(self, size: int) -> str:
        return f"{self._origin}\n{size}\n{base64.b64encode(root(self.leaves[:size])).decode()}\n"

    def request(self, old: int, size: int, hashes: list[bytes] | None = None) -> bytes:
        """From `old` to `size`, with the true proof or these hashes."""
        hashes = proof(old, self.leaves[:size]) if hashes is None else hashes
        signature = base64.b64encode(self._id + self._private.sign(self.text(size).encode())).decode()
        lines = "".join(f"{base64.b64encode(node).decode()}\n" for node in hashes)
        return f"old {old}\n{lines}\n{self.text(size)}\n\u2014 {self._origin} {signature}\n".encode()


class Asked:
    """The witness over HTTP."""

    def __init__(self, folder: Path, log: OtherLog) -> None:
        self.folder, key = folder, AuditKey.at(folder / "witness.key", "witness.example/w1")
        self.key, logs = VerifierKey.parse(key.public.of_witness), {ORIGIN: log.key}
        self.server = WitnessService(Witness(folder, key, logs), logs)
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def end(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()

    def __call__(self, body: bytes, method: str = "POST", path: str = "/add-checkpoint") -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=60)
        connection.request(method, path, body)
        answer = connection.getresponse()
        content = answer.status, answer.headers["Content-Type"], answer.read()
        connection.close()
        return content

    def cosigned(self, log: OtherLog, old: int, size: int) -> bool:
        """Whether the answer is one signature line, a cosignature of the checkpoint."""
        status, _, content = self(log.request(old, size))
        if status != 200:
            return False
        assert content.count(b"\n") == 1 and content.startswith("\u2014 witness.example/w1 ".encode())
        return self.key.cosigned(Note.parse(f"{log.text(size)}\n{content.decode()}")) is not None


@pytest.fixture
def log() -> OtherLog:
    return OtherLog()


@pytest.fixture
def asked(tmp_path: Path, log: OtherLog) -> Iterator[Asked]:
    asked = Asked(tmp_path, log)
    yield asked
    asked.end()


def test_a_log_of_another_make_is_cosigned_as_it_grows(tmp_path: Path, asked: Asked, log: OtherLog) -> None:
    """From an empty log, over every kind of size, the same size twice, and after a restart."""
    steps = [(0, 0), (0, 1), (1, 1), (1, 6), (6, 8), (8, 100), (100, 128)]
    assert all(asked.cosigned(log, old, size) for old, size in steps)
    again = Asked(tmp_path, log)
    try:
        assert not again.cosigned(log, 0, 200) and again.cosigned(log, 128, 200)
    finally:
        again.end()


def test_what_is_not_shown_to_continue_is_refused_as_the_protocol_says(asked: Asked, log: OtherLog) -> None:
    """Status and content for each reason; nothing of it moves the witness, which goes on with the true log."""
    assert asked.cosigned(log, 0, 50)
    stranger, forger, rewritten = OtherLog("third.example/log"), OtherLog(), OtherLog()
    rewritten._private, rewritten._id, rewritten.leaves = log._private, log._id, [b"x", *log.leaves[1:]]
    text = "text/plain; charset=utf-8"
    for body, status in (
        (stranger.request(50, 60), 404),
        (forger.request(50, 60), 403),
        (log.request(60, 50, []), 400),
        (log.request(50, 60, []), 422),
        (log.request(50, 60, [bytes(32)] * 5), 422),
        (log.request(50, 50, [bytes(32)]), 422),
        (rewritten.request(50, 60), 422),
    ):
        assert asked(body)[:2] == (status, text), body
    for conflict in (log.request(0, 60), log.request(49, 60), log.request(51, 60), log.request(0, 10)):
        assert asked(conflict) == (409, "text/x.tlog.size", b"50\n")
    assert not list(asked.folder.glob("evidence-*")), "anybody can send a true checkpoint with a false proof"
    assert asked(rewritten.request(50, 50)) == (409, "text/x.tlog.size", b"50\n")
    (evidence,) = asked.folder.glob("evidence-*")
    assert rewritten.text(50) in evidence.read_text() and log.text(50) in evidence.read_text()
    assert asked.cosigned(log, 50, 60)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: b"",
        lambda body: body[4:],
        lambda body: body.replace(b"old 3", b"old 03"),
        lambda body: body.replace(b"old 3", b"old -3"),
        lambda body: body.replace(b"old 3", b"old 3 "),
        lambda body: body.replace(b"old 3\n", b"old 3\n" + base64.b64encode(bytes(31)) + b"\n"),
        lambda body: body.replace(b"old 3\n", b"old 3\n!\n"),
        lambda body: body.replace(b"old 3\n", b"old 3\n" + 64 * (base64.b64encode(bytes(32)) + b"\n")),
        lambda body: body.replace(b"=\n", b"=\r\n"),
        lambda body: body.replace("\u2014".encode(), b"-"),
        lambda body: body + b"\xff",
        lambda body: body.partition(b"\n\n")[0] + b"\n\n",
    ],
)
def test_what_is_no_request_is_refused(asked: Asked, log: OtherLog, change: object) -> None:
    """With the status 400, and the witness goes on."""
    assert callable(change) and asked.cosigned(log, 0, 3)
    assert asked(change(log.request(3, 5)))[0] == 400
    assert asked.cosigned(log, 3, 5)


def test_only_this_request_is_answered_and_no_long_one_is_read(asked: Asked, log: OtherLog) -> None:
    """Other methods, other addresses, no length, and a length beyond the limit."""
    body = log.request(0, 3)
    assert (
        asked(b"", "GET")[0] == 501
        and asked(body, path="/")[0] == 404
        and asked(body, path="/x/add-checkpoint")[0] == 404
    )
    connection = http.client.HTTPConnection("127.0.0.1", asked.server.server_port, timeout=60)
    for length, status in ((str(MAX_BODY + 1), 413), ("9" * 5000, 413), ("-1", 411), ("1e3", 411)):
        connection.putrequest("POST", "/add-checkpoint")
        connection.putheader("Content-Length", length)
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == status
        answer.read()
        connection.close()
    assert asked.cosigned(log, 0, 3)


def test_requests_at_once_never_move_the_witness_back(asked: Asked, log: OtherLog) -> None:
    """Of all that ask from one size one wins; the others get the winner's size. Thirty rounds, eight at once."""
    size = 0
    for _ in range(30):
        wanted = random.sample(range(size + 1, size + 20), 8) if size < 180 else [size] * 8
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda new, old=size: asked(log.request(old, new)), wanted))
        won = [new for new, (status, *_) in zip(wanted, answers, strict=True) if status == 200]
        lost = {content for status, _, content in answers if status == 409}
        assert len(won) == 1 or size >= 180
        assert lost <= {b"%d\n" % won[0]} and all(status in (200, 409) for status, *_ in answers)
        size = won[0]
    assert asked.cosigned(log, size, size)


def test_a_full_disk_cosigns_nothing(asked: Asked, log: OtherLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not stored is not cosigned."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("audits.witness.replace_durably", full)
        assert asked(log.request(0, 3))[0] == 500
    assert asked.cosigned(log, 0, 3)


def test_a_port_that_is_taken_is_said(asked: Asked, tmp_path: Path) -> None:
    """Also one that is none."""
    witness = Witness(tmp_path / "two", AuditKey.at(tmp_path / "two.key", "w"))
    for port in (asked.server.server_port, 70_000):
        with pytest.raises(LogError, match="name another one"):
            WitnessService(witness, {}, port)
