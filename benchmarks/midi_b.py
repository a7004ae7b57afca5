"""Lets the official validator of the MIDI-B challenge check this ingestion, and counts the same actions itself.

`synthetic FOLDER` draws images of invented patients with identifiers in their headers (`originals`), ingests them as a
site would (`store`), and writes what the validator reads beside them: `answer_key.db`, `uid_mapping.csv`,
`patid_mapping.csv`, and `config.json`, which names them all. Then it checks each answer as the validator defines it.

`mapping ORIGINALS KEY FOLDER` writes the two mapping files for images that were ingested under the key of a store, such
as those of the challenge, whose answer key is published with them.

The answer key is the SQLite table `answer_data` of the validator's version 3: a row for each image with its UIDs, and a
JSON object of its actions by number. Pixels are re-rendered by this ingestion, so the key has no actions on pixels. The
mapping files name patients: they stay where the images are.
"""

import argparse
import csv
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from dicomanonymizer.dicom_anonymization_databases import dicomfields_2026c
from pydicom.datadict import dictionary_VR, keyword_for_tag, tag_for_keyword
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import ComputedRadiographyImageStorage, ExplicitVRLittleEndian

from medfedvqa.ingest.deidentify import DATES, KEPT, UIDS
from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.ingest import ingest
from medfedvqa.ingest.pseudonyms import Pseudonyms, load_pseudonyms

TEXTS = frozenset({"LO", "LT", "PN", "SH", "ST", "UC", "UT", "AE", "CS", "UR"})
GIVEN = {"Modality": "CR", "ViewPosition": "PA", "ImageLaterality": "L", "SeriesNumber": "7", "InstanceNumber": "1"}
"""What a rule keeps, since it identifies nobody."""
REQUIRED = ("SOPClassUID", "PatientID", "PatientName", "StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID")
"""Elements that must not be empty afterwards."""
STUDIES, IMAGES, SIDE = 2, 2, 64
PRIVATE_CREATOR = "INVENTED"
LETTERS = "ABCDEFGHKLMNPRSTUVWXYZ"
ANSWERS = """CREATE TABLE answer_data ("index" INTEGER PRIMARY KEY, scope TEXT, PatientID TEXT, StudyInstanceUID TEXT,
SeriesInstanceUID TEXT, SOPInstanceUID TEXT, AnswerData TEXT)"""
Action = dict[str, Any]


def planted(original: Dataset, generator: random.Random) -> dict[str, str]:
    """Puts another invented identifier into each text element of the profile's table, and returns them by keyword."""
    texts = {}
    for tag in dicomfields_2026c.ALL_TAGS:
        keyword = keyword_for_tag(tag) if len(tag) == 2 else ""
        if not keyword or keyword in original or tag[0] in (0x0002, 0x0028) or keyword in (*KEPT, *UIDS):
            continue
        vr = dictionary_VR(tag)
        if vr in TEXTS:
            texts[keyword] = "".join(generator.choices(LETTERS, k=14))
            original.add_new(tag, vr, texts[keyword])
    item = Dataset()
    item.PatientName = texts["nested"] = "".join(generator.choices(LETTERS, k=14))
    original.RequestAttributesSequence = Sequence([item])
    block = original.private_block(0x0013, PRIVATE_CREATOR, create=True)
    texts["private"] = "".join(generator.choices(LETTERS, k=14))
    block.add_new(1, "LT", texts["private"])
    return texts


def originals(patients: int, seed: int) -> Iterator[tuple[Dataset, dict[str, str]]]:
    """Images of invented patients, several of a study and several studies of a patient, with what was planted."""
    generator = random.Random(seed)
    for patient in range(patients):
        born = date(1930, 1, 1) + timedelta(days=generator.randrange(25_000))
        for _ in range(STUDIES):
            day = date(2010, 1, 1) + timedelta(days=generator.randrange(4_000))
            study, series = _uid(generator), _uid(generator)
            for _ in range(IMAGES):
                original = _radiograph(generator)
                original.PatientID, original.PatientName = f"PID-{patient:05d}", f"INVENTED^N{patient:05d}"
                original.PatientBirthDate = f"{born:%Y%m%d}"
                original.StudyInstanceUID, original.SeriesInstanceUID = study, series
                for keyword, value in GIVEN.items() | {(keyword, f"{day:%Y%m%d}") for keyword in DATES}:
                    setattr(original, keyword, value)
                yield original, planted(original, generator)


def _uid(generator: random.Random) -> str:
    return f"2.25.{generator.getrandbits(128)}"


def _radiograph(generator: random.Random) -> Dataset:
    """A blob of 8 bits without a patient."""
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE - 0.5
    dataset = Dataset()
    dataset.SOPClassUID, dataset.SOPInstanceUID = ComputedRadiographyImageStorage, _uid(generator)
    dataset.FrameOfReferenceUID, dataset.PhotometricInterpretation = _uid(generator), "MONOCHROME2"
    dataset.SamplesPerPixel, dataset.PixelRepresentation, dataset.Rows, dataset.Columns = 1, 0, SIDE, SIDE
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
    dataset.PixelData = (250 * np.exp(-8 * ((x - generator.uniform(-0.1, 0.1)) ** 2 + y**2))).astype(np.uint8).tobytes()
    dataset["PixelData"].VR = "OB"
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return dataset


def actions(original: Dataset, texts: dict[str, str]) -> list[Action]:
    """The answers for one image: what must have become of each element."""
    answers = [_action(original, "text_removed", keyword, text) for keyword, text in texts.items()]
    answers += [_action(original, "text_retained", keyword, value) for keyword, value in GIVEN.items()]
    answers += [_action(original, "text_notnull", keyword) for keyword in REQUIRED]
    answers += [_action(original, action, keyword) for keyword in UIDS for action in ("uid_changed", "uid_consistent")]
    answers += [_action(original, "date_shifted", keyword) for keyword in DATES]
    for keyword in ("PatientBirthDate", "PatientName", "PatientID"):
        answers.append(_action(original, "text_removed", keyword, str(original[keyword].value)))
    return [*answers, _action(original, "patid_consistent", "PatientID")]


def _action(original: Dataset, action: str, keyword: str, text: str = "") -> Action:
    """An answer in the validator's form, where texts stand in angle brackets."""
    if keyword == "private":
        number, path, label, value = "(0013,1001)", f'<(0013,"{PRIVATE_CREATOR}",01)>', "Private", text
    else:
        element = original.RequestAttributesSequence[0]["PatientName"] if keyword == "nested" else original[keyword]
        number, label, value = str(element.tag).replace(", ", ","), element.name, str(element.value)
        path = f"<{number}>" if keyword != "nested" else f"<{_number('RequestAttributesSequence')}>[<0000>]<{number}>"
    return {
        "tag": f"<{number}>", "tag_ds": path, "tag_name": f"<{label}>", "value": f"<{value}>",
        "action": f"<{action}>", "action_text": f"<{text}>", "answer_category_v2": {},
    }  # fmt: skip


def _number(keyword: str) -> str:
    tag = tag_for_keyword(keyword) or 0
    return f"({tag >> 16:04x},{tag & 0xFFFF:04x})"


def write_answers(path: Path, answers: list[tuple[Dataset, list[Action]]]) -> None:
    """Writes the answer key, which replaces an earlier one."""
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.execute(ANSWERS)
        for number, (original, of_image) in enumerate(answers):
            uids = [str(original[keyword].value) for keyword in ("PatientID", *UIDS[:3])]
            data = json.dumps({str(index): answer for index, answer in enumerate(of_image)})
            database.execute("INSERT INTO answer_data VALUES (?,?,?,?,?,?,?)", (number, "<Instance>", *uids, data))
    database.close()


def write_mappings(folder: Path, keys: Pseudonyms, into: Path) -> None:
    """Writes what the ingestion under this key made of patients and UIDs of the images in a folder."""
    patients, uids = dict[str, str](), dict[str, str]()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        original = pydicom.dcmread(path, stop_before_pixels=True, force=True)
        number = str(original.get("PatientID", ""))
        patients[number] = keys.patient(number)
        for uid in (str(original[keyword].value) for keyword in UIDS if keyword in original):
            uids[uid] = keys.uid(uid)
    for name, mapping in (("patid_mapping.csv", patients), ("uid_mapping.csv", uids)):
        with (into / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("id_old", "id_new"), *mapping.items()])


def read_mapping(path: Path) -> dict[str, str]:
    """New identifiers by old ones."""
    with path.open(newline="", encoding="utf-8") as file:
        return {row["id_old"]: row["id_new"] for row in csv.DictReader(file)}


def score(folder: Path) -> dict[str, Counter[bool]]:
    """How many answers of each action the stored images have right and wrong, from the files of a folder alone."""
    uids, patients = read_mapping(folder / "uid_mapping.csv"), read_mapping(folder / "patid_mapping.csv")
    stored = {str(dataset.SOPInstanceUID): dataset for dataset in map(pydicom.dcmread, _pictures(folder))}
    results = dict[str, Counter[bool]]()
    with sqlite3.connect(folder / "answer_key.db") as database:
        rows = database.execute("SELECT SOPInstanceUID, AnswerData FROM answer_data").fetchall()
    database.close()
    for uid, data in rows:
        values = _values(stored[uids[uid]])
        for answer in json.loads(data).values():
            is_right = _is_right(answer, values.get(answer["tag_ds"]), uids, patients)
            results.setdefault(answer["action"].strip("<>"), Counter())[is_right] += 1
    return results


def _pictures(folder: Path) -> list[Path]:
    return sorted((folder / "store" / "images").glob("*.dcm"))


def _values(dataset: Dataset, before: str = "") -> dict[str, str]:
    """The text of each element by its path, also within sequences."""
    values = {}
    for element in dataset:
        path = f"{before}<{str(element.tag).replace(', ', ',')}>"
        if element.VR == "SQ":
            for number, item in enumerate(element.value):
                values |= _values(item, f"{path}[<{number:04}>]")
        elif element.keyword != "PixelData":
            values[path] = str(element.value) if element.value is not None else ""
    return values


def _is_right(answer: Action, value: str | None, uids: dict[str, str], patients: dict[str, str]) -> bool:
    """Whether the element with this value, None if it is gone, became what the answer says."""
    original, text = (answer[name].removeprefix("<").removesuffix(">") for name in ("value", "action_text"))
    match answer["action"]:
        case "<text_removed>":
            return value is None or text.lower() not in value.lower()
        case "<text_retained>":
            return value is not None and text.lower() in value.lower()
        case "<text_notnull>":
            return bool(value)
        case "<uid_changed>" | "<date_shifted>":
            return value is None or original not in value
        case "<uid_consistent>":
            return value is None or value == uids.get(original)
        case "<patid_consistent>":
            return value is None or value == patients.get(original)
    raise ValueError("the answer key has an action that is not known here")


def synthetic(folder: Path, patients: int, seed: int) -> dict[str, Counter[bool]]:
    """Draws images, ingests them, writes the validator's files, and scores the store."""
    (images := folder / "originals").mkdir(parents=True)
    answers = []
    for number, (original, texts) in enumerate(originals(patients, seed)):
        original.save_as(images / f"{number}.dcm", enforce_file_format=True)
        answers.append((original, actions(original, texts)))
    questions = folder / "questions.csv"
    with questions.open("w", newline="") as file:
        lines = [(f"{number}.dcm", "Is it well?", "yes") for number in range(len(answers))]
        csv.writer(file).writerows([("image", "question", "answer"), *lines])
    key = folder / "store.key"
    ingest(images, questions, folder / "store", key, Options(retain=("dates",)), 1, lambda *_: None)
    write_answers(folder / "answer_key.db", answers)
    write_mappings(images, load_pseudonyms(key), folder)
    (folder / "config.json").write_text(json.dumps(_config(folder.resolve()), indent=2))
    return score(folder)


def _config(folder: Path) -> dict[str, str]:
    """The validator's configuration."""
    return {
        "run_name": "medfedvqa", "input_data_path": str(folder / "store" / "images"),
        "output_data_path": str(folder / "results"), "answer_db_file": str(folder / "answer_key.db"),
        "uid_mapping_file": str(folder / "uid_mapping.csv"), "patid_mapping_file": str(folder / "patid_mapping.csv"),
        "multiprocessing": "True", "multiprocessing_cpus": "1", "report_series": "False",
        "log_path": str(folder / "logs"), "log_level": "info", "pre_deID_data_path": str(folder / "originals"),
    }  # fmt: skip


def main() -> None:
    """Make the synthetic set, or the mapping files alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("synthetic", help="draw, ingest, write the validator's files, and score")
    make.add_argument("folder", type=Path, help="a new folder")
    make.add_argument("--patients", type=int, default=12)
    make.add_argument("--seed", type=int, default=2024)
    mapping = commands.add_parser("mapping", help="write the mapping files of images that were ingested")
    mapping.add_argument("originals", type=Path)
    mapping.add_argument("key", type=Path, help="the key of the store")
    mapping.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "mapping":
        write_mappings(arguments.originals, load_pseudonyms(arguments.key), arguments.folder)
        print("uid_mapping.csv and patid_mapping.csv are written; they name patients")
        return
    results = synthetic(arguments.folder, arguments.patients, arguments.seed)
    for action, counts in sorted(results.items()):
        print(f"{action}: {counts[True]} of {counts.total()} right")
    right, total = (sum(counts[True] for counts in results.values()), sum(map(Counter.total, results.values())))
    print(f"all: {right} of {total} right ({right / total:.3%})")


if __name__ == "__main__":
    main()
