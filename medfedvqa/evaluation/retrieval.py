"""Retrieval between pictures and captions: the ranks of partners among the results."""

import torch
import torch.nn.functional as F

from medfedvqa.evaluation.server_score import FIRST


def found_first(cosines: torch.Tensor, captions: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many pictures, and how many captions, rank their partner among the first 1, 5 and 10.

    `cosines`: [pictures, captions]; `captions`: the number of each picture's caption, int64 [pictures]. Among equal
    cosines, the right one ranks last.
    """
    right = F.one_hot(captions, cosines.shape[1]).bool()
    places = places_of_right(cosines, right), places_of_right(cosines.T, right.T)
    to_text, to_image = (tuple(int((place < first).sum()) for first in FIRST) for place in places)
    return to_text, to_image


def places_of_right(scores: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The rank of each row's best right column, from 0, int64 [rows]; a row without one ranks after all columns.

    `scores`: [rows, columns]; `right`: bool of the same shape. Among equal scores, a right one ranks last.
    """
    best = scores.masked_fill(~right, -torch.inf).amax(dim=1, keepdim=True)
    return ((scores >= best) & ~right).sum(dim=1)
