"""A patient leaves a store: nothing of the patient stays in it, nothing of the others changes, nothing comes back."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import pytest

from medfedvqa.data import read
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.find_list import folder_of_finds
from medfedvqa.ingest.pseudonyms import load_pseudonyms
from medfedvqa.ingest.review import ReviewVerdict, decide, reviewed_finds, write_sheet
from medfedvqa.ingest.store import WITHDRAWN, read_store
from medfedvqa.ingest.withdrawal import withdraw


def film(make_picture: Callable, number: int):
    """A blob with text that is blanked."""
    pixels = (make_picture(number, 256) // 20).astype("uint8")
    return cv2.putText(pixels, f"ANNA {number}", (20, 240), cv2.FONT_HERSHEY_SIMPLEX, 0.8, 255, 2)


@pytest.fixture(scope="module")
def ingested(tmp_path_factory, make_place, make_dicom: Callable, make_picture: Callable):
    """Two images of each of three patients, with text in them, a sheet of finds and a decision about each."""
    place = make_place(tmp_path_factory.mktemp("withdrawal"))
    for number in range(6):
        place.add(f"{number}.dcm", make_dicom(film(make_picture, number), PatientID=f"SECRET-{number // 2}"))
    place.ask(*(f"{number}.dcm" for number in range(6)))
    assert place.ingest(workers=2, side=256).counts.redacted == 6
    decide(place.out, "Dr. N", {ReviewVerdict.BLANK: [finds.finds[0].id for finds in reviewed_finds(place.out)]})
    write_sheet(place.out)
    return place


@pytest.fixture
def hospital(ingested, tmp_path: Path):
    """A copy of that place, with its store."""
    place = ingested.copy(tmp_path)
    shutil.copytree(folder_of_finds(ingested.out), folder_of_finds(place.out))
    return place


def facts(store: Path) -> dict[str, tuple[object, ...]]:
    """What is stored of each question, and its picture's bytes."""
    _, images, rows = read_store(store)
    pictures = {name: (store / "images" / f"{name}.dcm").read_bytes() for name in images}
    return {row.question: (row.split, row.answer, row.organ, images[row.image], pictures[row.image]) for row in rows}


def test_a_withdrawn_patient_is_gone_and_the_others_are_as_they_were(hospital) -> None:
    """Pictures, rows, finds, decisions, crops of the sheet and the journal's records; the store can be trained on."""
    before, finds = facts(hospital.out), folder_of_finds(hospital.out)
    gone = {
        image.id
        for image in read_store(hospital.out)[1].values()
        if image.patient == load_pseudonyms(hospital.key).patient("SECRET-1")
    }
    withdrawn = withdraw(hospital.out, " secret-1", hospital.key)
    assert (withdrawn.pictures, withdrawn.questions, withdrawn.organs) == (2, 2, {"chest"})
    assert facts(hospital.out) == {name: fact for name, fact in before.items() if name[9] not in "23"}
    assert [row.index for row in read("store", hospital.out).rows] == [0, 1, 2, 3]
    counts = read_store(hospital.out)[0].counts
    assert (counts.stored, counts.rows, counts.patients, counts.redacted) == (4, 4, 2, 4)
    assert counts.quarantined == {"withdrawn": 2}
    for path in (path for place in (hospital.out, finds) for path in place.rglob("*") if path.is_file()):
        assert not any(name in path.name or name.encode() in path.read_bytes() for name in gone), path.name
        assert b"SECRET-" not in path.read_bytes().upper() or path.parent == finds
    sheet = (finds / "review.html").read_text()
    assert "ANNA 0" in sheet and "ANNA 2" not in sheet and "ANNA 3" not in sheet


def test_a_withdrawn_patient_does_not_come_back(hospital) -> None:
    """The files are still in the folder: the next ingestion, and one with other options, leave them out."""
    withdraw(hospital.out, "SECRET-1", hospital.key)
    kept = facts(hospital.out)
    counts = hospital.ingest(side=256).counts
    assert facts(hospital.out) == kept
    assert counts.quarantined == {"withdrawn": 2} and counts.rows_left_out == {"image_quarantined": 2}
    assert hospital.ingest(side=128).counts.patients == 2
    entry = json.loads((hospital.out / WITHDRAWN).read_text())["withdrawn"]
    assert [set(fact) for fact in entry] == [{"patient", "time"}]


def test_a_call_that_was_killed_after_the_list_is_completed_by_the_next_ingestion(
    hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as crash:
        crash.setattr("medfedvqa.ingest.withdrawal._rewrite", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            withdraw(hospital.out, "SECRET-1", hospital.key)
    assert len(facts(hospital.out)) == 6
    assert hospital.ingest(side=256).counts.quarantined == {"withdrawn": 2} and len(facts(hospital.out)) == 4


def test_a_person_is_withdrawn_by_any_number(place, make_dicom: Callable, make_picture: Callable) -> None:
    """And under all of them; a store that was made with a file of persons needs it."""
    for number in range(3):
        place.add(f"{number}.dcm", make_dicom(make_picture(number), PatientID=f"SECRET-{number}"))
    place.ask("0.dcm", "1.dcm", "2.dcm")
    place.patients = place.key.with_name("persons.csv")
    place.patients.write_text("patient,person\nSECRET-0,a\nSECRET-2,a\nSECRET-7,a\n")
    place.ingest()
    with pytest.raises(ConfigError, match="was made with a table of patients"):
        withdraw(place.out, "SECRET-7", place.key)
    assert withdraw(place.out, "SECRET-7", place.key, place.patients).pictures == 2
    place.patients.write_text("patient,person\nSECRET-1,a\n")
    assert place.ingest().counts.quarantined == {"withdrawn": 2}


def test_a_patient_who_is_not_there_is_noted(hospital) -> None:
    """An image that comes later is left out; the others stay."""
    kept = facts(hospital.out)
    assert withdraw(hospital.out, "SECRET-9", hospital.key).pictures == 0 and facts(hospital.out) == kept


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda place: place.key.unlink(), "the key of the store's pseudonyms is missing"),
        (lambda place: (place.key.unlink(), load_pseudonyms(place.key)), "made with another key"),
        (lambda place: (place.out / "manifest.json").unlink(), "no manifest"),
        (lambda place: (place.out / WITHDRAWN).write_text("{}}"), f"'{WITHDRAWN}' is damaged"),
    ],
)
def test_what_cannot_be_withdrawn_is_one_sentence_and_changes_nothing(hospital, change, sentence: str) -> None:
    """No sentence repeats the number, and no key is made."""
    change(hospital)
    before = {path: path.read_bytes() for path in hospital.out.rglob("*") if path.is_file()}
    with pytest.raises((ConfigError, DataError), match=sentence) as caught:
        withdraw(hospital.out, "SECRET-1", hospital.key)
    after = {path: path.read_bytes() for path in hospital.out.rglob("*") if path.is_file()}
    assert "SECRET" not in str(caught.value) and before == after
