"""`medfedvqa answer --structured-report`: the answers as a DICOM file that an archive takes."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.uid import BasicTextSRStorage, generate_uid
from small_dicom import dicom_bytes, small_dicom

from audits import Event, read

Got = Any
QUESTION = "Is there a pneumothorax, s'il vous plaît?"


@pytest.fixture
def film(tmp_path: Path) -> Path:
    """A DICOM picture of a study, of a patient whose name is not Latin."""
    uids = {name: generate_uid() for name in ("StudyInstanceUID", "SeriesInstanceUID")}
    grey = np.random.default_rng(1).integers(0, 256, (48, 48), dtype=np.uint8)
    named = {"SpecificCharacterSet": "GB18030", "PatientName": "李^四", "PatientID": "77", "AccessionNumber": "A1"}
    path = tmp_path / "film.dcm"
    path.write_bytes(dicom_bytes(small_dicom(grey, **uids, **named, StudyDate="20260102")))
    return path


def test_a_report_holds_the_printed_answers_and_refers_to_the_picture(
    medfedvqa: Callable[..., Got], finished: Path, film: Path, tmp_path: Path
) -> None:
    """In the picture's study, for its patient, not verified; readable by its owner alone."""
    out = tmp_path / "answers.dcm"
    asked = ("answer", "--run", str(finished), "--site", "chest", "--picture", str(film), "--question", QUESTION)
    done = medfedvqa(*asked, "--structured-report", str(out), "--top", "2", "--json")
    assert done.returncode == 0, done.stdout
    printed = json.loads(done.stdout)
    picture, report = dcmread(film), dcmread(out)
    assert report.SOPClassUID == BasicTextSRStorage and out.stat().st_mode & 0o777 == 0o600
    for keyword in ("StudyInstanceUID", "PatientName", "PatientID", "AccessionNumber", "StudyDate"):
        assert report[keyword].value == picture[keyword].value
    assert report.SeriesInstanceUID != picture.SeriesInstanceUID
    assert (report.VerificationFlag, report.PreliminaryFlag) == ("UNVERIFIED", "PRELIMINARY")
    texts = [item.TextValue for item in report.ContentSequence if item.ValueType == "TEXT"]
    assert QUESTION in texts and any("not a medical device" in text for text in texts)
    assert [text for text in texts if "%  " in text] == [
        f"{one['probability']:.1%}  {one['answer']}" for one in printed["answers"]
    ]
    (image,) = (item for item in report.ContentSequence if item.ValueType == "IMAGE")
    assert image.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == picture.SOPInstanceUID
    _validate(out)


def _validate(path: Path) -> None:
    """By the validator of David Clunie's dicom3tools."""
    validator = shutil.which("dciodvfy")
    if validator is None:
        pytest.skip("there is no dciodvfy here: install the package dicom3tools")
    said = subprocess.run([validator, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 0 and "BasicTextSR" in said.stderr and "Error" not in said.stderr, said.stderr


@pytest.mark.parametrize("fault", ["a PNG", "no study", "the file exists", "a page"])
def test_a_report_that_cannot_be_written_is_refused_before_anything_is_answered(
    medfedvqa: Callable[..., Got], finished: Path, picture: Path, film: Path, tmp_path: Path, fault: str
) -> None:
    """With a sentence that names the option, and without an entry in the log."""
    out = tmp_path / "answers.dcm"
    asked = ["--picture", str(picture if fault == "a PNG" else film), "--question", QUESTION]
    if fault == "no study":
        film.write_bytes(dicom_bytes(small_dicom(np.zeros((48, 48), np.uint8))))
    elif fault == "the file exists":
        out.write_bytes(b"another file")
    elif fault == "a page":
        asked = ["--page"]
    log = finished / "sites" / "chest" / "audit"
    before = _answered(log)
    done = medfedvqa("answer", "--run", str(finished), "--site", "chest", *asked, "--structured-report", str(out))
    assert done.returncode and "--structured-report" in " ".join(done.stderr.split()) and _answered(log) == before
    assert not out.exists() or out.read_bytes() == b"another file"


def _answered(log: Path) -> int:
    return sum(entry.event == Event.ANSWERED for entry in read(log))
