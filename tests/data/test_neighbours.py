"""Neighbouring data sets: without all rows of one patient, nothing about any other patient is another."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from medfedvqa.data import CLOSED_ANSWERS, Row, SiteData, Split, VQAData, build_site, load_site, read, views
from medfedvqa.ingest.store import FORMAT, Image, StoredRow, write_lists, write_manifest

PARTS = ("train", "validate", "test")
SPLITS = (Split(seed=3), Split("patient", seed=3))
Account = dict[str, list[tuple[object, ...]]]


def named(row: Row, size: int) -> torch.Tensor:
    """A picture whose one value stands for the name of its file."""
    digest = int.from_bytes(hashlib.sha256(str(row.image).encode()).digest()[:3])
    return torch.full((1, size, size), digest / 2**24)


def accounts(site: SiteData) -> Account:
    """By patient's key: part, question, answer's number, picture and view seed of each of the patient's rows."""
    pictures, seeds = site.pictures.load(1).flatten().tolist(), site.view_seeds(11)
    rows: defaultdict[str, list[tuple[object, ...]]] = defaultdict(list)
    for name, part in zip(PARTS, site.parts, strict=True):
        numbers = zip(part.answers.tolist(), part.pictures.tolist(), part.patients.tolist(), strict=True)
        for question, (answer, picture, patient) in zip(part.questions, numbers, strict=True):
            rows[site.patients[patient]].append((name, question, answer, pictures[picture], seeds[picture]))
    return dict(rows)


def neighbours(data: VQAData, organ: str, split: Split) -> Iterator[tuple[str, Account, Account]]:
    """Each patient of the organ, the accounts of the others beside that patient, and their accounts without."""
    data = replace(data, load=named)
    whole = accounts(build_site(data, organ, split, CLOSED_ANSWERS))
    for gone in whole:
        rest = replace(data, rows=[row for row in data.rows if row.patient != gone])
        kept = {patient: rows for patient, rows in whole.items() if patient != gone}
        yield gone, kept, accounts(build_site(rest, organ, split, CLOSED_ANSWERS))


def check_all(data: VQAData, split: Split, patients: int) -> None:
    """Every neighbour of every site; `patients`: how many there must be, so that none is left out."""
    count = 0
    for organ in data.organs:
        for _, kept, without in neighbours(data, organ, split):
            assert without == kept
            count += 1
    assert count == patients


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A store of nine patients with two pictures each, of whom one alone has rows to validate on."""
    images, rows = [], []
    for number in range(9):
        patient = hashlib.sha256(f"patient {number}".encode()).hexdigest()[:32]
        for view in range(2):
            digest = hashlib.sha256(f"{number}/{view}".encode()).hexdigest()
            facts = {"patient": patient, "organ": "chest", "frame": 0, "frames": 1, "boxes": [], "blanked": 0.0}
            images.append(Image(id=digest[:32], sha256=digest, **facts))
            for question, answer in (("Is there a mass?", "yes"), ("Which side?", "left")):
                part = ("validate", "test")[number % 2] if number < 2 else "train"
                row = {"organ": "chest", "split": part, "question": question, "answer": answer}
                rows.append(StoredRow(index=len(rows), image=digest[:32], **row))
    counts = {"files": 18, "stored": 18, "unasked": 0, "quarantined": {}, "redacted": 0, "rows": len(rows)}
    options = {"side": 64, "frame": "middle", "retain": [], "max_pixels": 1, "memory": 1, "seconds": 1}
    manifest = {
        "format": FORMAT,
        "made": "2026-01-01T00:00:00Z",
        "key": "0" * 32,
        "options": options,
        "deidentification": [],
        "versions": {},
        "code": "0" * 64,
        "counts": counts | {"rows_left_out": {}, "patients": 9},
    }
    write_manifest(tmp_path, manifest | write_lists(tmp_path, images, rows))
    return tmp_path


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: split.kind)
def test_phantom_patients_do_not_depend_on_each_other(split: Split) -> None:
    """All 216 patients of the three sites, each taken away in turn."""
    data = read("phantom", None)
    check_all(data, split, len({row.patient for row in data.rows}))


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: split.kind)
def test_patients_of_a_store_do_not_depend_on_each_other(stored: Path, split: Split) -> None:
    """Also not on the one patient who has rows to validate on: nobody takes that patient's place."""
    check_all(read("store", stored), split, 9)
    if split.kind == "official":
        data = read("store", stored)
        rest = replace(data, rows=[row for row in data.rows if row.split != "validate"])
        assert not build_site(rest, "chest", split).validate.questions


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: split.kind)
def test_vqa_rad_patients_do_not_depend_on_each_other(vqa_rad: VQAData, split: Split) -> None:
    """All patients with closed rows."""
    check_all(vqa_rad, split, len({row.patient for row in vqa_rad.rows if row.closed}))


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS, ids=lambda split: split.kind)
def test_slake_patients_do_not_depend_on_each_other(slake: VQAData, split: Split) -> None:
    """All images with closed rows: the image is the patient."""
    check_all(slake, split, len({row.patient for row in slake.rows if row.closed}))


def test_the_key_of_a_vqa_rad_patient_does_not_depend_on_the_order_of_rows(
    publish: Callable[..., Path], raw_row: Callable[..., dict[str, object]]
) -> None:
    """Cases that share an image are named by the first in the alphabet, not by the first that is read."""
    sightings = [("3", "x"), ("1", "y"), ("2", "y"), ("2", "x"), ("0", "z")]
    rows = [raw_row(image_case_url=f"case-{case}", image_name=f"{image}.jpg") for case, image in sightings]
    root = publish(rows)
    for turn in range(len(rows)):
        for order in (rows[turn:] + rows[:turn], (rows[turn:] + rows[:turn])[::-1]):
            (root / "VQA_RAD Dataset Public.json").write_text(json.dumps(order))
            keys = {row.image.stem: row.patient for row in read("vqa-rad", root).rows}
            assert keys == {"x": "case-1", "y": "case-1", "z": "case-0"}


def test_two_patients_who_share_a_picture_have_one_each() -> None:
    """The second's picture and views stay what they are when the first, who showed it before, is gone."""
    facts = [("a", "1", "no"), ("a", "2", "yes"), ("b", "2", "no"), ("b", "3", "yes")]
    rows = [Row(i, "chest", "train", True, "q", answer, p, Path(image)) for i, (p, image, answer) in enumerate(facts)]
    data = VQAData("made", ("chest",), rows, named)
    for _, kept, without in neighbours(data, "chest", Split(validation=0.0)):
        assert without == kept
    assert len(build_site(data, "chest", Split(validation=0.0)).pictures) == 4


def test_view_seeds_are_of_patient_and_picture_and_seed() -> None:
    """All different from each other and from those of another seed; fit for the generator that draws views."""
    site = load_site("phantom", None, "chest", Split())
    first, second = site.view_seeds(0), site.view_seeds(1)
    assert len(first) == len(site.pictures) == len(set(first)) and not set(first) & set(second)
    assert all(0 <= seed < 2**32 for seed in first) and site.view_seeds(0) == first
    assert site.view_seeds(2**200) != first
    pixels = site.pictures.load(16)[:2]
    assert views(pixels, 3, first[:2]).shape == (2, 3, 1, 16, 16)


def test_views_of_a_site_without_a_patient_are_the_same_pixels() -> None:
    """From the data set to the augmented picture, for the first patient, whom all numbers come after."""
    data = read("phantom", None, "head")
    whole = build_site(data, "head", Split())
    gone = whole.patients[0]
    rest = build_site(replace(data, rows=[row for row in data.rows if row.patient != gone]), "head", Split())
    mine = views(whole.pictures.load(16), 2, whole.view_seeds(5))
    own = torch.cat([part.pictures[part.patients == 0] for part in whole.parts]).unique()
    others = [picture for picture in range(len(mine)) if picture not in own]
    assert torch.equal(views(rest.pictures.load(16), 2, rest.view_seeds(5)), mine[others])


def test_a_picture_that_no_row_shows_has_a_seed_that_nobody_changes() -> None:
    """As of canaries that are drawn and not put in."""
    site = load_site("phantom", None, "site-001", Split())
    none = torch.tensor([], dtype=torch.int64)
    bare = replace(site, train=site.train.chosen(none), validate=site.validate.chosen(none))
    shown = set(bare.test.pictures.tolist())
    assert all((seed == 0) == (picture not in shown) for picture, seed in enumerate(bare.view_seeds(0)))


def test_keys_are_in_no_repr() -> None:
    """A site that is printed shows no patient."""
    site = load_site("phantom", None, "site-001", Split())
    assert site.patients and not any(key in repr(site) for key in site.patients)


def test_patients_are_the_keys_of_the_numbers() -> None:
    """By number, all parts together; a single row takes its own patient's key with it, as number 0."""
    data = read("phantom", None, "site-001")
    site, held = build_site(data, "site-001", Split()), defaultdict(set)
    for name, part in zip(PARTS, site.parts, strict=True):
        held[name] = {site.patients[patient] for patient in part.patients.tolist()}
        assert held[name] == {row.patient for row in data.rows if row.split == name}
    assert site.trained_patients == held["train"] | held["validate"]
    assert len(set(site.patients)) == len(site.patients) == len({row.patient for row in data.rows})
    last = len(site.train) - 1
    single = site.only("train", last)
    assert single.patients == (site.patients[int(site.train.patients[last])],)
    assert single.test.patients.tolist() == [0] and len(single.view_seeds(0)) == 1
