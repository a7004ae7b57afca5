"""SLAKE 1.0 in its published layout (Liu et al., ISBI 2021; CC BY 4.0), English rows.

Languages are never mixed: 72 of the 96 English test images occur in the Chinese train rows.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from medfedvqa.data.published_files import folded, is_closed, read_rows, texts
from medfedvqa.data.schema import Row, VQAData
from medfedvqa.errors import DataError

SPLITS = ("train", "validate", "test")
ORGANS = {
    "Lung": "lung",
    "Abdomen": "abdomen",
    "Brain": "brain",
    "Brain_Tissue": "brain",
    "Brain_Face": "brain",
    "Neck": "others",
    "Pelvic Cavity": "others",
    "Chest_lung": "others",
    "Chest_heart": "others",
    "Chest_mediastinal": "others",
}
PLACES = folded(ORGANS)
LANGUAGE = {"language": "q_lang"}
HAN = re.compile(r"[\u4e00-\u9fff]")
FIELDS = {
    "location": "location",
    "answer type": "answer_type",
    "question": "question",
    "image name": "img_name",
}
ANSWER = {"answer": "answer"}


def read(root: Path) -> VQAData:
    """The English rows of the three files. The image is the privacy unit. Raises `DataError`."""
    rows = list(_rows(root))
    return VQAData("slake", tuple(dict.fromkeys(ORGANS.values())), rows, publishes_validation=True)


def _rows(root: Path) -> Iterator[Row]:
    index = 0
    for split in SPLITS:
        for raw in read_rows(root / f"{split}.json"):
            if language_of(raw, index) == "en":
                yield _row(raw, index, split, root / "imgs")
            index += 1


def other_languages(root: Path) -> int:
    """The number of rows in other languages than English, which `read` leaves out."""
    parts = (read_rows(root / f"{split}.json") for split in SPLITS)
    return sum(language_of(raw, index) != "en" for part in parts for index, raw in enumerate(part))


def language_of(raw: dict[str, object], index: int) -> str:
    """The row's language, `en` or `zh`. Copies of the English rows alone often lack it: then the script decides."""
    if isinstance(raw, dict) and raw.get("q_lang") is None:
        return "zh" if HAN.search(str(raw.get("question"))) else "en"
    (language,) = texts(raw, index, LANGUAGE)
    if language.lower() not in ("en", "zh"):
        raise DataError(f"row {index}: unknown language; SLAKE has en and zh")
    return language.lower()


def _row(raw: dict[str, object], index: int, split: str, folder: Path) -> Row:
    location, answer_type, question, name = texts(raw, index, FIELDS)
    if location.casefold() not in PLACES:
        raise DataError(f"row {index}: unknown organ; SLAKE has {', '.join(ORGANS)}")
    closed = is_closed(answer_type, index)
    # The published train file leaves one open question without an answer.
    answerless = not closed and raw.get("answer") == ""
    answer = "" if answerless else next(texts(raw, index, ANSWER))
    return Row(
        index=index,
        organ=PLACES[location.casefold()],
        split=split,
        closed=closed,
        question=question,
        answer=answer,
        patient=name,
        image=folder / name,
        question_type=str(raw.get("content_type") or ""),
        modality=str(raw.get("modality") or ""),
    )
