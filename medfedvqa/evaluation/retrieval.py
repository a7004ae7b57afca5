"""Retrieval between pictures and captions: counts of partners among the first results."""

import torch
import torch.nn.functional as F

from medfedvqa.evaluation.server_score import FIRST


def found_first(cosines: torch.Tensor, captions: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The numbers of pictures and of captions that find their partner among the first 1, 5 and 10.

    `cosines`: [pictures, captions]; `captions`: the number of each picture's caption, int64 [pictures]. Among
    equal cosines, the right one ranks last.
    """
    right = F.one_hot(captions, cosines.shape[1]).bool()
    return _found(cosines, right), _found(cosines.T, right.T)


def _found(cosines: torch.Tensor, right: torch.Tensor) -> tuple[int, ...]:
    """The number of rows with one of their right columns among the first 1, 5 and 10."""
    best = cosines.masked_fill(~right, -torch.inf).amax(dim=1, keepdim=True)
    before = ((cosines >= best) & ~right).sum(dim=1)
    return tuple(int((before < first).sum()) for first in FIRST)
