"""The sample film: an invented patient in the header and burned into the pixels (TCIA Pseudo-PHI-DICOM-Data)."""

import re
from hashlib import sha256
from pathlib import Path

import cv2
import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset

from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.image_rendering import render
from medfedvqa.ingest.pseudonyms import Pseudonyms
from medfedvqa.ingest.worker import Worker

pytestmark = pytest.mark.slow
"""Its text takes half a minute to read. `make test` reads drawn text, in the files beside this one."""

KEYS = Pseudonyms(bytes(32))
WORDS = ("DAVIDSON", "DOUGLAS", "DOB", "1976", "06.16", "01.09.2012")
MARKERS = ("Semi", "Upright", "Portable")
"""What is burned in, and says who and when, or how the picture was taken; an OCR of the original reads it."""


@pytest.fixture(scope="session")
def film(data_folder: Path) -> Path:
    path = data_folder / "dicom" / "pseudo-phi-cr-chest.dcm"
    if not path.is_file():
        pytest.skip("the sample film is absent from the data folder")
    return path


def stored(film: Path, keys: Pseudonyms, folder: Path) -> Dataset:
    worker = Worker(Options(), keys, folder, frozenset())
    answer = worker.handle(film, keys.digest("source", sha256(film.read_bytes()).hexdigest()), True)
    return pydicom.dcmread(folder / f"{answer['image']['id']}.dcm")


@pytest.fixture(scope="session")
def result(film: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return stored(film, KEYS, tmp_path_factory.mktemp("film"))


def identifying(original: Dataset) -> set[str]:
    """Every text and number of the original that could tell a person, a place, a time or a device."""
    vrs = {"PN", "DA", "TM", "DT", "UI", "LO", "SH", "ST", "LT", "UT", "AE", "UN"}
    found = {WORDS[0], WORDS[1], "19760616", "292821506", "20130714E864535"}
    for element in original.iterall():
        if element.VR in vrs and element.keyword not in ("SOPClassUID", "CodeMeaning", "CodingSchemeDesignator"):
            value = element.value.decode("latin-1") if isinstance(element.value, bytes) else str(element.value)
            found |= {part for part in re.split(r"[\^\\,\s]+", value) if len(part) > 3}
    return {text.casefold() for text in found} - {"chest"}


def read_out(grey: np.ndarray) -> str:
    """All that an OCR reads, as it is, enlarged, and turned."""
    RapidOCR = pytest.importorskip("rapidocr_onnxruntime").RapidOCR  # its defaults, for Python below 3.13
    reader, words = RapidOCR(intra_op_num_threads=1, inter_op_num_threads=1, det_limit_side_len=32), []
    large = cv2.resize(grey, None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC)
    for picture in (grey, large, np.rot90(large)):
        lines, _ = reader(np.repeat(picture[..., None], 3, axis=2).copy(), use_cls=False, text_score=0.3)
        words += [text for _, text, _ in lines or ()]
    return " ".join(words)


def test_no_identifier_is_left_in_any_element(film: Path, result: Dataset) -> None:
    """All of the original's texts, names, dates, places, UIDs and private values, sought in all of the result's."""
    original = pydicom.dcmread(film)
    secrets = identifying(original)
    assert len(secrets) > 45
    for element in result.iterall():
        if element.keyword != "PixelData":
            told = str(element.value).casefold()
            assert not [secret for secret in secrets if secret in told], element.keyword
    assert not any(element.tag.is_private for element in result.iterall())


def test_no_identifier_can_be_read_in_the_pixels(film: Path, result: Dataset) -> None:
    """The same OCR reads name, sex, dates and birth date on the original, and none of it on what is stored."""
    before = read_out(
        cv2.resize(render(pydicom.dcmread(film), Options()).grey, (768, 632), interpolation=cv2.INTER_AREA)
    )
    after = read_out(result.pixel_array)
    assert all(word.casefold() in before.casefold() for word in (*WORDS, *MARKERS))
    assert not [word for word in WORDS if word.casefold() in after.casefold()]
    left = re.sub("|".join(MARKERS), "", after, flags=re.IGNORECASE)
    assert all(word.casefold() in after.casefold() for word in MARKERS) and len(re.findall(r"[A-Za-z0-9]", left)) < 12


def test_little_of_the_picture_is_blanked(film: Path, result: Dataset) -> None:
    """The text stands in the corners; the lungs stay as they are."""
    plain = cv2.resize(render(pydicom.dcmread(film), Options()).grey, (384, 316), interpolation=cv2.INTER_AREA)
    changed = plain != result.pixel_array
    assert changed.mean() < 0.06 and not changed[50:].any()


def test_codes_say_what_was_done(result: Dataset) -> None:
    assert result[0x0012, 0x0062].value == "YES" and result[0x0028, 0x0303].value == "REMOVED"
    assert [code.CodeValue for code in result[0x0012, 0x0064].value] == ["113100", "113101"]


def test_the_same_film_is_stored_as_the_same_file(film: Path, result: Dataset, tmp_path: Path) -> None:
    """Under the same key: header and pixels."""
    assert stored(film, KEYS, tmp_path) == result


def test_the_pseudonym_follows_from_the_key(film: Path, result: Dataset) -> None:
    """The same under it, and different under another."""
    assert result.PatientID == KEYS.patient("292821506")
    other = Pseudonyms(bytes(31) + b"\1")
    assert other.patient("292821506") != result.PatientID
    assert other.uid(str(pydicom.dcmread(film).SOPInstanceUID)) != result.SOPInstanceUID
