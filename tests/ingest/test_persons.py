"""A file that says which numbers are one person."""

from collections.abc import Callable
from pathlib import Path

import pytest

from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.cohort_register import read_register
from medfedvqa.ingest.find_list import folder_of_finds
from medfedvqa.ingest.ledger_binding import default_ledger
from medfedvqa.ingest.pseudonyms import load_pseudonyms
from medfedvqa.ingest.resolve import read_persons
from medfedvqa.ingest.store import read_store


def persons(place, *lines: str) -> Path:
    path = place.key.with_name("persons.csv")
    path.write_text("\n".join(("Patient;Person", *lines)) + "\n")
    return path


@pytest.fixture
def hospital(place, make_dicom: Callable, make_picture: Callable):
    """An image of each of three numbers."""
    for number in range(3):
        place.add(f"{number}.dcm", make_dicom(make_picture(number), PatientID=f"SECRET-{number}"))
    place.ask("0.dcm", "1.dcm", "2.dcm")
    return place


def patients(place) -> list[str]:
    """The pseudonyms, by the questions' order."""
    _, images, rows = read_store(place.out)
    return [images[row.image].patient for row in rows]


def test_numbers_of_one_person_are_one_patient_of_the_store(hospital) -> None:
    """From the next ingestion on, which reads that person's images alone again, but for the first number's digest."""
    hospital.ingest()
    keys = load_pseudonyms(hospital.key)
    assert patients(hospital) == [keys.patient(f"SECRET-{number}") for number in range(3)]
    before = {path.name: path.read_bytes() for path in (hospital.out / "images").iterdir()}
    unread = {path: path.stat().st_mtime_ns for path in (hospital.out / "images").iterdir()}
    hospital.patients = persons(hospital, "secret-2;SECRET-person", "SECRET-0 ;SECRET-person", "SECRET-1;SECRET-other")
    manifest = hospital.ingest()
    assert manifest.counts.patients == 2 and manifest.persons
    assert patients(hospital) == [keys.patient("SECRET-2"), keys.patient("SECRET-1"), keys.patient("SECRET-2")]
    _, _, rows = read_store(hospital.out)
    assert rows[0].split == rows[2].split
    again = {path.name for path, time in unread.items() if path.stat().st_mtime_ns != time}
    assert {rows[1].image + ".dcm"} == set(before) - again


def test_the_file_is_stored_nowhere(hospital) -> None:
    """Neither numbers nor labels, in store, finds and ledger; the register knows the person by every number."""
    hospital.patients = persons(hospital, "SECRET-2;SECRET-person", "SECRET-0;SECRET-person", "SECRET-7;SECRET-person")
    hospital.ingest()
    places = (hospital.out, folder_of_finds(hospital.out), default_ledger(hospital.out))
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert [path.name for path in files if b"SECRET-" in path.read_bytes().upper()] == []
    register = read_register(default_ledger(hospital.out))
    assert register is not None and len(register.patients) == 4


def test_questions_are_compared_with_all_numbers_of_the_person(hospital) -> None:
    lines = ("0.dcm,Is it 47110815?,yes", "1.dcm,Is it 47110815?,yes")
    hospital.questions.write_text("image,question,answer\n" + "\n".join(lines))
    hospital.patients = persons(hospital, "SECRET-0;a", "4711-0815;a")
    assert hospital.ingest().counts.rows_left_out == {"identifier_in_text": 1}


def test_without_the_file_a_store_that_was_made_with_it_is_not_renewed(hospital) -> None:
    """The person would become several patients again."""
    hospital.patients = persons(hospital, "SECRET-0;a", "SECRET-1;a")
    hospital.ingest()
    hospital.patients = None
    with pytest.raises(ConfigError, match="was made with a table of patients"):
        hospital.ingest()


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (("SECRET-1;SECRET-a", "secret - 1;SECRET-b"), "row 1: this patient belongs to another person in a row above"),
        (("SECRET-1;",), "row 0: a field is empty"),
        (("SECRET-1",), "row 0 has more or fewer fields"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(place, lines: tuple[str, ...], sentence: str) -> None:
    """A patient who is mapped to two persons is refused, whatever the case; no sentence quotes the file."""
    with pytest.raises(DataError, match=sentence) as caught:
        read_persons(persons(place, *lines))
    assert "SECRET" not in str(caught.value).upper()
    with pytest.raises(DataError, match="cannot be read"):
        read_persons(place.key.with_name("SECRET.csv"))
