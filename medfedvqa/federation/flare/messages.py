"""How named arrays lie in a FLARE message."""

from typing import TYPE_CHECKING

import numpy as np
from nvflare.apis.shareable import Shareable

if TYPE_CHECKING:
    from medfedvqa.methods import Tensors

REASON = "medfedvqa_reason"
ROUND, TENSORS, BESIDE = "medfedvqa_round", "medfedvqa_tensors", "medfedvqa_beside"
"""Of `BESIDE`: bytes in which sites and server tell each other of audit logs."""


def pack(round: int, tensors: "Tensors") -> Shareable:
    """A message with a round's arrays."""
    message = Shareable()
    message[ROUND], message[TENSORS] = round, tensors
    return message


def unpack(message: Shareable) -> "tuple[int, Tensors]":
    """Round and arrays of a message; what else travels in it is FLARE's own."""
    return message[ROUND], {name: np.asarray(array) for name, array in message[TENSORS].items()}
