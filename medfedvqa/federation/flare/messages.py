"""How named arrays lie in a FLARE message."""

import numpy as np
from nvflare.apis.shareable import Shareable

from medfedvqa.methods import Tensors

REASON = "medfedvqa_reason"
ROUND, TENSORS, BESIDE = "medfedvqa_round", "medfedvqa_tensors", "medfedvqa_beside"
"""Of `BESIDE`: bytes in which sites and server tell each other of audit logs."""


def pack(round: int, tensors: Tensors, beside: bytes = b"") -> Shareable:
    """A message with a round's arrays, and what is said beside them of audit logs."""
    message = Shareable()
    message[ROUND], message[TENSORS] = round, tensors
    if beside:
        message[BESIDE] = beside
    return message


def unpack(message: Shareable) -> tuple[int, Tensors]:
    """Round and arrays of a message; what else travels in it is FLARE's own."""
    return message[ROUND], {name: np.asarray(array) for name, array in message[TENSORS].items()}


def beside(message: Shareable) -> bytes:
    """What is said beside the arrays; what is no bytes is returned as bytes that nobody takes for a message."""
    said = message.get(BESIDE, b"")
    return said if isinstance(said, bytes) else b"?"
