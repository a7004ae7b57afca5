"""The translation of a site's answers into a list that sites share."""

import torch


def numbered(local: tuple[str, ...], common: tuple[str, ...], answers: torch.Tensor) -> torch.Tensor:
    """Answers, int64 [rows] into the list `local`, as indices into `common`; -1 stands for any other answer."""
    index = {answer: number for number, answer in enumerate(common)}
    table = torch.tensor([index.get(answer, -1) for answer in local] + [-1], dtype=torch.int64)
    return table[answers]
