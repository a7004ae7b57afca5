"""VQA-RAD in its published layout (Lau et al., Scientific Data 2018; CC0)."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from medfedvqa.data.published_files import is_closed, read_rows, texts
from medfedvqa.data.schema import Row, VQAData
from medfedvqa.errors import DataError

QUESTIONS = "VQA_RAD Dataset Public.json"
IMAGES = "VQA_RAD Image Folder"
ORGANS = {"CHEST": "chest", "ABD": "abdomen", "HEAD": "head"}
SPLITS = {"freeform": "train", "para": "train", "test_freeform": "test", "test_para": "test"}
FIELDS = {
    "organ": "image_organ",
    "phrase type": "phrase_type",
    "answer type": "answer_type",
    "question": "question",
    "answer": "answer",
    "case": "image_case_url",
    "image name": "image_name",
}


def read(root: Path) -> VQAData:
    """All 2,248 rows. The patient is the MedPix case. Raises `DataError`.

    Five images have two to four case addresses whose last digits count up, as a spreadsheet fills them. Cases that
    share an image are therefore one patient; else a split by case would put an image on both sides.
    """
    rows = [_row(raw, index, root / IMAGES) for index, raw in enumerate(read_rows(root / QUESTIONS))]
    patients = _joined((row.patient, row.image) for row in rows)
    rows = [replace(row, patient=patients[row.patient]) for row in rows]
    return VQAData("vqa-rad", tuple(ORGANS.values()), rows)


def _row(raw: object, index: int, folder: Path) -> Row:
    organ, phrase, answer_type, question, answer, case, name = texts(raw, index, FIELDS)
    if organ not in ORGANS:
        raise DataError(f"row {index}: unknown organ; VQA-RAD has {', '.join(ORGANS)}")
    if phrase not in SPLITS:
        raise DataError(f"row {index}: unknown phrase type; VQA-RAD has {', '.join(SPLITS)}")
    return Row(
        index=index,
        organ=ORGANS[organ],
        split=SPLITS[phrase],
        closed=is_closed(answer_type, index),
        question=question,
        answer=answer,
        patient=case,
        image=folder / name,
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
