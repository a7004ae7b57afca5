"""Several data sets as one: sites by set and organ, each set's own rules, and a whole job over them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from public_folder import write_captions

import medfedvqa
from medfedvqa.data import Split, VQAData, build_site, is_built_in, load_site, read
from medfedvqa.data.data_roots import find_root
from medfedvqa.data.labelled import QUESTION, classes
from medfedvqa.data.readers import joined
from medfedvqa.errors import BackboneError, ConfigError, DataError
from medfedvqa.federation.job import JobSpec
from medfedvqa.models import bundled_for
from medfedvqa.research.benchmark.grid import Grid
from medfedvqa.research.benchmark.systems import systems_named


def class_folder(root: Path) -> Path:
    """Two sites with two classes, in a folder that several sets share; no test list."""
    from PIL import Image

    for site in ("clipart", "sketch"):
        for number, name in enumerate(("blue_whale", "cup")):
            folder = root / "image-classes" / site / name
            folder.mkdir(parents=True)
            for place in range(8):
                Image.new("L", (8, 8), 20 * place + number).save(folder / f"{place}.png")
    return root


def test_sites_are_named_by_set_and_organ_and_keep_their_own_rows(tmp_path: Path) -> None:
    """Rows, pictures and parts are those of the set alone; patients of two sets differ; other sets are not read."""
    reader, root = "phantom+image-classes", class_folder(tmp_path)
    data, alone = read(reader, root), read("phantom", None)
    assert data.organs == (
        *(f"phantom-{organ}" for organ in alone.organs),
        *("image-classes-clipart", "image-classes-sketch"),
    )
    one, own = load_site(reader, root, "phantom-chest", Split()), load_site("phantom", None, "chest", Split())
    assert one.train.questions == own.train.questions and one.answers == own.answers and one.name == reader
    assert torch.equal(one.pictures.read(3, 16), own.pictures.read(3, 16))
    assert one.patients == tuple(f"phantom/{key}" for key in own.patients)
    assert load_site(reader, None, "phantom-head", Split()).test.questions  # no folder is looked at
    with pytest.raises(DataError, match="unknown organ"):
        load_site(reader, root, "slake-lung", Split())


def test_each_set_keeps_its_rule_for_validation_rows(tmp_path: Path) -> None:
    """The phantom set publishes them, the folder does not: its train patients validate by their place."""
    data = read("phantom+image-classes", class_folder(tmp_path))
    assert data.validates("phantom-chest") and not data.validates("image-classes-clipart")
    assert len(build_site(data, "phantom-chest", Split()).validate) == len(
        load_site("phantom", None, "chest", Split()).validate
    )
    half = build_site(data, "image-classes-clipart", Split(validation=0.5))
    assert len(half.validate) and not set(half.validate.patients.tolist()) & set(half.train.patients.tolist())
    both = {"a": read("phantom", None), "b": replace(read("phantom", None), publishes_validation=False)}
    assert joined("a+b", both).publishes_validation == {"a-chest", "a-abdomen", "a-head"}


@pytest.mark.slow
def test_one_job_trains_on_sites_of_different_sets(tmp_path: Path) -> None:
    """In process, through each site's own file: its reader, its root and its organ."""
    data = medfedvqa.load("phantom+image-classes", class_folder(tmp_path))
    job = medfedvqa.Job("local", tuning="classifier", own="head", rounds=1, local_epochs=1, local_unit="batches")
    sites = ["phantom-head", "image-classes-clipart"]
    results = medfedvqa.run(job, data, sites=sites, out=tmp_path / "run")
    record = json.loads((tmp_path / "run" / "results.json").read_text())
    assert list(record["sites"]) == sites and record["data"] == "phantom+image-classes" and results is not None


@pytest.mark.parametrize("name", ["phantom+nothing", "phantom+store", "phantom+phantom", "phantom+"])
def test_only_different_sets_that_need_no_ledger_of_their_own_join(name: str) -> None:
    """A store is bound to its ledger, so it is a site of its own; a plug-in's reader joins nothing either."""
    assert not is_built_in(name) and is_built_in("slake+vqa-rad")
    with pytest.raises(ConfigError, match="a joined name must name several different sets"):
        read(name, None)
    with pytest.raises(ConfigError, match="a joined name must name several different sets"):
        find_root(name, None)


def test_a_missing_set_and_a_backbone_that_has_seen_one_are_refused(tmp_path: Path) -> None:
    """By the set's name. One bundled backbone has seen neither of the published sets, and none is without open sets."""
    with pytest.raises(DataError, match="no slake data is found"):
        find_root("phantom+slake", tmp_path)
    assert bundled_for("phantom+slake") == bundled_for("slake")
    assert bundled_for("vqa-rad+slake") == "medclip3-open"
    with pytest.raises(BackboneError, match="every bundled backbone has seen part"):
        bundled_for("open")
    grid = Grid("slake+phantom", None, tmp_path, systems_named(["bag of words"]), 1, {}, ("a",), "medclip2-slake")
    with pytest.raises(ConfigError, match="has seen slake"):
        grid.job(grid.systems[0], 0)
    assert JobSpec(method="fedavg", data="vqa-rad+slake").data == "vqa-rad+slake"


def test_classes_are_answers_to_one_question_and_a_quarter_is_tested(tmp_path: Path) -> None:
    """Folder names with blanks; a picture's part follows from its name alone, so none is moved by another's removal."""
    root = class_folder(tmp_path) / "image-classes"
    data = read("image-classes", root)
    assert data.organs == ("clipart", "sketch") and len(data.rows) == 32
    assert {row.question for row in data.rows} == {QUESTION} and all(row.closed for row in data.rows)
    assert classes(root) == ("blue whale", "cup") and {row.split for row in data.rows} == {"train", "test"}
    parts = {row.patient: row.split for row in data.rows}
    (root / "clipart" / "cup" / "0.png").unlink()
    assert {row.patient: row.split for row in read("image-classes", root).rows}.items() < parts.items()
    pictures = load_site("image-classes", root, "sketch", Split()).pictures
    assert pictures.read(0, 4).shape == (1, 4, 4)


def test_lists_say_the_parts_as_domainnet_has_them(tmp_path: Path) -> None:
    """A picture in no list is left out; the other site has none and keeps its own rule."""
    root = class_folder(tmp_path) / "image-classes"
    (root / "clipart_train.txt").write_text("clipart/cup/0.png 1\nclipart/blue_whale/1.png 0\n")
    (root / "clipart_test.txt").write_text("clipart/cup/2.png 1\n")
    rows = [row for row in read("image-classes", root).rows if row.organ == "clipart"]
    assert [(row.split, row.answer) for row in rows] == [("train", "blue whale"), ("train", "cup"), ("test", "cup")]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda root: (root / "clipart_train.txt").write_text("clipart/cup/99.png 1\n"), "line 1 of 'clipart_tr"),
        (lambda root: (root / "clipart_train.txt").write_text("clipart/cup/0.png 1\n" * 2), "line 2 of"),
        (lambda root: (root / "clipart_train.txt").write_text("clipart/cup/0.png 1\n"), "needs both of its lists"),
        (lambda root: (root / "sketch" / "empty").mkdir(), "has no picture"),
        (lambda root: (root / "clipart").rename(root / "Clip Art"), "lower-case letters"),
    ],
)  # fmt: skip
def test_a_folder_of_another_form_is_refused(tmp_path: Path, change, sentence: str) -> None:
    root = class_folder(tmp_path) / "image-classes"
    change(root)
    with pytest.raises(DataError, match=sentence):
        read("image-classes", root)


def test_a_benchmark_of_classes_gives_shared_heads_the_classes(tmp_path: Path) -> None:
    """FedDAT's Table 1: a shared head has all sites' classes, a head of a site its own."""
    systems = systems_named(["FedAvg adapter", "FedAvg adapter local head", "local classifier"])
    grid = Grid("image-classes", None, tmp_path, systems, 1, {}, ("clipart",), answers=("blue whale", "cup"))
    shared, own, _ = (grid.job(system, 0).build().public_answers for system in systems)
    assert shared == ("blue whale", "cup") and own is None
    assert isinstance(read("phantom", None), VQAData)


def test_pairs_of_picture_and_caption_are_rows_of_their_own_kind(tmp_path: Path) -> None:
    """Alone and joined with other sets; a site of questions of the same job has none."""
    root = class_folder(tmp_path)
    write_captions(root / "captions", 4)
    ward = load_site("captions", root / "captions", "ward", Split(validation=0.0))
    assert ward.captioned and len(ward.test) == 4 and ward.test.questions[0] == "a black film"
    assert ward.answers == tuple(f"a {words} film" for words in ("black", "dark grey", "light grey", "white"))
    three, listed = "image-classes+captions+phantom", ("yes", "no")
    joined_ward = load_site(three, root, "captions-ward", Split(validation=0.0), 0, listed)
    assert joined_ward.captioned and joined_ward.answers == ward.answers and not joined_ward.public_answers
    assert torch.equal(joined_ward.pictures.read(3, 8), ward.pictures.read(3, 8))
    assert not load_site(three, root, "image-classes-sketch", Split()).captioned
    with pytest.raises(DataError, match="either captions or questions"):
        load_site(three, root, "halves-1of2", Split())


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        ("16.png,p16,ward,,train", "line 18 of 'captions.csv': a caption must have 1 to 2000 characters"),
        (f"16.png,p16,ward,{'a' * 2001},train", "line 18 of 'captions.csv': a caption must have"),
        ("../16.png,p16,ward,a film,train", "line 18 of 'captions.csv' names no picture below"),
        ("16.png,,ward,a film,train", "line 18 of 'captions.csv' names no patient"),
        ("16.png,p16,ward,a film,third", "a split is train, validate, test"),
        ("16.png,p16,ward,a film", "different numbers of columns"),
        ("16.png,p16,ward,a film,train", "row 16: its picture is missing"),
    ],
)
def test_a_table_of_captions_with_a_fault_is_refused_by_its_line(tmp_path: Path, last: str, sentence: str) -> None:
    """And nothing of the line is shown; so is a missing table, an empty one and one without captions."""
    folder = write_captions(tmp_path / "captions", 4)
    table = (folder / "captions.csv").read_text()
    (folder / "captions.csv").write_text(f"{table}\n{last}")
    with pytest.raises(DataError, match=sentence) as refused:
        load_site("captions", folder, "ward", Split())
    assert "p16" not in str(refused.value) and "film" not in str(refused.value)
    renamed = table.replace("caption,", "words,", 1)
    for text, words in ((renamed, "must have the columns"), (table.split("\n")[0], "no pair")):
        (folder / "captions.csv").write_text(text)
        with pytest.raises(DataError, match=words):
            read("captions", folder)
    (folder / "captions.csv").unlink()
    with pytest.raises(DataError, match=r"'captions.csv' cannot be read"):
        read("captions", folder)
