"""How named arrays lie in a FLARE message."""

import numpy as np
from nvflare.apis.shareable import Shareable

from medfedvqa.methods import Tensors

REASON = "medfedvqa_reason"
_ROUND, _TENSORS, _BESIDE = "medfedvqa_round", "medfedvqa_tensors", "medfedvqa_beside"


def pack(round: int, tensors: Tensors, beside: bytes = b"") -> Shareable:
    """A message with a round's arrays, and what is said beside them of audit logs."""
    message = Shareable()
    message[_ROUND], message[_TENSORS] = round, tensors
    if beside:
        message[_BESIDE] = beside
    return message


def unpack(message: Shareable) -> tuple[int, Tensors]:
    """Round and arrays of a message; what else travels in it is FLARE's own."""
    return message[_ROUND], {name: np.asarray(array) for name, array in message[_TENSORS].items()}


def beside(message: Shareable) -> bytes:
    """What is said beside the arrays; what is no bytes is returned as bytes that nobody takes for a message."""
    said = message.get(_BESIDE, b"")
    return said if isinstance(said, bytes) else b"?"
