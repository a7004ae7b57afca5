"""Rules for headers in the manner of MIDI-B 2024, over invented patients: what each stored element must have become.

The benchmark scores actions: for each element of each file whether it was removed, changed, shifted, or kept as its
rule says. Its data are not used here: the patients are drawn. A store keeps fewer elements than the benchmark would.
"""

import json
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pydicom
from pydicom.dataset import Dataset
from pydicom.uid import generate_uid

from medfedvqa.ingest.deidentify import DATES, UIDS, deidentified
from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.pseudonyms import Pseudonyms


def _program() -> ModuleType:
    """`benchmarks/midi_b.py`, which draws the identifiers and exports the answers."""
    spec = spec_from_file_location("midi_b", Path(__file__).parents[2] / "benchmarks" / "midi_b.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


midi_b = _program()
LEAST_SHARE = 0.999
PATIENTS, STUDIES, IMAGES = 12, 2, 2
MADE = frozenset({"AccessionNumber", "DeidentificationMethod", "PatientSex", "ReferringPhysicianName", "StudyID"})
"""Elements that a stored header has, empty or with the project's own words."""
Actions = Iterator[tuple[str, bool]]


def cohort(make_dicom: Callable[..., Dataset]) -> Iterator[tuple[int, Dataset, dict[str, str]]]:
    """Each image with its patient's number and what was planted in it."""
    generator = random.Random(2024)
    for patient in range(PATIENTS):
        born = date(1930, 1, 1) + timedelta(days=generator.randrange(25_000))
        for study in range(STUDIES):
            day = date(2010, 1, 1) + timedelta(days=generator.randrange(4_000))
            uids = {"StudyInstanceUID": generate_uid(), "SeriesInstanceUID": generate_uid()}
            for _ in range(IMAGES):
                original = make_dicom(
                    PatientID=f"PID-{patient:05d}",
                    PatientName=f"INVENTED^N{patient:05d}",
                    PatientBirthDate=f"{born:%Y%m%d}",
                    FrameOfReferenceUID=generate_uid(),
                    **uids,
                    **{name: f"{day + timedelta(days=study):%Y%m%d}" for name in DATES},
                    **midi_b.GIVEN,
                )
                yield patient, original, midi_b.planted(original, generator)


def actions(original: Dataset, stored: Dataset, texts: dict[str, str]) -> Actions:
    """Each action on a single file, by its kind, and whether it was right."""
    content = str(stored)
    yield from (("text removed", text not in content) for text in texts.values())
    texts = {keyword: text for keyword, text in texts.items() if keyword not in ("nested", "private")}
    yield from (("element removed", keyword not in stored) for keyword in texts if keyword not in MADE)
    yield from (("private removed", not element.tag.is_private) for element in stored.iterall())
    yield from (("kept", str(stored.get(name)) == value) for name, value in midi_b.GIVEN.items())
    for keyword in UIDS:
        yield (
            "UID changed",
            stored[keyword].value != original[keyword].value and str(original[keyword].value) not in content,
        )
    yield "birth date removed", not stored.PatientBirthDate
    yield "patient replaced", original.PatientID not in content and str(original.PatientName) not in content


def over_files(files: list[tuple[int, Dataset, Dataset]]) -> Actions:
    """The actions that join files: one pseudonym for a patient, one UID for a study, one shift of dates."""
    for number, first, mine in files:
        for other, second, theirs in files:
            yield "patient consistent", (mine.PatientID == theirs.PatientID) == (number == other)
            for keyword in UIDS:
                same = first[keyword].value == second[keyword].value
                yield "UID consistent", (mine[keyword].value == theirs[keyword].value) == same
            if number == other:
                for keyword in DATES:
                    yield "date shifted", shift(first, mine, keyword) == shift(second, theirs, "StudyDate") > 0


def shift(original: Dataset, stored: Dataset, keyword: str) -> int:
    """By how many days a date was moved back."""
    before, after = (date.fromisoformat(str(dataset[keyword].value)) for dataset in (original, stored))
    return (before - after).days


def test_at_least_999_of_1000_actions_on_headers_are_right(
    make_dicom: Callable[..., Dataset], make_picture: Callable, keys: Pseudonyms, options: Options
) -> None:
    """All kinds of actions are tried, each many times; a kind with a single wrong one is named."""
    kept = Options(**{**vars(options), "retain": ("dates",)})
    grey = (make_picture(0) // 16).astype("uint8")
    right, wrong, files = Counter[str](), Counter[str](), []
    for patient, original, texts in cohort(make_dicom):
        stored = deidentified(original, grey, keys, kept)
        assert len(texts) > 100
        for kind, is_right in actions(original, stored, texts):
            (right if is_right else wrong)[kind] += 1
        files.append((patient, original, stored))
    for kind, is_right in over_files(files):
        (right if is_right else wrong)[kind] += 1
    total = right.total() + wrong.total()
    assert len(right) == 10 and total > 10_000
    assert right.total() / total >= LEAST_SHARE, wrong


def test_the_answer_key_and_the_mappings_have_the_form_that_the_official_validator_reads(tmp_path: Path) -> None:
    """Every answer is right for the store, and one that is spoilt by hand is counted as wrong."""
    results = midi_b.synthetic(tmp_path / "set", patients=1, seed=1)
    assert {action: counts[False] for action, counts in results.items()} == dict.fromkeys(results, 0)
    assert {"text_removed", "text_retained", "date_shifted", "uid_consistent", "patid_consistent"} < results.keys()
    with sqlite3.connect(tmp_path / "set" / "answer_key.db") as database:
        columns = [name for _, name, *_ in database.execute("PRAGMA table_info(answer_data)")]
        answers = json.loads(database.execute("SELECT AnswerData FROM answer_data").fetchone()[0])
    database.close()
    assert {"scope", "StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "AnswerData"} < set(columns)
    paths = {answer["tag_ds"] for answer in answers.values()}
    assert {"<(0010,0010)>", "<(0040,0275)>[<0000>]<(0010,0010)>", '<(0013,"INVENTED",01)>'} < paths
    for name in ("uid_mapping.csv", "patid_mapping.csv"):
        assert (tmp_path / "set" / name).read_text().splitlines()[0] == "id_old,id_new"
    path = next((tmp_path / "set" / "store" / "images").glob("*.dcm"))
    spoilt = pydicom.dcmread(path)
    spoilt.PatientName, spoilt.StudyInstanceUID = "INVENTED^N00000", "1.2.3"
    spoilt.save_as(path)
    wrong = {action for action, counts in midi_b.score(tmp_path / "set").items() if counts[False]}
    assert wrong == {"text_removed", "uid_consistent"}
