"""Answer spaces that are declared, not read from rows. Without torch, as those who only verify read `site.yml` too."""

from collections.abc import Sequence

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
