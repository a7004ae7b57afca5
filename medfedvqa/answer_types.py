"""The types of answers in VQA v2 (Y. Goyal et al., CVPR 2017)."""

import re

from medfedvqa.public_answers import fold

ANSWER_TYPES = {"yes/no": "y", "number": "n", "other": "o"}
"""Each type's letter in results."""
_NUMBER = re.compile(r"[0-9]+([.,][0-9]+)?|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve")


def answer_type(answer: str) -> str:
    """The letter of an answer's type. A number is in digits or, up to twelve, a word, without further words."""
    folded = fold(answer)
    if folded in ("yes", "no"):
        return ANSWER_TYPES["yes/no"]
    return ANSWER_TYPES["number" if _NUMBER.fullmatch(folded) else "other"]
