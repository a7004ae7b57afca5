"""The answers that sites with one common head agree on; a job may bring others."""

from collections.abc import Sequence

import torch

from medfedvqa.data.schema import fold

CLOSED_ANSWERS = (
    "no", "yes",
    "left", "right", "both", "bilateral",
    "small", "large", "bright", "dark", "one", "two", "black", "white", "gray", "normal", "enlarged",
    "hyperdense", "hypodense", "hyperintense", "diffuse", "solid",
    "ct", "mri", "x-ray", "t1", "t2", "flair", "pa", "ap",
    "coronal plane", "transverse plane", "sagittal plane", "axial",
    "lung", "heart", "liver", "kidney", "spleen", "colon", "small bowel", "bladder", "rectum", "brain",
    "white matter", "gray matter", "with contrast", "without contrast",
)  # fmt: skip
"""What closed questions about medical pictures are answered with most often: sides, sizes, shades, how and of what a
picture was taken, organs. A public list, so that nothing of a site's own answers travels; folded."""


def public_list(answers: Sequence[str]) -> tuple[str, ...]:
    """A declared answer space, in the order given: nothing in it comes from a site's rows.

    Raises `ValueError` unless it has at least two answers, each of them once and written as `fold` writes it.
    """
    if len(set(answers)) < max(2, len(answers)) or any(not answer or answer != fold(answer) for answer in answers):
        raise ValueError("give at least two answers, each once, in lower case and with single spaces")
    return tuple(answers)


def numbered(own: tuple[str, ...], common: tuple[str, ...], answers: torch.Tensor) -> torch.Tensor:
    """A site's answers, int64 [rows] into `own`, as places in `common`; -1 for those that it lacks, and for -1."""
    place = {answer: index for index, answer in enumerate(common)}
    table = torch.tensor([place.get(answer, -1) for answer in own] + [-1], dtype=torch.int64)
    return table[answers]
