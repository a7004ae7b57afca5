"""Asks a witness outside of the federation to cosign a log's newest checkpoint, and serves as a witness for other logs.

Source: C2SP tlog-witness, `add-checkpoint`. The signed checkpoint and hashes of the tree go out, and nothing else. The
service listens on 127.0.0.1 only: a web server in front of it provides TLS.
"""

import base64
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

from audits.checkpoint import CHECKPOINTS, Checkpoint, NoteFile
from audits.errors import ForkFound, LogError, NoteError
from audits.log import AuditLog
from audits.signed_note import MAX_NOTE, Note, VerifierKey
from audits.tree import EMPTY_ROOT, HASH_BYTES, consistent
from audits.ui.local_server import PATIENCE, Answer, LoopbackServer, text_answer
from audits.witness import Witness

MAX_ANSWER = 1 << 15  # bytes
_REFUSALS = {
    403: "the witness knows this log by another key: give its operator the one that `medfedvqa audit key` prints",
    404: "the witness does not know this log: give its operator the key that `medfedvqa audit key` prints",
    409: "the witness holds another history of this log, or another site uses its name: have the log verified",
    422: "the witness does not accept the proof that the log continues what it cosigned: have the log verified",
}
Post = Callable[[bytes], tuple[int, bytes]]
"""Sends the body of an `add-checkpoint`; the status and content of the answer."""


def ask_witness(log: AuditLog, key: VerifierKey, post: Post) -> int:
    """Returns how many entries the witness with this key has cosigned. Raises `NoteError`, `LogError`."""
    signed = log.checkpoint()
    checkpoint = Checkpoint.parse(signed.text)
    note = Note(signed.text, tuple(each for each in signed.signatures if each[0] == checkpoint.origin))
    earlier = (each for each in NoteFile(log.folder / CHECKPOINTS) if key.cosigned(each) is not None)
    old = max((Checkpoint.parse(each.text).size for each in earlier), default=0)
    status, answer = post(_body(log, old, note))
    if status == 409 and (size := _size(answer)) != old:
        if size > checkpoint.size:
            raise ForkFound("the witness has cosigned a longer log: this log was shortened or rolled back")
        status, answer = post(_body(log, size, note))
    if status != 200:
        raise NoteError(_REFUSALS.get(status, f"the witness refuses the checkpoint with the status {status}"))
    try:
        cosigned = Note.parse(str(note) + answer[:MAX_ANSWER].decode())
    except ValueError:
        raise NoteError("the witness's answer does not consist of signatures") from None
    if key.cosigned(cosigned) is None:
        raise NoteError("the witness's answer lacks a cosignature by the given key: compare the key")
    log.cosigned([cosigned], [key])
    return checkpoint.size


def _body(log: AuditLog, old: int, note: Note) -> bytes:
    hashes = (base64.b64encode(node).decode() for node in log.proof(old, note))
    return "".join((f"old {old}\n", *(f"{node}\n" for node in hashes), f"\n{note}")).encode()


def _size(answer: bytes) -> int:
    """The tree size in the answer of a witness that has cosigned another size than the one sent."""
    text = answer[:20].removesuffix(b"\n")
    if not text.isdigit() or text != b"%d" % int(text):
        raise NoteError("the witness does not say which size of the log it has cosigned")
    return int(text)


MAX_PROOF = 63  # hashes
MAX_BODY = 2 * MAX_NOTE  # bytes
_OLD = re.compile(r"old (0|[1-9][0-9]{0,17})")


class WitnessService(LoopbackServer):
    """Answers `POST /add-checkpoint`, once `serve_forever` runs; port 0 takes a free one. Logs no request.

    Raises `LogError` if the port is taken.
    """

    def __init__(self, witness: Witness, logs: Mapping[str, VerifierKey], port: int = 0) -> None:
        """`logs`: the keys of the logs that are cosigned, by origin; `witness` has them pinned."""
        self._witness, self._logs = witness, dict(logs)
        super().__init__(_Handler, port)

    def add_checkpoint(self, body: bytes) -> Answer:
        """The answer to a request: a cosignature, which is on disk by then, or the reason why there is none."""
        try:
            old, proof, note = _parsed(body)
            checkpoint = Checkpoint.parse(note.text)
        except (NoteError, ValueError):
            return text_answer(HTTPStatus.BAD_REQUEST, "This is not a request to add a checkpoint.")
        if (key := self._logs.get(checkpoint.origin)) is None:
            return text_answer(HTTPStatus.NOT_FOUND, "This witness does not know the log.")
        if not key.signed(note):
            return text_answer(HTTPStatus.FORBIDDEN, "The key that is known as the log's did not sign the checkpoint.")
        if old > checkpoint.size:
            return text_answer(HTTPStatus.BAD_REQUEST, "The old size is above the checkpoint's.")
        try:
            return self._cosigned(old, proof, note, checkpoint)
        except LogError:
            return text_answer(HTTPStatus.INTERNAL_SERVER_ERROR, "The witness cannot keep what it cosigns.")

    def _cosigned(self, old: int, proof: list[bytes], note: Note, new: Checkpoint) -> Answer:
        size, root = self._position(new.origin)
        if old != size:
            return _conflict(size)
        is_fork = new.size == size and new.root != root
        if not is_fork and not consistent(size, new.size, root, new.root, proof):
            # Anybody can send a true checkpoint with a false proof, so that this is no evidence against the log.
            return text_answer(HTTPStatus.UNPROCESSABLE_ENTITY, "The proof does not show that the log continues.")
        # If another request was faster, this finds another size under its lock, and stores nothing.
        (result,) = self._witness.cosign_all([(note, proof)], {new.origin: old})
        if not isinstance(result, Note):
            return _conflict(self._position(new.origin)[0])
        name = self._witness.key.public.name
        own = Note(note.text, tuple(signature for signature in result.signatures if signature[0] == name))
        return text_answer(HTTPStatus.OK, str(own).removeprefix(f"{note.text}\n").removesuffix("\n"))

    def _position(self, origin: str) -> tuple[int, bytes]:
        """Size and root of the last checkpoint that was cosigned; those of an empty log if there is none."""
        last = self._witness.position(origin)
        return (last.size, last.root) if last else (0, EMPTY_ROOT)


def _parsed(body: bytes) -> tuple[int, list[bytes], Note]:
    """Old size, proof and signed checkpoint of a request. Raises `ValueError`, `NoteError`."""
    head, gap, note = body.decode().partition("\n\n")
    first, *lines = head.split("\n")
    if not gap or (old := _OLD.fullmatch(first)) is None or len(lines) > MAX_PROOF:
        raise ValueError("no request to add a checkpoint")
    proof = [base64.b64decode(line, validate=True) for line in lines]
    if any(len(node) != HASH_BYTES for node in proof) or [base64.b64encode(node).decode() for node in proof] != lines:
        raise ValueError("no hashes in base64")
    return int(old[1]), proof, Note.parse(note)


def _conflict(size: int) -> Answer:
    return Answer(HTTPStatus.CONFLICT, "text/x.tlog.size", b"%d\n" % size)


class _Handler(BaseHTTPRequestHandler):
    server: WitnessService
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def do_POST(self) -> None:
        lengths = self.headers.get_all("Content-Length") or []
        if self.path != "/add-checkpoint":
            self.send_error(HTTPStatus.NOT_FOUND)
        elif len(lengths) != 1 or not lengths[0].isdecimal() or "Transfer-Encoding" in self.headers:
            self.send_error(HTTPStatus.LENGTH_REQUIRED)
        elif len(lengths[0]) > len(str(MAX_BODY)) or int(lengths[0]) > MAX_BODY:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            self._send(self.server.add_checkpoint(self.rfile.read(int(lengths[0]))))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers requests that the base class refuses: another method, a malformed request."""
        self.close_connection = True  # what is refused is not read
        self._send(text_answer(HTTPStatus(code), "A witness answers POST /add-checkpoint."))

    def version_string(self) -> str:
        return "medfedvqa"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged: who asks, and when, is nobody's business."""
