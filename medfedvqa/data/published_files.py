"""VQA-RAD and SLAKE in their published layouts, and readers of publishers' files, with errors that name no content."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from audits.bounded_files import read_bounded
from medfedvqa.data.schema import Row, VQAData
from medfedvqa.errors import DataError

MAX_ROWS = 1 << 28
"""The largest file of rows, bytes."""
POINTER = b"version https://git-lfs"
"""The beginning of the text that Git LFS puts in a file's place until the file itself is fetched."""
ANSWER_TYPES = {"CLOSED": True, "OPEN": False}


def read_rows(path: Path) -> list[Any]:
    """The list in a JSON file. Raises `DataError` if it is missing, unreadable or no list."""
    content = read_published(path)
    try:
        rows = json.loads(content)
    except (ValueError, RecursionError):
        raise DataError(f"'{path.name}' is not valid JSON: download it again") from None
    if not isinstance(rows, list):
        raise DataError(f"'{path.name}' holds no list of rows: download it again")
    return rows


def read_published(path: Path) -> bytes:
    """A published file. Raises `DataError` if it is missing, unreadable, too large, or only points to the real one."""
    if not path.is_file():
        raise DataError(f"'{path.name}' is missing: point --data-root at the published folder")
    try:
        content = read_bounded(path, MAX_ROWS)
    except OSError:
        raise DataError(f"'{path.name}' cannot be read: check its permissions and its size") from None
    if content.startswith(POINTER):
        raise DataError(f"'{path.name}' is Git LFS's pointer to the file: fetch the file with `git lfs pull`")
    return content


def folded(names: Mapping[str, str]) -> Mapping[str, str]:
    """The same mapping, for names in any case."""
    return {name.casefold(): value for name, value in names.items()}


def texts(row: Any, index: int, names: Mapping[str, str]) -> Iterator[str]:
    """The row's fields as stripped text, in the order of `names`, which maps our names to the published fields.

    Numbers count as text (VQA-RAD has five). Raises `DataError` with the row's index alone.
    """
    for ours, published in names.items():
        value = row.get(published) if isinstance(row, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, (str, int, float)) or not str(value).strip():
            raise DataError(f"row {index}: the {ours} is missing or empty")
        # A table that went through pandas has 2.0 where 2 was published.
        yield str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def is_closed(answer_type: str, index: int) -> bool:
    """Whether a published answer type means a closed question. Raises `DataError`."""
    answer_type = answer_type.upper()
    if answer_type not in ANSWER_TYPES:
        raise DataError(f"row {index}: the answer type is neither {' nor '.join(ANSWER_TYPES)}")
    return ANSWER_TYPES[answer_type]


# VQA-RAD in its published layout (Lau et al., Scientific Data 2018; CC0).

RAD_QUESTIONS = "VQA_RAD Dataset Public.json"
RAD_PARTS = {"train": "trainset.json", "test": "testset.json"}
"""The files in which MEVF and M2I2 distribute the set."""
RAD_IMAGES = ("VQA_RAD Image Folder", "images", "imgs")
"""The folder of pictures, in the published form and in copies."""
RAD_ORGANS = {"CHEST": "chest", "ABD": "abdomen", "HEAD": "head"}
RAD_PLACES = folded({**RAD_ORGANS, "abdomen": "abdomen"})
RAD_SPLITS = {"freeform": "train", "para": "train", "test_freeform": "test", "test_para": "test"}
_TYPO = {"PRSE": "PRES"}
"""Types of questions that the published file misspells."""
RAD_FIELDS = {
    "organ": "image_organ",
    "phrase type": "phrase_type",
    "answer type": "answer_type",
    "question": "question",
    "answer": "answer",
    "image name": "image_name",
    "case": "image_case_url",
}


def read_vqa_rad(root: Path) -> VQAData:
    """All 2,248 rows. The patient is the MedPix case. Raises `DataError`.

    Five images have two to four case addresses whose last digits count up, as a spreadsheet fills them. Cases that
    share an image are therefore one patient; else a split by case would put an image on both sides.
    """
    files = {"": root / RAD_QUESTIONS}  # the published file has the parts of its rows in them
    if not files[""].is_file() and (root / RAD_PARTS["train"]).is_file():
        files = {split: root / name for split, name in RAD_PARTS.items()}
    raws = [(raw, split) for split, path in files.items() for raw in read_rows(path)]
    # Some copies leave out every case: then the picture is the unit. Where only some rows lack it, they are refused.
    known = any(isinstance(raw, dict) and raw.get(RAD_FIELDS["case"]) for raw, _ in raws)
    folder = root / next((name for name in RAD_IMAGES if (root / name).is_dir()), RAD_IMAGES[0])
    rows = [_rad_row(raw, index, folder, split, known) for index, (raw, split) in enumerate(raws)]
    patients = _joined((row.patient, row.image) for row in rows)
    rows = [replace(row, patient=patients[row.patient]) for row in rows]
    return VQAData("vqa-rad", tuple(RAD_ORGANS.values()), rows)


def _rad_row(raw: dict[str, object], index: int, folder: Path, split: str, has_cases: bool) -> Row:
    fields = RAD_FIELDS if has_cases else {ours: name for ours, name in RAD_FIELDS.items() if ours != "case"}
    organ, phrase, answer_type, question, answer, name, *case = texts(raw, index, fields)
    if organ.casefold() not in RAD_PLACES:
        raise DataError(f"row {index}: unknown organ; VQA-RAD has {', '.join(RAD_ORGANS)}")
    if phrase not in RAD_SPLITS:
        raise DataError(f"row {index}: unknown phrase type; VQA-RAD has {', '.join(RAD_SPLITS)}")
    return Row(
        index=index,
        organ=RAD_PLACES[organ.casefold()],
        split=split or RAD_SPLITS[phrase],
        closed=is_closed(answer_type, index),
        question=question,
        answer=answer,
        patient=case[0] if case else name,
        image=folder / name,
        question_type=_TYPO.get(kind := str(raw.get("question_type") or "").partition(",")[0].strip(), kind),
    )


def _joined(sightings: Iterable[tuple[str, Path]]) -> dict[str, str]:
    """The representative of each case among all cases that share an image with it, directly or not.

    It is the first of them in the alphabet, so it depends only on these cases and not on the order of rows.
    """
    leader: dict[str, str] = {}
    first_case: dict[Path, str] = {}
    for case, image in sightings:
        joined = {leader.setdefault(case, case), leader[first_case.setdefault(image, case)]}
        if len(joined) > 1:
            leader.update({member: min(joined) for member, lead in leader.items() if lead in joined})
    return leader


# SLAKE 1.0 in its published layout (Liu et al., ISBI 2021; CC BY 4.0), English rows.
#
# Languages are never mixed: 72 of the 96 English test images occur in the Chinese train rows.

SLAKE_SPLITS = ("train", "validate", "test")
SLAKE_ORGANS = {
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
SLAKE_PLACES = folded(SLAKE_ORGANS)
LANGUAGE = {"language": "q_lang"}
HAN = re.compile(r"[\u4e00-\u9fff]")
SLAKE_FIELDS = {
    "location": "location",
    "answer type": "answer_type",
    "question": "question",
    "image name": "img_name",
}
SLAKE_ANSWER = {"answer": "answer"}


def read_slake(root: Path) -> VQAData:
    """The English rows of the three files. The image is the privacy unit. Raises `DataError`."""
    rows = list(_slake_rows(root))
    return VQAData("slake", tuple(dict.fromkeys(SLAKE_ORGANS.values())), rows, publishes_validation=True)


def _slake_rows(root: Path) -> Iterator[Row]:
    index = 0
    for split in SLAKE_SPLITS:
        for raw in read_rows(root / f"{split}.json"):
            if language_of(raw, index) == "en":
                yield _slake_row(raw, index, split, root / "imgs")
            index += 1


def other_languages(root: Path) -> int:
    """The number of rows in other languages than English, which `read_slake` leaves out."""
    parts = (read_rows(root / f"{split}.json") for split in SLAKE_SPLITS)
    return sum(language_of(raw, index) != "en" for part in parts for index, raw in enumerate(part))


def language_of(raw: dict[str, object], index: int) -> str:
    """The row's language, `en` or `zh`. Copies of the English rows alone often lack it: then the script decides."""
    if isinstance(raw, dict) and raw.get("q_lang") is None:
        return "zh" if HAN.search(str(raw.get("question"))) else "en"
    (language,) = texts(raw, index, LANGUAGE)
    if language.lower() not in ("en", "zh"):
        raise DataError(f"row {index}: unknown language; SLAKE has en and zh")
    return language.lower()


def _slake_row(raw: dict[str, object], index: int, split: str, folder: Path) -> Row:
    location, answer_type, question, name = texts(raw, index, SLAKE_FIELDS)
    if location.casefold() not in SLAKE_PLACES:
        raise DataError(f"row {index}: unknown organ; SLAKE has {', '.join(SLAKE_ORGANS)}")
    closed = is_closed(answer_type, index)
    # The published train file leaves one open question without an answer.
    answerless = not closed and raw.get("answer") == ""
    answer = "" if answerless else next(texts(raw, index, SLAKE_ANSWER))
    return Row(
        index=index,
        organ=SLAKE_PLACES[location.casefold()],
        split=split,
        closed=closed,
        question=question,
        answer=answer,
        patient=name,
        image=folder / name,
        question_type=str(raw.get("content_type") or ""),
        modality=str(raw.get("modality") or ""),
    )
