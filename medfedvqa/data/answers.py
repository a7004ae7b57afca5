"""A site's answers as places in the list that sites with one common head agree on."""

import torch


def numbered(own: tuple[str, ...], common: tuple[str, ...], answers: torch.Tensor) -> torch.Tensor:
    """A site's answers, int64 [rows] into `own`, as places in `common`; -1 for those that it lacks, and for -1."""
    place = {answer: index for index, answer in enumerate(common)}
    table = torch.tensor([place.get(answer, -1) for answer in own] + [-1], dtype=torch.int64)
    return table[answers]
