"""VQA-RAD in its published layout (Lau et al., Scientific Data 2018; CC0)."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from medfedvqa.data.published_files import folded, is_closed, read_rows, texts
from medfedvqa.data.schema import Row, VQAData
from medfedvqa.errors import DataError

QUESTIONS = "VQA_RAD Dataset Public.json"
PARTS = {"train": "trainset.json", "test": "testset.json"}
"""The files in which MEVF and M2I2 distribute the set."""
IMAGES = ("VQA_RAD Image Folder", "images", "imgs")
"""The folder of pictures, in the published form and in copies."""
ORGANS = {"CHEST": "chest", "ABD": "abdomen", "HEAD": "head"}
PLACES = folded({**ORGANS, "abdomen": "abdomen"})
SPLITS = {"freeform": "train", "para": "train", "test_freeform": "test", "test_para": "test"}
_TYPO = {"PRSE": "PRES"}
"""Types of questions that the published file misspells."""
FIELDS = {
    "organ": "image_organ",
    "phrase type": "phrase_type",
    "answer type": "answer_type",
    "question": "question",
    "answer": "answer",
    "image name": "image_name",
    "case": "image_case_url",
}


def read(root: Path) -> VQAData:
    """All 2,248 rows. The patient is the MedPix case. Raises `DataError`.

    Five images have two to four case addresses whose last digits count up, as a spreadsheet fills them. Cases that
    share an image are therefore one patient; else a split by case would put an image on both sides.
    """
    raws = [(raw, split) for split, path in _files(root).items() for raw in read_rows(path)]
    # Some copies leave out every case: then the picture is the unit. Where only some rows lack it, they are refused.
    known = any(isinstance(raw, dict) and raw.get(FIELDS["case"]) for raw, _ in raws)
    folder = root / next((name for name in IMAGES if (root / name).is_dir()), IMAGES[0])
    rows = [_row(raw, index, folder, split, known) for index, (raw, split) in enumerate(raws)]
    patients = _joined((row.patient, row.image) for row in rows)
    rows = [replace(row, patient=patients[row.patient]) for row in rows]
    return VQAData("vqa-rad", tuple(ORGANS.values()), rows)


def _files(root: Path) -> dict[str, Path]:
    """The files of rows, by their part; the published file has the parts of its rows in them."""
    if not (root / QUESTIONS).is_file() and (root / PARTS["train"]).is_file():
        return {split: root / name for split, name in PARTS.items()}
    return {"": root / QUESTIONS}


def _row(raw: dict[str, object], index: int, folder: Path, split: str, has_cases: bool) -> Row:
    fields = FIELDS if has_cases else {ours: name for ours, name in FIELDS.items() if ours != "case"}
    organ, phrase, answer_type, question, answer, name, *case = texts(raw, index, fields)
    if organ.casefold() not in PLACES:
        raise DataError(f"row {index}: unknown organ; VQA-RAD has {', '.join(ORGANS)}")
    if phrase not in SPLITS:
        raise DataError(f"row {index}: unknown phrase type; VQA-RAD has {', '.join(SPLITS)}")
    return Row(
        index=index,
        organ=PLACES[organ.casefold()],
        split=split or SPLITS[phrase],
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
