"""`medfedvqa ingest`, and a run on the store that it makes."""

import csv
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from pydicom.uid import generate_uid
from small_dicom import dicom_bytes, small_dicom

import medfedvqa.ingest.ingest as ingestion
from medfedvqa.cli.ingest import _show, _stage_bars
from medfedvqa.cli.terminal import Terminal
from medfedvqa.ingest.refusal_reasons import Reason, RowReason
from medfedvqa.ingest.store import Counts
from privacy.report import read_report

LIMITS = ("--side", "64", "--memory", "2048", "--workers", "1")


def image(patient: int, bright: bool) -> bytes:
    """A square on black, large or small."""
    pixels = np.zeros((40, 40), np.uint8)
    pixels[8:32, 8:32] = np.arange(24) + (220 if bright else 90)
    pixels[0, 0] = 255
    dataset = small_dicom(pixels, PatientName="SECRET", PatientID=f"SECRET-{patient}", BodyPartExamined="CHEST")
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = generate_uid(), generate_uid()
    return dicom_bytes(dataset)


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    """A folder `in` of eight patients' images, and `questions.csv`."""
    (tmp_path / "in").mkdir()
    with (tmp_path / "questions.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "question", "answer", "split"])
        for number in range(8):
            bright = number % 2 == 0
            (tmp_path / "in" / f"SECRET-{number}.dcm").write_bytes(image(number, bright))
            part = ("train", "train", "train", "train", "validate", "validate", "test", "test")[number]
            writer.writerow([f"SECRET-{number}.dcm", "Is the square bright?", "yes" if bright else "no", part])
    return tmp_path


@pytest.mark.slow
def test_a_store_is_made_and_a_method_trains_on_it(medfedvqa, hospital: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From DICOM to results and a report that says how it was de-identified; nothing names a file or a patient."""
    pytest.importorskip("dicomanonymizer")
    monkeypatch.chdir(hospital)
    done = medfedvqa("ingest", "in", "--questions", "questions.csv", "--out", "mine", *LIMITS)
    assert done.returncode == 0, done.stderr
    assert "8 patients" in done.stdout and "SECRET" not in done.stdout + done.stderr
    assert Path("mine.key").stat().st_mode & 0o777 == 0o600
    quick = ("--rounds", "1", "--local-epochs", "1", "-O", "tuning=classifier")
    done = medfedvqa("run", "fedavg", "--data", "mine", *quick, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert Path("run/results.json").is_file() and "on store, 1 site," in done.stderr
    [site] = Path("run/sites").iterdir()
    done = medfedvqa("privacy", "report", "--site", str(site / "site.yml"), "--no-network", "--out", "report")
    assert done.returncode == 0, done.stderr
    said = Path("report/report.json").read_bytes()
    handling = read_report(said).sections.data_handling
    assert handling.burned_in.endswith("No person has accepted every picture after that.")
    assert handling.ingested and "113100" in " ".join(handling.profile) and b"SECRET" not in said


def test_without_the_extra_one_sentence_says_how_to_get_it(
    medfedvqa, hospital: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingestion, "TOOLS", ("no-such-package",))
    places = (str(hospital / "in"), "--questions", str(hospital / "questions.csv"), "--out", str(hospital / "out"))
    done = medfedvqa("ingest", *places)
    assert done.returncode == 1 and "pip install 'medfedvqa[ingest]'" in done.stderr


def test_questions_that_cannot_be_used_end_with_one_sentence(medfedvqa, hospital: Path) -> None:
    (hospital / "questions.csv").write_text("image,question,answer\nSECRET,,\n")
    places = (str(hospital / "in"), "--questions", str(hospital / "questions.csv"), "--out", str(hospital / "out"))
    done = medfedvqa("ingest", *places)
    assert done.returncode == 1 and "row 0: the field 'question' is missing or empty" in done.stderr
    assert "SECRET" not in done.stderr and not (hospital / "out").exists()


def test_a_folder_that_is_no_store_is_not_taken_for_one(medfedvqa, hospital: Path) -> None:
    done = medfedvqa("run", "fedavg", "--data", str(hospital / "in"))
    assert done.returncode == 1 and "unknown data" in done.stderr


@pytest.mark.slow
def test_a_person_blanks_more_by_command_and_accepts_all(medfedvqa, hospital: Path, monkeypatch) -> None:
    """From the sheet's ids to a store whose pictures are all reviewed; what is mistyped ends with one sentence."""
    pytest.importorskip("dicomanonymizer")
    monkeypatch.chdir(hospital)
    command = ("ingest", "in", "--questions", "questions.csv", "--out", "mine", *LIMITS)
    Path("masks.script").write_text("{ Rows.equals(SECRET) } (0, 0, 9, 9)")
    done = medfedvqa(*command, "--masks", "masks.script")
    assert done.returncode == 1 and "masks, section 1" in done.stderr and "SECRET" not in done.stderr
    assert medfedvqa(*command).returncode == 0
    picture = next(Path("mine/images").iterdir()).stem
    review = ("ingest", "review", "mine", "--by", "Dr. Who")
    done = medfedvqa(*review, "--add", f"{picture}:1,2,3")
    assert done.returncode == 1 and "PICTURE:LEFT,TOP,RIGHT,BOTTOM" in done.stderr
    done = medfedvqa(*review, "--add", f"{picture}:8,8,20,20", "--accept", "all")
    assert done.returncode == 0 and "Recorded 9." in done.stdout, done.stderr
    done = medfedvqa(*command, "--json")
    counts = json.loads(done.stdout[: done.stdout.index("\n}") + 2])
    assert counts["reviewed"] == counts["stored"] == 8 and counts["redacted"] == 1


def test_without_a_terminal_each_minute_shows_the_pace_and_the_time_that_is_left() -> None:
    """A hospital's log of 6,000 pictures: one a second from the first on; no line for a folder of unknown size."""
    output, now = StringIO(), [0.0]
    with _stage_bars(Terminal(file=output), lambda: now[0]) as watch:
        watch("looking through the folder", 1, 0)
        now[0] = 500
        watch("looking through the folder", 2, 0)
        for number in range(1, 182):
            watch("reading images", number, 6000)
            now[0] += 1
    lines = output.getvalue().splitlines()
    assert lines[:2] == ["looking through the folder", "reading images"]
    assert lines[2:] == [
        f"reading images: {done} of 6,000, 3,600 an hour, {left} hours left"
        for done, left in ((61, "1:39"), (121, "1:38"), (181, "1:37"))
    ]


def test_the_terminal_prints_every_reason_with_its_meaning() -> None:
    """As docs/ingest.md says: a reason is explained where it is counted."""
    output = StringIO()
    counts = Counts(
        files=1, stored=0, unasked=0, quarantined=dict.fromkeys(Reason, 1), redacted=0, rows=0,
        rows_left_out=dict.fromkeys(RowReason, 1), patients=0,
    )  # fmt: skip
    _show(Terminal(file=output, width=400), counts)
    lines = output.getvalue().splitlines()
    for kind, reason in (*(("quarantined", each) for each in Reason), *(("left out", each) for each in RowReason)):
        assert [line for line in lines if f"{kind}: {reason.value} " in line and f" {reason.meaning} " in line], reason
