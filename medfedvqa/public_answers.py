"""Declared answer spaces, which do not come from rows. Without torch, because verifiers read `site.yml` too."""

import re
import unicodedata
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
"""The most frequent answers to closed questions about medical pictures: sides, sizes, shades, modalities, planes,
organs. The list is public, so that no site's own answers travel; folded."""


_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    # Joiners show between letters of some scripts, such as Persian, and nowhere else.
    "|(?<![^\0-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\0-\x7f])"
)
"""Characters that no screen shows: Unicode's `Default_Ignorable_Code_Point`, and the empty braille pattern."""
_HYPHENS = str.maketrans("\u2010\u2011", "--")

ListName = Literal["closed", "public"]
"""The names of the bundled lists: `CLOSED_ANSWERS`, and `training_answers()`."""


@cache
def training_answers() -> tuple[str, ...]:
    """The distinct answers of all training rows of VQA-RAD and of SLAKE in English, open and closed, folded and sorted.

    They are public because the sets are, but they depend on the patients of these two sets.
    """
    return tuple(files(__package__).joinpath("public_answers.txt").read_text("utf-8").splitlines())


def bundled_list(name: ListName) -> tuple[str, ...]:
    """The list of this name."""
    return CLOSED_ANSWERS if name == "closed" else training_answers()


def without_invisible(text: str) -> str:
    """The text without invisible characters, such as byte order marks, and without surrounding blanks."""
    if text.isascii():
        return text.strip()
    return _INVISIBLE.sub("", text).strip()


def plain(text: str) -> str:
    """The text as it looks: equivalent characters unified (Unicode's NFKC), single spaces, nothing invisible."""
    if text.isascii():
        return " ".join(text.split())
    # NFKC turns some characters into invisible ones, and joins some that invisible ones separated.
    seen = without_invisible(unicodedata.normalize("NFKC", without_invisible(text)))
    return " ".join(seen.translate(_HYPHENS).split())


def fold(text: str) -> str:
    """`plain` in lower case, without final question marks, for comparing questions and answers."""
    return plain(text).lower().rstrip("?").rstrip()


def public_list(answers: Sequence[str]) -> tuple[str, ...]:
    """Checks and returns a declared answer space, in the given order.

    Raises `ValueError` unless it has at least two answers, each once and in the form of `fold`.
    """
    if len(set(answers)) < max(2, len(answers)) or any(not answer or answer != fold(answer) for answer in answers):
        raise ValueError(
            "give at least two answers, each once, in lower case, with single spaces and in plain letters (NFKC)"
        )
    return tuple(answers)


ANSWER_TYPES = {"yes/no": "y", "number": "n", "other": "o"}
"""Each type's letter in results."""
_NUMBER = re.compile(r"[0-9]+([.,][0-9]+)?|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve")


def answer_type(answer: str) -> str:
    """The letter of an answer's type. A number is in digits or, up to twelve, a word, without further words."""
    folded = fold(answer)
    if folded in ("yes", "no"):
        return ANSWER_TYPES["yes/no"]
    return ANSWER_TYPES["number" if _NUMBER.fullmatch(folded) else "other"]
