"""How named arrays lie in a FLARE message."""

import numpy as np
from nvflare.apis.shareable import Shareable

from medfedvqa.methods import Tensors

REASON = "medfedvqa_reason"
_ROUND, _TENSORS = "medfedvqa_round", "medfedvqa_tensors"


def pack(round: int, tensors: Tensors) -> Shareable:
    """A message with a round's arrays."""
    message = Shareable()
    message[_ROUND], message[_TENSORS] = round, tensors
    return message


def unpack(message: Shareable) -> tuple[int, Tensors]:
    """Round and arrays of a message; what else travels in it is FLARE's own."""
    return message[_ROUND], {name: np.asarray(array) for name, array in message[_TENSORS].items()}
