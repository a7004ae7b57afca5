"""Small DICOM files, and stores that are made of them."""

import csv
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ComputedRadiographyImageStorage, ExplicitVRLittleEndian, generate_uid

from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.ingest import ingest
from medfedvqa.ingest.ledger_binding import default_ledger
from medfedvqa.ingest.pseudonyms import Pseudonyms
from medfedvqa.ingest.store import Manifest

if not find_spec("dicomanonymizer"):
    # Without the extra `ingest` nothing is ingested.
    collect_ignore_glob = ["test_*.py"]

Rows = Sequence[Mapping[str, str]]


def picture(seed: int, side: int = 32) -> np.ndarray:
    """A smooth blob on black without anything like text, uint16 of 12 bits."""
    y, x = np.mgrid[0:side, 0:side] / side - 0.5
    generator = np.random.default_rng(seed)
    shift = generator.uniform(-0.1, 0.1, 2)
    return (4000 * np.exp(-8 * ((x - shift[0]) ** 2 + (y - shift[1]) ** 2))).astype(np.uint16)


def dicom(pixels: np.ndarray | None = None, **elements: object) -> Dataset:
    """A sound radiograph of an invented patient; keywords change its elements, None leaves one out."""
    pixels = picture(0) if pixels is None else pixels
    dataset = Dataset()
    facts: dict[str, object] = {
        "SOPClassUID": ComputedRadiographyImageStorage,
        "SOPInstanceUID": generate_uid(),
        "StudyInstanceUID": generate_uid(),
        "SeriesInstanceUID": generate_uid(),
        "PatientName": "SECRET^Anna",
        "PatientID": "SECRET-1",
        "PatientBirthDate": "19700203",
        "Modality": "CR",
        "BodyPartExamined": "CHEST",
        "PhotometricInterpretation": "MONOCHROME2",
        "SamplesPerPixel": 1,
        "Rows": pixels.shape[-2],
        "Columns": pixels.shape[-1],
        "BitsAllocated": 8 * pixels.itemsize,
        "BitsStored": 12 if pixels.itemsize == 2 else 8,
        "HighBit": 11 if pixels.itemsize == 2 else 7,
        "PixelRepresentation": int(pixels.dtype.kind == "i"),
        **elements,
    }
    for keyword, value in facts.items():
        if value is not None:
            setattr(dataset, keyword, value)
    dataset.PixelData = pixels.tobytes()
    dataset["PixelData"].VR = "OW"
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.get("SOPInstanceUID") or "1.2.3"
    return dataset


def encoded(dataset: Dataset) -> bytes:
    """As a file."""
    buffer = BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def write_questions(path: Path, rows: Rows) -> Path:
    """As CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def keys() -> Pseudonyms:
    return Pseudonyms(bytes(range(32)))


SMALL = Options(side=64, max_pixels=2**20, memory=2048, seconds=60)


@pytest.fixture
def options() -> Options:
    """Small limits, so that tests are fast."""
    return SMALL


class Place:
    """A DICOM folder, questions and the store that comes of them, in a temporary folder."""

    def __init__(self, root: Path) -> None:
        self.dicom, self.out, self.key, self.questions = (root / n for n in ("in", "out", "key", "questions.csv"))
        self.patients: Path | None = None
        self.dicom.mkdir()

    def copy(self, root: Path) -> "Place":
        """Another place with the same files, store and key."""
        copy = Place(root)
        # The pipe among them cannot be copied, and stays behind.
        skip = shutil.ignore_patterns("pipe")
        shutil.copytree(self.dicom, copy.dicom, dirs_exist_ok=True, symlinks=True, ignore=skip)
        for ours, theirs in ((self.questions, copy.questions), (self.key, copy.key)):
            shutil.copy2(ours, theirs)
        shutil.copytree(self.out, copy.out)
        shutil.copytree(default_ledger(self.out), default_ledger(copy.out))
        return copy

    def add(self, name: str, content: bytes | Dataset) -> Path:
        """A file in the DICOM folder."""
        path = self.dicom / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else encoded(content))
        return path

    def ask(self, *names: str, **more: str) -> None:
        """One question about each image, answers in turn; more fields for all."""
        answers = ("yes", "no")
        rows = [
            {"image": name, "question": f"Question {number}?", "answer": answers[number % 2], **more}
            for number, name in enumerate(names)
        ]
        write_questions(self.questions, rows)

    def ingest(self, workers: int = 1, organs: Sequence[str] = (), **changes: object) -> Manifest:
        """Run it, with changed options."""
        options = replace(SMALL, **changes)
        more = {"organs": organs, "patients": self.patients}
        return ingest(self.dicom, self.questions, self.out, self.key, options, workers, lambda *_: None, **more)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="session")
def make_place() -> Callable[[Path], Place]:
    return Place


@pytest.fixture(scope="session")
def make_dicom() -> Callable[..., Dataset]:
    return dicom


@pytest.fixture(scope="session")
def encode() -> Callable[[Dataset], bytes]:
    return encoded


@pytest.fixture(scope="session")
def make_picture() -> Callable[..., np.ndarray]:
    return picture
