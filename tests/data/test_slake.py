"""The counts of SLAKE, read off the published files."""

import json
from collections import Counter
from pathlib import Path

import pytest

from medfedvqa.data import Split, VQAData, fold, partition

CLOSED = {"lung": (593, 116, 141), "abdomen": (688, 136, 141), "brain": (370, 99, 91), "others": (292, 71, 43)}
IMAGES = {"lung": 188, "abdomen": 145, "brain": 139, "others": 73}
PARTS = ("train", "validate", "test")


@pytest.fixture(scope="module")
def raw(data_folder: Path) -> dict[str, list[dict[str, object]]]:
    return {part: json.loads((data_folder / "slake" / f"{part}.json").read_text(encoding="utf-8")) for part in PARTS}


def test_rows_of_all_languages_and_of_english(slake: VQAData, raw: dict[str, list[dict[str, object]]]) -> None:
    assert {part: len(rows) for part, rows in raw.items()} == {"train": 9835, "validate": 2099, "test": 2094}
    assert Counter(row.split for row in slake.rows) == {"train": 4919, "validate": 1053, "test": 1061}
    assert Counter(row.split for row in slake.rows if row.closed) == {"train": 1943, "validate": 422, "test": 416}


def test_an_index_counts_the_rows_of_all_files_and_languages(
    slake: VQAData, raw: dict[str, list[dict[str, object]]]
) -> None:
    everything = [row for part in PARTS for row in raw[part]]
    assert all(everything[row.index]["question"].strip() == row.question for row in slake.rows)


@pytest.mark.parametrize(("organ", "counts"), CLOSED.items())
def test_closed_rows_of_each_organ(slake: VQAData, organ: str, counts: tuple[int, int, int]) -> None:
    """The published validation rows are the validation rows, whatever share a carved split would take."""
    rows = partition(slake, organ, Split(validation=0.5))
    assert (len(rows.train), len(rows.validate), len(rows.test)) == counts


def test_organs_come_in_the_order_of_the_sites(slake: VQAData) -> None:
    assert slake.organs == tuple(CLOSED)


@pytest.mark.parametrize(("organ", "images"), IMAGES.items())
def test_images_of_each_organ(slake: VQAData, organ: str, images: int) -> None:
    rows = partition(slake, organ, Split())
    assert len({row.image for row in (*rows.train, *rows.test)}) == images


def test_closed_answers_of_train_and_test(slake: VQAData) -> None:
    """35 distinct ones; the validation rows add one more."""
    answers = {part: {fold(row.answer) for row in slake.rows if row.closed and row.split == part} for part in PARTS}
    assert len(answers["train"] | answers["test"]) == 35
    assert len(answers["train"] | answers["test"] | answers["validate"]) == 36


def test_english_splits_share_no_image(slake: VQAData) -> None:
    train, validate, test = ({row.image for row in slake.rows if row.split == part} for part in PARTS)
    assert (len(train), len(validate), len(test)) == (450, 96, 96)
    assert not train & validate and not train & test and not validate & test


def test_languages_would_leak_if_mixed(slake: VQAData, raw: dict[str, list[dict[str, object]]]) -> None:
    """72 of the 96 English test images occur in the Chinese train rows, which the reader leaves out."""
    chinese = {row["img_name"] for row in raw["train"] if row["q_lang"] != "en"}
    test = {f"{row.image.parent.name}/{row.image.name}" for row in slake.rows if row.split == "test"}
    assert len(test & chinese) == 72


def test_the_image_is_the_privacy_unit(slake: VQAData) -> None:
    assert len({row.patient for row in slake.rows}) == len({row.image for row in slake.rows}) == 642


def test_the_one_row_without_an_answer_is_open(slake: VQAData) -> None:
    assert [(row.index, row.closed) for row in slake.rows if not row.answer] == [(1622, False)]


def test_every_image_of_a_row_exists(slake: VQAData) -> None:
    assert all(image.is_file() for image in {row.image for row in slake.rows})
