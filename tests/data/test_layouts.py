"""Public data sets in the forms in which people have them, and what `medfedvqa data check` says of a folder."""

import io
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from PIL import Image
from public_folder import write_captions
from pyarrow.parquet import ParquetWriter

from medfedvqa.data import Split, load_site, read
from medfedvqa.data.layouts import LAYOUTS, fitting
from medfedvqa.errors import DataError

Publish = Callable[..., Path]
RawRow = Callable[..., dict[str, Any]]
Make = Callable[[Path], None]
COLUMNS = ["image", "question", "answer"]


def picture(number: int) -> bytes:
    """A PNG whose greys tell its number."""
    content = io.BytesIO()
    Image.fromarray(np.full((8, 8), 20 * number, dtype=np.uint8)).save(content, "PNG")
    return content.getvalue()


def put(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def path_vqa(root: Path) -> None:
    for part, number in (("train", 1), ("val", 3), ("test", 5)):
        rows = [
            {"image": f"{part}_{k}", "question": "Is it?", "answer": ("yes", "no")[k % 2]} for k in (number, number + 1)
        ]
        put(root / "qas" / part / f"{part}_qa.pkl", pickle.dumps(rows))
        for k in (number, number + 1):
            put(root / "images" / part / f"{part}_{k}.jpg", picture(k))


def vqa_med(root: Path) -> None:
    training, validation = root / "ImageClef-2019-VQA-Med-Training", root / "ImageClef-2019-VQA-Med-Validation"
    organ = "what organ is shown?"
    put(training / "All_QA_Pairs_train.txt", f"a|{organ}|Breast\na|is it?|yes\nb|is it?|no#none\n\n")
    put(validation / "All_QA_Pairs_val.txt", f"c|{organ}|skull and contents\nc|is it?|yes\n")
    put(root / "VQAMed2019Test" / "VQAMed2019_Test_Questions_w_Ref_Answers.txt", "d|modality|is it?|no\n")
    for number, place in enumerate((
        training / "Train_images" / "a", training / "Train_images" / "b", validation / "Val_images" / "c",
        root / "VQAMed2019Test" / "VQAMed2019_Test_Images" / "d",
    ), start=1):  # fmt: skip
        put(place.with_name(f"{place.name}.jpg"), picture(number))


def coco_vqa(root: Path) -> None:
    for part, first in (("train2014", 1), ("val2014", 3)):
        numbers = (first, first + 1)
        questions = [{"image_id": k, "question_id": 10 * k, "question": "Is it?"} for k in numbers]
        answers = [{"question_id": 10 * k, "multiple_choice_answer": ("yes", "no")[k % 2]} for k in numbers]
        put(root / f"v2_OpenEnded_mscoco_{part}_questions.json", json.dumps({"questions": questions}))
        put(root / f"v2_mscoco_{part}_annotations.json", json.dumps({"annotations": answers}))
        for k in numbers:
            put(root / part / f"COCO_{part}_{k:012}.jpg", picture(k))


def parquet(root: Path, rows: int = 6) -> None:
    """Several row groups; each picture is in two rows."""
    (root / "data").mkdir(parents=True)
    for part in ("train", "test"):
        table = pyarrow.Table.from_pylist(
            [
                {"image": {"bytes": picture((k // 2 + (part == "test") * 6) % 12), "path": None},
                 "question": f"Is it {k}?", "answer": ("yes", "no")[k % 2]}
                for k in range(rows)
            ]
        )  # fmt: skip
        with ParquetWriter(root / "data" / f"{part}-00000-of-00001.parquet", table.schema) as file:
            file.write_table(table, row_group_size=2)


def two_files(root: Path) -> None:
    """VQA-RAD as M2I2 spreads it: parts in files, organs in another case, no case."""
    for part, numbers in (("train", (1, 2)), ("test", (3, 4))):
        rows = [
            {"image_organ": "Chest", "phrase_type": "freeform", "answer_type": "CLOSED ", "question": "Is it?",
             "answer": ("yes", "no")[k % 2], "image_name": f"{k}.jpg"}
            for k in numbers
        ]  # fmt: skip
        put(root / f"{part}set.json", json.dumps(rows))
        for k in numbers:
            put(root / "images" / f"{k}.jpg", picture(k))


FORMS: dict[str, tuple[str, Make, str, int]] = {
    "path-vqa": ("path-vqa", path_vqa, "pathology", 6),
    "vqa-med": ("vqa-med", vqa_med, "others", 2),
    "coco-vqa": ("coco-vqa", coco_vqa, "pictures", 4),
    "parquet": ("parquet", parquet, "pictures", 12),
    "two files": ("vqa-rad", two_files, "chest", 4),
}
"""A set's reader, what makes it, and a site of it with the number of its rows."""


@pytest.mark.parametrize("form", FORMS)
def test_each_form_becomes_a_site_with_its_own_pictures(tmp_path: Path, form: str) -> None:
    """Every row shows the grey of the picture that was published with it."""
    reader, make, organ, count = FORMS[form]
    make(tmp_path)
    assert [layout.reader for layout in fitting(tmp_path)] == [reader]
    data = read(reader, tmp_path)
    rows = [row for row in data.rows if row.organ == organ]
    assert len(rows) == count
    greys = {row.patient: round(float(data.load(row, 8).mean()) * 255 / 20) for row in rows}
    assert len(set(greys.values())) == len(greys) == len({row.image for row in rows})
    if form != "vqa-med":
        site = load_site(reader, tmp_path, organ, Split(validation=0.0))
        assert site.answers == ("no", "yes")
        assert {row.split for row in rows} >= {"train", "test"}


def test_vqa_med_cuts_sites_by_the_answer_to_its_question_for_the_organ(tmp_path: Path) -> None:
    """All rows of a picture go with it; the first of several right answers counts."""
    vqa_med(tmp_path)
    rows = read("vqa-med", tmp_path).rows
    assert [(row.organ, row.split, row.answer) for row in rows] == [
        ("breast", "train", "Breast"), ("breast", "train", "yes"), ("others", "train", "no"),
        ("brain", "validate", "skull and contents"), ("brain", "validate", "yes"), ("others", "test", "no"),
    ]  # fmt: skip
    assert [row.index for row in rows] == list(range(6))


def test_a_parquet_file_is_read_a_few_rows_at_a_time(tmp_path: Path) -> None:
    """A file of 4 GB in one part, as pandas writes it, fits no laptop's memory. Here it has 60 MiB."""
    draw = np.random.default_rng(0)
    rows = []
    for number in range(240):
        content = io.BytesIO()
        noise = draw.integers(0, 256, (512, 512), dtype=np.uint8)
        noise[:64, :64] = number
        Image.fromarray(noise).save(content, "PNG", compress_level=0)
        rows.append({"image": {"bytes": content.getvalue()}, "question": "Is it?", "answer": str(number)})
    table = pyarrow.Table.from_pylist(rows)
    with ParquetWriter(tmp_path / "train.parquet", table.schema, use_dictionary=False, write_batch_size=8) as file:
        file.write_table(table)
    del table, rows
    program = (
        "import pyarrow, sys; from pathlib import Path; from medfedvqa.data import read; "
        "data = read('parquet', Path(sys.argv[1])); rows = data.rows; order = [0, 100, 239, 5]; "
        "assert [round(float(data.load(rows[k], 512)[0, 9, 9]) * 255) for k in order] == order; "
        "assert len(rows) == 240; print(pyarrow.default_memory_pool().max_memory() >> 20)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) < 45


def test_a_pickle_that_names_a_class_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    put(tmp_path / "qas" / "train" / "train_qa.pkl", pickle.dumps([Code()]))
    with pytest.raises(DataError, match="a pickle names a class, which could run code"):
        read("path-vqa", tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "is Git LFS's pointer"),
        (b"PAR1" + bytes(50) + b"PAR1", "is not a whole parquet file"),
    ],
)
def test_a_file_that_is_not_the_published_one_says_what_it_is(tmp_path: Path, content: bytes, words: str) -> None:
    name = "train.json" if b"git" in content else "train.parquet"
    put(tmp_path / name, content)
    with pytest.raises(DataError, match=words):
        read(fitting(tmp_path)[0].reader, tmp_path)


def slake_row(**changes: object) -> dict[str, object]:
    sound = {"location": "Lung", "answer_type": "CLOSED", "question": "Is it?", "answer": "Yes", "q_lang": "en"}
    return {**sound, "img_name": "a/source.jpg", **changes}


@pytest.mark.parametrize(
    ("changes", "kept", "answer"),
    [
        ({"q_lang": "EN"}, True, "Yes"),
        ({"q_lang": None}, True, "Yes"),
        ({"q_lang": None, "question": "这是肺吗？"}, False, ""),
        ({"q_lang": "ZH"}, False, ""),
        ({"location": "lung "}, True, "Yes"),
        ({"answer_type": "closed"}, True, "Yes"),
        ({"answer": 2.0}, True, "2"),
        ({"answer": 2}, True, "2"),
    ],
)
def test_rows_of_copies_are_read_as_those_of_the_published_file(
    publish_slake: Callable[..., Path], changes: dict[str, object], kept: bool, answer: str
) -> None:
    """Case, blanks, a language that is left out, numbers that went through a table: none drops a row in silence."""
    rows = read("slake", publish_slake({"train": [slake_row(**changes)]})).rows
    assert [row.answer for row in rows] == [answer] * kept


def test_a_set_in_which_only_some_rows_name_the_case_is_refused(publish: Publish, raw_row: RawRow) -> None:
    """One patient could count as two."""
    with pytest.raises(DataError, match="row 1: the case is missing or empty"):
        read("vqa-rad", publish([raw_row(), raw_row(image_case_url=None)]))


def check(*words: str | Path, code: int) -> str:
    """What the command prints, without torch."""
    program = "import sys; from medfedvqa.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", program, "data", "check", *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == code, ended
    return ended.stdout + ended.stderr


def test_data_check_names_form_languages_parts_and_what_is_missing_before_torch(tmp_path: Path) -> None:
    """All missing pictures, not the first; the packed archive that may hold them; exit code 1."""
    rows = [slake_row(img_name=f"{k}/source.jpg", answer=("Yes", "yes ", "yes.")[k]) for k in range(3)]
    rows += [slake_row(q_lang="zh", question="这是肺吗？")]
    for part in ("train", "validate", "test"):
        put(tmp_path / f"{part}.json", json.dumps(rows if part == "train" else rows[:1]))
    put(tmp_path / "imgs" / "0" / "source.jpg", picture(1))
    put(tmp_path / "imgs.zip", "PK")
    printed = check(tmp_path, code=1)
    for words in (
        "form: SLAKE as published", "train 3, validate 1, test 1", "not read: 1 rows in Chinese",
        "answers: 2 different ones; most frequent: yes 4, yes. 1", "1 answers differ from another by a final dot",
        "1 test questions are asked of the same picture in the other parts",
        "2 pictures are missing or empty: imgs.zip is still packed: unpack it. imgs/1/source.jpg, imgs/2/source.jpg",
    ):  # fmt: skip
        assert words in printed
    shutil.copytree(tmp_path / "imgs" / "0", tmp_path / "imgs" / "1")
    shutil.copytree(tmp_path / "imgs" / "0", tmp_path / "imgs" / "2")
    assert "no problem was found" in check(tmp_path, code=0)


def test_data_check_asks_which_set_it_is_if_a_folder_has_two_forms(tmp_path: Path) -> None:
    path_vqa(tmp_path)
    put(tmp_path / "train.json", "[]")
    assert "SLAKE as published or PathVQA as published: name one by --data" in check(tmp_path, code=1)
    assert "form: PathVQA as published" in check(tmp_path, "--data", "path-vqa", code=0)


def test_data_check_lists_the_forms_and_says_where_one_is(tmp_path: Path) -> None:
    """The folder above an unpacked set is named often."""
    printed = check(tmp_path, code=1)
    assert all(layout.title in printed for layout in LAYOUTS)
    put(tmp_path / "Slake1.0" / "train.json", "[]")
    assert "its folder 'Slake1.0' holds SLAKE as published (--data slake)" in check(tmp_path, code=1)


def test_data_check_counts_captions_and_names_the_pictures_that_are_missing(tmp_path: Path) -> None:
    """By part and by site, with the captions by frequency; a pair whose picture is absent stops a run."""
    write_captions(tmp_path / "ward", 4)
    printed = check(tmp_path / "ward", code=0)
    for words in (
        "form: pictures with captions; train with `--data captions", "captions by part: train 12, test 4",
        "captions by site: ward 16", "pictures: 16; patients or pictures as units: 16",
        "captions: 4 different ones; most frequent: a black film 4", "no problem was found",
    ):  # fmt: skip
        assert words in printed
    (tmp_path / "ward" / "3.png").unlink()
    assert "1 pictures are missing or empty: 3.png" in check(tmp_path / "ward", code=1)


ROWS = "patient,site,split,age 18..95,weight 0..200,label"


def test_data_check_counts_the_labels_features_and_patients_of_a_table(tmp_path: Path) -> None:
    """Its rows have no pictures that could be missing; a site with test rows alone stops a run."""
    put(tmp_path / "table.csv", f"{ROWS}\np1,north,train,40,70,ill\np1,north,train,41,,well\np2,north,test,99,80,ill\n")
    printed = check(tmp_path, code=0)
    for words in (
        "form: patients as rows of features; train with `--data table", "labels by part: train 2, test 1",
        "labels by site: north 3", "features: 2, age 18..95, weight 0..200; patients: 2",
        "labels: 2 different ones; most frequent: ill 2, well 1",
    ):  # fmt: skip
        assert words in printed
    put(tmp_path / "table.csv", f"{ROWS}\np1,north,train,40,70,ill\np2,south,test,99,80,ill\n")
    assert "problem: the site 'south' has no rows for training" in check(tmp_path, code=1)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("table.csv", "a,b\n", "'table.csv' must have the columns patient, site, features with their range"),
        ("table.csv", f"{ROWS}\np1,north,train,old,70,ill\n", "line 2 of 'table.csv': a feature is a number or empty"),
        ("table.csv", f"{ROWS}\n,north,train,40,70,ill\n", "line 2 of 'table.csv' names no patient"),
        (
            "captions.csv",
            "picture,patient\n",
            "'captions.csv' must have the columns picture, patient, site and caption",
        ),
        (
            "captions.csv",
            "picture,patient,site,caption\n../a.png,p1,ward,a\n",
            "line 2 of 'captions.csv' names no picture",
        ),
        (
            "captions.csv",
            "picture,patient,site,caption\na.png,p1,ward,\n",
            "line 2 of 'captions.csv': a caption must have 1 to",
        ),
    ],
)
def test_data_check_refuses_a_table_by_its_line_and_shows_nothing_of_it(
    tmp_path: Path, name: str, content: str, words: str
) -> None:
    put(tmp_path / name, content)
    printed = " ".join(check(tmp_path, code=1).split())
    assert words in printed and "p1" not in printed
