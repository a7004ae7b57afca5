"""From a folder and questions to a store, and again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from pydicom.dataset import Dataset

from medfedvqa.data import Split, load_site, read
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.organs import checked_organs
from medfedvqa.ingest.pseudonyms import load_pseudonyms
from medfedvqa.ingest.resolve import part_of
from medfedvqa.ingest.store import read_store

Make = Callable[..., Dataset]


def fill(place, make_dicom: Make, make_picture) -> None:
    """Six images of three patients, junk and a pipe; questions about five."""
    for number in range(6):
        place.add(f"deep/er/{number}.dcm", make_dicom(make_picture(number), PatientID=f"SECRET-{number // 2}"))
    place.add("junk/readme.txt", b"SECRET notes")
    place.add("junk/empty", b"")
    os.mkfifo(place.dicom / "pipe")
    (place.dicom / "link.dcm").symlink_to(place.dicom / "deep" / "er" / "0.dcm")
    place.ask(*(f"{number}.dcm" for number in range(5)))


@pytest.fixture
def filled(place, make_dicom: Make, make_picture):
    fill(place, make_dicom, make_picture)
    return place


@pytest.fixture(scope="module")
def ingested(tmp_path_factory, make_place, make_dicom: Make, make_picture):
    """A filled place after its first ingestion; tests work on copies."""
    place = make_place(tmp_path_factory.mktemp("ingested"))
    fill(place, make_dicom, make_picture)
    place.counts = place.ingest(workers=2).counts
    return place


@pytest.fixture
def store(ingested, tmp_path):
    """A copy of that place, with its store."""
    return ingested.copy(tmp_path)


def quarantine(place) -> list[dict[str, object]]:
    return [json.loads(line) for line in (place.out / "quarantine.jsonl").read_text().splitlines()]


def test_a_mixed_folder_becomes_a_store_that_a_site_reads(ingested) -> None:
    """Images that no question is about are not kept; links and pipes are not opened."""
    counts = ingested.counts
    assert (counts.files, counts.stored, counts.unasked, counts.rows, counts.patients) == (10, 5, 1, 5, 3)
    assert counts.quarantined == {"not_dicom": 2, "not_regular": 2} and not counts.rows_left_out
    assert {entry["file"] for entry in quarantine(ingested)} == {"junk/readme.txt", "junk/empty", "pipe", "link.dcm"}
    data = read("store", ingested.out)
    assert data.organs == ("chest",) and len({row.patient for row in data.rows}) == 3
    site = load_site("store", ingested.out, "chest", Split("patient", fractions=(1, 0, 0)))
    pictures = site.pictures.load(32)
    assert pictures.shape == (5, 1, 32, 32) and pictures.dtype == torch.float32 and 0.9 < pictures.max() <= 1


def test_nothing_that_is_shared_names_a_file_or_a_patient(store) -> None:
    """Only the site's own quarantine list names files; journal, lists, manifest and pictures name nobody."""
    for path in store.out.rglob("*"):
        if path.is_file():
            assert path.stat().st_mode & 0o077 == 0
            content = path.read_bytes()
            assert b"SECRET" not in content
            assert b"er/" not in content or path.name == "quarantine.jsonl"


def test_a_second_ingestion_reads_nothing_again(store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures stay the same files; only the time of the manifest may differ."""
    first = read_store(store.out)[0]
    before = {path: path.stat().st_mtime_ns for path in (store.out / "images").iterdir()}
    monkeypatch.setattr(
        "medfedvqa.ingest.worker_pool.WorkerProcess._start", lambda self: pytest.fail("a worker was started")
    )
    second = store.ingest()
    assert {path: path.stat().st_mtime_ns for path in (store.out / "images").iterdir()} == before
    assert second.model_dump(exclude={"made", "counts"}) == first.model_dump(exclude={"made", "counts"})
    assert second.counts.stored == first.counts.stored == 5 and second.counts.rows == 5


def test_new_changed_moved_and_removed_files_are_followed(store, make_dicom: Make, make_picture) -> None:
    """A file that is gone takes its picture with it, so that a patient can be withdrawn."""
    before = {row.image: row for row in read_store(store.out)[2]}
    folder = store.dicom / "deep" / "er"
    (folder / "0.dcm").unlink()
    (folder / "1.dcm").rename(store.dicom / "1.dcm")
    store.add("deep/er/2.dcm", make_dicom(make_picture(70), PatientID="SECRET-1"))
    store.add("6.dcm", make_dicom(make_picture(6), PatientID="SECRET-9"))
    store.ask("0.dcm", *(f"{number}.dcm" for number in range(1, 7)))
    counts = store.ingest().counts
    assert counts.rows == 6 and counts.rows_left_out == {"no_such_image": 1} and counts.stored == 6
    images = {path.stem for path in (store.out / "images").iterdir()}
    assert images == {row.image for row in read_store(store.out)[2]} and len(images & set(before)) == 3


@pytest.mark.parametrize("patient", range(3))
def test_without_one_patient_every_other_row_and_picture_is_the_same(store, patient: int) -> None:
    """Files and questions of one patient are taken away: part, pseudonym, picture and views of the others stay."""

    def facts() -> dict[str, tuple[object, ...]]:
        _, images, rows = read_store(store.out)
        site = load_site("store", store.out, "chest", Split("patient", fractions=(1, 0, 0)), 0, ("yes", "no"))
        seeds = dict(zip(site.train.questions, [site.view_seeds(0)[p] for p in site.train.pictures], strict=True))
        pixels = {row.image: (store.out / "images" / f"{row.image}.dcm").read_bytes() for row in rows}
        return {
            row.question: (row.split, row.answer, images[row.image], pixels[row.image], seeds[row.question])
            for row in rows
        }

    whole, numbers = facts(), [number for number in range(5) if number // 2 != patient]
    lines = store.questions.read_text().splitlines(keepends=True)
    store.questions.write_text("".join([lines[0], *(lines[1 + number] for number in numbers)]))
    for number in {2 * patient, 2 * patient + 1}:
        (store.dicom / "deep" / "er" / f"{number}.dcm").unlink()
    store.ingest()
    assert facts() == {f"Question {number}?": whole[f"Question {number}?"] for number in numbers}


def test_other_options_make_all_pictures_anew_and_another_key_is_refused(store) -> None:
    before = {path.name: path.read_bytes() for path in (store.out / "images").iterdir()}
    store.ingest(retain=("dates",))
    after = {path.name: path.read_bytes() for path in (store.out / "images").iterdir()}
    assert set(before) == set(after) and all(before[name] != after[name] for name in before)
    load_pseudonyms(store.key.with_name("other"))
    store.key = store.key.with_name("other")
    with pytest.raises(ConfigError, match="another key"):
        store.ingest()


@pytest.mark.slow
def test_an_ingestion_that_was_killed_goes_on(filled, make_dicom: Make, make_picture) -> None:
    """kill -9 in the middle: what was done is not done again, the end is that of an undisturbed one."""
    names = [f"more/{number}.dcm" for number in range(30)]
    for number, name in enumerate(names):
        filled.add(name, make_dicom(make_picture(100 + number, 96), PatientID=f"SECRET-{number}"))
    filled.ask(*names)
    limits = ["--side", "64", "--max-pixels", str(2**20), "--memory", "2048", "--seconds", "60", "--workers", "1"]
    script = "from medfedvqa.cli import main; main()"
    places = [
        str(filled.dicom),
        "--questions",
        str(filled.questions),
        "--out",
        str(filled.out),
        "--key",
        str(filled.key),
    ]
    command = [sys.executable, "-c", script, "ingest", *places, *limits]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = filled.out / "journal.jsonl"
    while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < 12):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not (filled.out / "manifest.json").exists()
    with journal.open("ab") as file:
        file.write(b'{"source": "cut')
    done = {path: path.stat().st_mtime_ns for path in (filled.out / "images").glob("[0-9a-f]*.dcm")}
    recorded = {json.loads(line)["source"] for line in journal.read_bytes().splitlines()[:-1]}
    counts = filled.ingest().counts
    assert 12 <= len(recorded) < 40 and counts.stored == counts.rows == 30
    kept = {path: path.stat().st_mtime_ns for path in done}
    assert sum(kept[path] != done[path] for path in done) <= 1  # the one that was written and not yet recorded
    alone = read("store", filled.out)
    assert len(alone.rows) == 30 and not list((filled.out / "images").glob(".*"))


def test_a_question_names_its_image_in_four_ways(place, make_dicom: Make) -> None:
    """File name, path within the folder, SOP instance UID, accession number."""
    dataset = make_dicom(AccessionNumber="A 77")
    place.add("a/b.dcm", dataset)
    place.ask("b.dcm", "a/b.dcm", str(dataset.SOPInstanceUID), "A 77")
    assert place.ingest().counts.rows == 4


def test_questions_without_one_image_are_left_out_with_the_reason(place, make_dicom: Make, make_picture) -> None:
    """Two images of one name, none, a quarantined one, and the patient's name, ID or birth date in the text."""
    place.add("a/1.dcm", make_dicom(make_picture(1), AccessionNumber="A-1"))
    place.add("b/1.dcm", make_dicom(make_picture(2), AccessionNumber="A-1"))
    place.add("flat.dcm", make_dicom(np.full((32, 32), 7, np.uint16)))
    rows = [
        {"image": "A-1", "question": "Q?", "answer": "yes"},
        {"image": "1.dcm", "question": "Q?", "answer": "yes"},
        {"image": "SECRET.dcm", "question": "Q?", "answer": "yes"},
        {"image": "flat.dcm", "question": "Q?", "answer": "yes"},
        {"image": "a/1.dcm", "question": "Is Mrs. Secret well?", "answer": "yes"},
        {"image": "a/1.dcm", "question": "Born on 03.02.1970?", "answer": "yes"},
        {"image": "a/1.dcm", "question": "Is it safe?", "answer": "SECRET-1!"},
        {"image": "a/1.dcm", "question": "Is it well?", "answer": "yes", "organ": "abdomen", "split": "test"},
    ]
    with place.questions.open("w") as file:
        file.write("image,question,answer,organ,split\n")
        file.writelines(
            ",".join(row.get(n, "") for n in ("image", "question", "answer", "organ", "split")) + "\n" for row in rows
        )
    counts = place.ingest().counts
    assert counts.quarantined == {"blank": 1} and counts.rows == 1
    assert counts.rows_left_out == {
        "several_images": 2, "no_such_image": 1, "image_quarantined": 1, "identifier_in_text": 3,
    }  # fmt: skip
    (row,) = read_store(place.out)[2]
    assert (row.organ, row.split) == ("abdomen", "test")


def test_answers_that_contradict_each_other_are_left_out_whatever_names_the_image(place, make_dicom: Make) -> None:
    """Path, file name and accession number are one image; all rows of the question are listed, and no other row."""
    place.add("a/1.dcm", make_dicom(AccessionNumber="A-1"))
    lines = ("a/1.dcm,Left?,yes", "A-1,left?,NO", "1.dcm,Left ?,yes", "1.dcm,Right?,yes", "A-1,Right?,Yes")
    place.questions.write_text("image,question,answer\n" + "\n".join(lines))
    counts = place.ingest().counts
    assert counts.rows == 2 and counts.rows_left_out == {"contradictory": 3}
    assert quarantine(place) == [{"row": row, "reason": "contradictory"} for row in (0, 1, 2)]


def test_an_organ_of_the_hospital_s_own_becomes_a_site(place, make_dicom: Make, make_picture) -> None:
    """It stands behind those of the list; a body part still means an organ of the list; case does not count."""
    for number in range(3):
        place.add(f"{number}.dcm", make_dicom(make_picture(number), PatientID=f"SECRET-{number}"))
    lines = ("0.dcm,Left?,yes,Retina", "1.dcm,Left?,yes,lung", "2.dcm,Left?,no,skin-2")
    place.questions.write_text("image,question,answer,organ\n" + "\n".join(lines))
    with pytest.raises(DataError, match="row 0: unknown organ; there is abdomen"):
        place.ingest()
    place.ingest(organs=("skin-2", "retina"))
    assert read("store", place.out).organs == ("chest", "retina", "skin-2")
    site = load_site("store", place.out, "retina", Split("patient", fractions=(1, 0, 0)), answers=("yes", "no"))
    assert site.organ == "retina" and len(site.patients) == 1


@pytest.mark.parametrize("name", ["", "Retina", "SECRET name", "a" * 33, "-a", "../a", "a\n", "all", "server", "größe"])
def test_a_name_that_no_site_could_have_is_no_organ(name: str) -> None:
    """The sentence does not repeat it."""
    with pytest.raises(ConfigError, match="an organ's name must have 1 to 32 lower-case letters") as caught:
        checked_organs([name])
    assert "SECRET" not in str(caught.value)


def test_an_identifier_in_a_question_is_replaced_if_the_site_says_so(place, make_dicom: Make, make_picture) -> None:
    """A placeholder takes its place. An answer that holds one is left out all the same. Pictures are not read again."""
    place.add("1.dcm", make_dicom(make_picture(1), ReferringPhysicianName="Hoffmann^Eva", StudyDate="20120901"))
    rows = [("1.dcm", "Did Dr. Hoffmann ask on 1 Sept 2012?", "yes"), ("1.dcm", "Who asked?", "Eva Hoffmann")]
    place.questions.write_text("image,question,answer\n" + "".join(",".join(row) + "\n" for row in rows))
    assert place.ingest().counts.rows_left_out == {"identifier_in_text": 2}
    before = (place.out / "images.jsonl").read_bytes()
    counts = place.ingest(identifiers="replace").counts
    assert (counts.rows, counts.rows_replaced, counts.rows_left_out) == (1, 1, {"identifier_in_text": 1})
    (row,) = read_store(place.out)[2]
    assert row.question == "Did Dr. [removed] ask on [removed]?" and row.answer == "yes"
    assert (place.out / "images.jsonl").read_bytes() == before


def test_without_a_split_patients_keep_their_part_when_others_come(place, make_dicom: Make, make_picture) -> None:
    for number in range(8):
        place.add(f"{number}.dcm", make_dicom(make_picture(number), PatientID=f"P-{number // 2}"))

    def parts() -> dict[str, set[str]]:
        place.ingest()
        _, images, rows = read_store(place.out)
        found: dict[str, set[str]] = {}
        for row in rows:
            found.setdefault(images[row.image].patient, set()).add(row.split)
        return found

    place.ask("0.dcm", "1.dcm", "2.dcm")
    few = parts()
    place.ask(*(f"{number}.dcm" for number in range(8)))
    many = parts()
    assert len(few) == 2 and len(many) == 4 and few.items() <= many.items()
    assert all(len(part) == 1 for part in many.values())


def test_parts_without_a_split_have_their_shares_of_the_patients(keys) -> None:
    parts = [part_of(keys.patient(str(number)), keys) for number in range(2000)]
    assert 0.66 < parts.count("train") / 2000 < 0.74 and 0.12 < parts.count("test") / 2000 < 0.18


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("manifest.json", lambda text: text[:-20], "damaged or of another version"),
        ("manifest.json", lambda text: text.replace(b'"files"', b'"flies"'), "damaged or of another version"),
        ("rows.jsonl", lambda text: text.replace(b"yes", b"no!"), "does not match its manifest"),
        ("images.jsonl", lambda text: text.replace(b"chest", b"neck!"), "does not match its manifest"),
        ("images.jsonl", None, "is missing"),
        ("manifest.json", None, "no manifest"),
    ],
)
def test_a_store_that_was_changed_is_refused(store, name: str, change, sentence: str) -> None:
    path = store.out / name
    path.write_bytes(change(path.read_bytes())) if change else path.unlink()
    with pytest.raises(DataError, match=sentence):
        read("store", store.out)


def test_a_picture_that_was_changed_is_refused_and_made_again(store) -> None:
    path = sorted((store.out / "images").iterdir())[0]
    path.write_bytes(path.read_bytes()[:-2] + b"\0\1")
    data = read("store", store.out)
    row = next(row for row in data.rows if row.image == path)
    with pytest.raises(DataError, match=f"row {row.index}: its image does not match"):
        data.load(row, 32)
    store.ingest()
    data = read("store", store.out)
    assert data.load(row, 32).shape == (1, 32, 32)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda p: setattr(p, "out", p.dicom / "out"), "must not lie within each other"),
        (lambda p: setattr(p, "key", p.out / "key"), "must not lie in the store"),
        (lambda p: setattr(p, "dicom", p.dicom / "none"), "does not exist"),
        (lambda p: (p.key.write_bytes(bytes(32)), p.key.chmod(0o644)), "read by others"),
        (lambda p: (p.key.write_bytes(bytes(31)), p.key.chmod(0o600)), "damaged"),
    ],
)
def test_a_wrong_place_is_one_sentence(place, change, sentence: str) -> None:
    place.add("a.dcm", b"")
    place.ask("a.dcm")
    change(place)
    with pytest.raises((DataError, ConfigError), match=sentence):
        place.ingest()


def test_an_empty_folder_takes_nothing_out_of_a_store(store) -> None:
    """A share that is not mounted is no withdrawal of all patients."""
    store.dicom = store.dicom.with_name("unmounted")
    store.dicom.mkdir()
    with pytest.raises(DataError, match="is empty"):
        store.ingest()
    assert len(read("store", store.out).rows) == 5
