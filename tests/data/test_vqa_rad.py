"""The counts of VQA-RAD, read off the published files."""

import json
from collections import Counter
from pathlib import Path

import pytest

from medfedvqa.data import Split, VQAData, fold, load_site, partition

OFFICIAL = Split(validation=0.0)
CLOSED = {"chest": (395, 116), "abdomen": (337, 102), "head": (295, 54)}


@pytest.fixture(scope="module")
def raw(data_folder: Path) -> list[dict[str, object]]:
    return json.loads((data_folder / "vqa-rad" / "VQA_RAD Dataset Public.json").read_text(encoding="utf-8"))


def test_official_split_has_the_published_rows(vqa_rad: VQAData) -> None:
    assert vqa_rad.organs == ("chest", "abdomen", "head")
    assert Counter(row.split for row in vqa_rad.rows) == {"train": 1797, "test": 451}
    assert [row.index for row in vqa_rad.rows] == list(range(2248))


@pytest.mark.parametrize(("organ", "train", "test"), [(organ, *counts) for organ, counts in CLOSED.items()])
def test_closed_rows_of_each_organ(vqa_rad: VQAData, organ: str, train: int, test: int) -> None:
    rows = partition(vqa_rad, organ, OFFICIAL)
    assert (len(rows.train), len(rows.validate), len(rows.test)) == (train, 0, test)
    assert all(row.closed and row.organ == organ for row in (*rows.train, *rows.test))


def test_closed_answers(vqa_rad: VQAData) -> None:
    """64 distinct closed answers once case and spaces are folded; 587 yes, 606 no."""
    answers = Counter(fold(row.answer) for row in vqa_rad.rows if row.closed)
    assert (len(answers), answers["yes"], answers["no"]) == (64, 587, 606)
    assert len({row.answer for row in vqa_rad.rows if row.closed}) > 64


def test_images_of_test_also_occur_in_train(vqa_rad: VQAData) -> None:
    """202 of 203: the official split says nothing about unseen patients."""
    train, test = ({row.image for row in vqa_rad.rows if row.split == part} for part in ("train", "test"))
    assert (len(test), len(test & train)) == (203, 202)


def test_one_image_of_315_is_in_no_row(vqa_rad: VQAData, data_folder: Path) -> None:
    files = set((data_folder / "vqa-rad" / "VQA_RAD Image Folder").iterdir())
    used = {row.image for row in vqa_rad.rows}
    assert (len(files), len(used), len(files - used)) == (315, 314, 1)
    assert used <= files


def test_dirty_rows_are_read_as_meant(vqa_rad: VQAData, raw: list[dict[str, object]]) -> None:
    """Two rows say 'CLOSED ', five answers are numbers, two question types are misspelt."""
    spaced = [index for index, row in enumerate(raw) if row["answer_type"] == "CLOSED "]
    numbers = [index for index, row in enumerate(raw) if isinstance(row["answer"], int)]
    misspelt = [index for index, row in enumerate(raw) if row["question_type"] in ("PRSE", "ATRIB")]
    assert (len(spaced), len(numbers), len(misspelt)) == (2, 5, 2)
    assert all(vqa_rad.rows[index].closed for index in spaced)
    assert all(vqa_rad.rows[index].answer == str(raw[index]["answer"]) for index in numbers)
    assert all(vqa_rad.rows[index].question == str(raw[index]["question"]).strip() for index in misspelt)


def test_duplicates_are_kept_and_never_cross_a_patient_split(vqa_rad: VQAData) -> None:
    """The published counts include four repeated triplets; a repeat has its image's patient."""
    seen = Counter((row.image, fold(row.question), fold(row.answer)) for row in vqa_rad.rows)
    assert sum(count - 1 for count in seen.values()) == 4


def test_cases_that_share_an_image_are_one_patient(vqa_rad: VQAData, raw: list[dict[str, object]]) -> None:
    """320 addresses, but five images carry two to four of them: 313 patients, none sharing an image."""
    assert len({row["image_case_url"] for row in raw}) == 320
    assert len({row.patient for row in vqa_rad.rows}) == 313
    assert len({(row.image, row.patient) for row in vqa_rad.rows}) == len({row.image for row in vqa_rad.rows})


def test_no_patient_has_rows_of_two_organs(vqa_rad: VQAData) -> None:
    assert len({(row.patient, row.organ) for row in vqa_rad.rows}) == 313


def test_patient_split_shares_no_patient_and_no_image_between_parts(vqa_rad: VQAData) -> None:
    """Over all organs together, so that membership can be audited."""
    sites = [partition(vqa_rad, organ, Split("patient", seed=3)) for organ in vqa_rad.organs]
    parts = [[row for site in sites for row in getattr(site, part)] for part in ("train", "validate", "test")]
    assert sum(map(len, parts)) == 1299
    for key in ("patient", "image"):
        held = [{getattr(row, key) for row in part} for part in parts]
        assert not held[0] & held[1] and not held[0] & held[2] and not held[1] & held[2]


def test_patient_split_is_the_same_on_every_machine(vqa_rad: VQAData) -> None:
    """The digests are part of what a job means: another way to make them would move patients under trained models."""
    sizes = {}
    for organ in vqa_rad.organs:
        rows = partition(vqa_rad, organ, Split("patient", seed=0))
        sizes[organ] = len(rows.train), len(rows.validate), len(rows.test)
    assert sizes == {"chest": (382, 37, 92), "abdomen": (290, 86, 63), "head": (262, 40, 47)}


def test_pictures_of_a_site_are_its_distinct_ones_in_0_to_1(data_folder: Path) -> None:
    site = load_site("vqa-rad", data_folder / "vqa-rad", "head", OFFICIAL)
    pixels = site.pictures.load(64)
    assert pixels.shape == (len(site.pictures), 1, 64, 64) and len(site.pictures) == 94
    assert pixels.min() >= 0 and 0.5 < pixels.max() <= 1
