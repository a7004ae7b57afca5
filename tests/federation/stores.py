"""Stores as `medfedvqa ingest` writes them, of drawn pictures and invented patients, without reading DICOM folders."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from small_dicom import dicom_bytes, small_dicom

from medfedvqa.data import phantom
from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.pseudonyms import Pseudonyms
from medfedvqa.ingest.store import FORMAT, PICTURES, Image, StoredRow, write_lists, write_manifest

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))
ROWS = 4
"""Questions on each picture."""


def make_store(folder: Path, patients: Mapping[str, range], key: bytes = KEY, **cleaning: object) -> Path:
    """A store of these patients, by organ, each with a picture and questions on it; no ledger is noted in it.

    `cleaning`: flags and review of every picture.
    """
    keys, images, rows = Pseudonyms(key), [], []
    (folder / PICTURES).mkdir(parents=True)
    for organ, numbers in patients.items():
        for number in numbers:
            name, content = keys.digest("image", f"{organ} {number}"), _picture(number)
            (folder / PICTURES / f"{name}.dcm").write_bytes(content)
            facts = {"patient": keys.patient(f"P{number}"), "organ": organ, "frame": 0, "frames": 1, "boxes": []}
            images.append(Image(id=name, sha256=hashlib.sha256(content).hexdigest(), blanked=0.0, **facts, **cleaning))
            for question in range(ROWS):
                answer = "yes" if (number + question) % 2 else "no"
                text = {"question": f"Is it bright, {question}?", "answer": answer, "split": "train"}
                rows.append(StoredRow(index=len(rows), image=name, organ=organ, **text))
    write_manifest(folder, _manifest(keys, len(images), len(rows)) | write_lists(folder, images, rows))
    return folder


def phantom_store(folder: Path, sexes: Mapping[str, str], ages: Mapping[str, str]) -> Path:
    """The pictures and questions of the phantom set's patients, with what a store keeps of sex and age.

    `sexes`: of the patients of the store, by phantom key, of which every second has test rows alone; `ages`: as DICOM
    writes them.
    """
    data, keys, numbers = phantom.read(), Pseudonyms(KEY), {patient: n for n, patient in enumerate(sexes)}
    images, rows = dict[str, Image](), list[StoredRow]()
    (folder / PICTURES).mkdir(parents=True)
    for row in (row for row in data.rows if row.patient in sexes):
        name = keys.digest("image", str(row.image))
        if name not in images:
            pixels = (data.load(row, 32)[0] * 255).numpy().astype(np.uint8)
            kept = {"PatientSex": sexes[row.patient], "PatientAge": ages.get(row.patient, "")}
            content = dicom_bytes(small_dicom(pixels, SOPInstanceUID=f"1.2.{len(images) + 1}", **kept))
            (folder / PICTURES / f"{name}.dcm").write_bytes(content)
            facts = {"patient": keys.patient(row.patient), "organ": row.organ, "frame": 0, "frames": 1, "boxes": []}
            images[name] = Image(id=name, sha256=hashlib.sha256(content).hexdigest(), blanked=0.0, **facts)
        split = "test" if numbers[row.patient] % 2 else "train"
        text = {"question": row.question, "answer": row.answer, "organ": row.organ, "split": split}
        rows.append(StoredRow(index=len(rows), image=name, **text))
    write_manifest(folder, _manifest(keys, len(images), len(rows)) | write_lists(folder, images.values(), rows))
    return folder


def _picture(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (32, 32), dtype=np.uint8)
    return dicom_bytes(small_dicom(pixels, SOPInstanceUID=f"1.2.{number + 1}"))


def _manifest(keys: Pseudonyms, images: int, rows: int) -> dict[str, object]:
    options = Options()
    counts = {name: 0 for name in ("unasked", "redacted")}
    counts |= {"files": images, "stored": images, "rows": rows, "patients": images}
    return {
        "format": FORMAT,
        "made": "2026-01-02T03:04:05Z",
        "key": keys.fingerprint(),
        "options": {
            "side": options.side,
            "frames": options.frames,
            "retain": [],
            "max_pixels": options.max_pixels,
            "memory": options.memory,
            "seconds": options.seconds,
        },
        "deidentification": [{"value": value, "meaning": meaning} for value, meaning in options.codes(is_clean=True)],
        "versions": {},
        "code": "0" * 64,
        "counts": {**counts, "quarantined": {}, "rows_left_out": {}},
    }
