"""Answer spaces that are declared, not read from rows. Without torch, as those who only verify read `site.yml` too."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Literal

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


ListName = Literal["closed", "public"]
"""The names of the lists that the project brings: `CLOSED_ANSWERS`, and `training_answers()`."""


@cache
def training_answers() -> tuple[str, ...]:
    """The distinct answers of all training rows of VQA-RAD and of SLAKE in English, open and closed, folded and sorted.

    They are public as these sets are; of the patients of these two sets themselves, the list is not independent.
    """
    return tuple(files(__package__).joinpath("public_answers.txt").read_text("utf-8").splitlines())


def bundled_list(name: ListName) -> tuple[str, ...]:
    """The list of this name."""
    return CLOSED_ANSWERS if name == "closed" else training_answers()


def fold(text: str) -> str:
    """Lower case, single spaces, no final question mark: how questions and answers compare."""
    return " ".join(text.lower().split()).rstrip("?").rstrip()


def public_list(answers: Sequence[str]) -> tuple[str, ...]:
    """A declared answer space, in the order given: nothing in it comes from a site's rows.

    Raises `ValueError` unless it has at least two answers, each of them once and written as `fold` writes it.
    """
    if len(set(answers)) < max(2, len(answers)) or any(not answer or answer != fold(answer) for answer in answers):
        raise ValueError("give at least two answers, each once, in lower case and with single spaces")
    return tuple(answers)
