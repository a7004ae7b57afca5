"""Asks a witness outside of the federation to cosign a log's newest checkpoint, and stores its cosignature.

Source: C2SP tlog-witness, `add-checkpoint`. The signed checkpoint and hashes of the tree go out, and nothing else.
"""

import base64
from collections.abc import Callable

from audits.checkpoint import CHECKPOINTS, Checkpoint, NoteFile
from audits.errors import ForkFound, NoteError
from audits.log import AuditLog
from audits.signed_note import Note, VerifierKey

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
            raise ForkFound("the witness has cosigned a longer log: this one was cut or rolled back, have it verified")
        status, answer = post(_body(log, size, note))
    if status != 200:
        raise NoteError(_REFUSALS.get(status, f"the witness refuses the checkpoint with the status {status}"))
    try:
        cosigned = Note.parse(str(note) + answer[:MAX_ANSWER].decode())
    except ValueError:
        raise NoteError("the witness's answer is not made of signatures") from None
    if key.cosigned(cosigned) is None:
        raise NoteError("the witness's answer has no cosignature by the key that was given: compare the key")
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
