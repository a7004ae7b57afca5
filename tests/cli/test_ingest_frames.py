"""`medfedvqa ingest --frames`: several frames of one file become pictures of one patient."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.pixels import get_encoder
from pydicom.uid import RLELossless, generate_uid
from small_dicom import dicom_bytes, scribbled_film, small_dicom

from medfedvqa.data import read
from medfedvqa.ingest.find_list import folder_of_finds
from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.ingest import ingest
from medfedvqa.ingest.review import reviewed_finds
from medfedvqa.ingest.store import read_store

pytest.importorskip("dicomanonymizer")

LIMITS = ("--side", "64", "--memory", "2048", "--workers", "2")
PLAIN = {"WindowCenter": "152.5", "WindowWidth": "205", "VOILUTFunction": "LINEAR_EXACT"}
Ingest = Callable[..., dict[str, Any]]


def frame(number: int) -> np.ndarray:
    """A smooth blob whose middle lies further right in each frame, uint8 [64, 64]."""
    y, x = np.mgrid[0:64, 0:64]
    return (250 * np.exp(-((x - 16 - 4 * number) ** 2 + (y - 32) ** 2) / 300)).astype(np.uint8)


def clip(frames: list[np.ndarray], **elements: object) -> Dataset:
    """A file of these frames, of an invented patient."""
    about: dict[str, object] = {"PatientName": "SECRET^Anna", "PatientID": "SECRET-1", "NumberOfFrames": len(frames)}
    dataset = small_dicom(frames[0], **about | elements)
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = generate_uid(), generate_uid()
    dataset.PixelData = np.stack(frames).tobytes()
    return dataset


def compressed(dataset: Dataset, frames: list[np.ndarray]) -> Dataset:
    """The same with these frames, each compressed by itself."""
    encode = get_encoder(RLELossless).encode
    dataset.PixelData = encapsulate([encode(dataset, index=number) for number in range(len(frames))])
    dataset["PixelData"].is_undefined_length = True
    dataset.file_meta.TransferSyntaxUID = RLELossless
    return dataset


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of images."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def ingested(medfedvqa, folder: Path) -> Ingest:
    """Runs the command on a table of these lines, and returns its counts."""

    def run(choice: str, *lines: str, side: str = "64") -> dict[str, Any]:
        Path("questions.csv").write_text("\n".join(["image,frame,question,answer", *lines]) + "\n")
        places = ("in", "--questions", "questions.csv", "--out", "mine")
        done = medfedvqa("ingest", *places, *LIMITS, "--side", side, "--frames", choice, "--json")
        assert "SECRET" not in done.stdout + done.stderr and '"files"' in done.stdout, done.stderr
        counts: dict[str, Any] = json.loads(done.stdout[: done.stdout.index("\n}") + 2])
        return counts

    return run


def middle_of(image: str) -> int:
    """The number of the frame that a stored picture shows, from 1."""
    pixels = pydicom.dcmread(f"mine/images/{image}.dcm").pixel_array
    return 1 + round((int(pixels.sum(0, dtype=int).argmax()) - 16) / 4)


@pytest.mark.parametrize(
    ("choice", "kept", "main"),
    [("all", (1, 2, 3, 4, 5, 6), 4), ("middle", (4,), 4), ("first", (1,), 1), ("every:2", (1, 3, 5), 3),
     ("every:9", (1,), 1)],
)  # fmt: skip
def test_rows_name_the_frames_that_are_kept(
    medfedvqa, folder: Path, ingested: Ingest, choice: str, kept: tuple[int, ...], main: int
) -> None:
    """A row without a frame means the middle one of those kept. All are one patient, whom one withdrawal removes."""
    (folder / "clip.dcm").write_bytes(dicom_bytes(clip([frame(number) for number in range(6)])))
    (folder / "single.dcm").write_bytes(dicom_bytes(clip([frame(8)], NumberOfFrames=None, PatientID="SECRET-2")))
    named = (f"clip.dcm,{number},Question {number}?,yes" for number in range(1, 8))
    rows = ("clip.dcm,,Question 0?,yes", *named, "single.dcm,1.0,Single?,no", "single.dcm,2,Second?,no")
    counts = ingested(choice, *rows)
    assert (counts["files"], counts["stored"], counts["pictures"], counts["patients"]) == (2, 2, len(kept) + 1, 2)
    assert counts["rows_left_out"] == {"no_such_frame": 7 - len(kept) + 1}
    _, images, stored = read_store(Path("mine"))
    shown = {row.question: middle_of(row.image) for row in stored}
    assert shown == {"Question 0?": main, **{f"Question {n}?": n for n in kept}, "Single?": 9}
    of_clip = [image for image in images.values() if image.frames == 6]
    assert {image.frame + 1 for image in of_clip} == set(kept) and len({image.patient for image in of_clip}) == 1
    headers = [pydicom.dcmread(f"mine/images/{image.id}.dcm", stop_before_pixels=True) for image in of_clip]
    assert len({header.SOPInstanceUID for header in headers}) == len(kept)
    assert all(header.file_meta.MediaStorageSOPInstanceUID == header.SOPInstanceUID for header in headers)
    assert len({row.patient for row in read("store", Path("mine")).rows}) == 2
    assert medfedvqa("ingest", "withdraw", "mine", "--patient", "SECRET-1").returncode == 0
    left = read_store(Path("mine"))[0].counts
    assert (left.stored, left.pictures, left.quarantined) == (1, 1, {"withdrawn": 1})


def test_a_frame_that_the_file_calls_representative_stands_for_it_if_it_is_kept(folder: Path, ingested: Ingest) -> None:
    dataset = clip([frame(number) for number in range(6)], RepresentativeFrameNumber=2)
    (folder / "clip.dcm").write_bytes(dicom_bytes(dataset))
    for choice, shown in (("middle", 2), ("all", 2), ("every:2", 3)):
        ingested(choice, "clip.dcm,,Left?,yes")
        assert [middle_of(row.image) for row in read_store(Path("mine"))[2]] == [shown]


@pytest.mark.parametrize("choice", ["every:0", "every:-1", "every:x", "every:", "every:1.5", "every: 2", "2", ""])
def test_a_choice_of_frames_that_means_nothing_is_refused(medfedvqa, folder: Path, choice: str) -> None:
    Path("questions.csv").write_text("image,question,answer\na.dcm,Left?,yes\n")
    done = medfedvqa("ingest", "in", "--questions", "questions.csv", "--out", "mine", "--frames", choice)
    assert done.returncode == 1 and "--frames must be one of: all, middle, first, every:N" in done.stderr
    assert not Path("mine").exists()


def test_one_frame_that_cannot_be_used_quarantines_its_file(
    folder: Path, ingested: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the file stays in the store, and the next ingestion does not read it again; other files are stored."""
    frames, flat = [frame(number) for number in range(5)], np.full((64, 64), 9, np.uint8)
    files = {
        "sound": clip(frames),
        "blank": clip([*frames, flat]),
        "undecodable": compressed(clip(frames), frames),
        "not_a_number": clip(frames),
    }
    files["undecodable"].NumberOfFrames, files["undecodable"].RepresentativeFrameNumber = 10**9, 1  # there are five
    for number, (name, dataset) in enumerate(files.items()):
        dataset.PatientID = f"SECRET-{number}"
        (folder / f"{name}.dcm").write_bytes(dicom_bytes(dataset))
    content, count = (folder / "not_a_number.dcm").read_bytes(), b"\x28\0\x08\0IS\x02\0"
    (folder / "not_a_number.dcm").write_bytes(content.replace(count + b"5 ", count + b"x "))
    rows = [f"{name}.dcm,{number},Q?,yes" for name in files for number in ("", 2)]
    rows.append(f"{files['blank'].SOPInstanceUID},,Q?,yes")
    counts = ingested("all", *rows)
    assert counts["quarantined"] == {"blank": 1, "undecodable": 1, "not_a_number": 1}
    assert (counts["stored"], counts["pictures"], counts["rows_left_out"]) == (1, 5, {"image_quarantined": 7})
    assert len(list(Path("mine/images").iterdir())) == 5
    with monkeypatch.context() as patch:
        patch.setattr("medfedvqa.ingest.worker_pool.WorkerProcess._start", lambda self: pytest.fail("a file was read"))
        assert ingested("all", *rows) == counts
    assert ingested("first", *rows)["quarantined"] == {"not_a_number": 1}


def test_a_clip_that_does_not_fit_into_memory_is_read_frame_by_frame(folder: Path, ingested: Ingest) -> None:
    """3,000 frames of 1,024 by 1,024 pixels are 3 GB, more than a worker may have."""
    pixels = np.repeat(np.arange(1024) // 8 + 64, 1024).astype(np.uint8).reshape(1024, 1024)
    dataset = compressed(clip([pixels]), [pixels])
    content = next(generate_frames(dataset.PixelData, number_of_frames=1))
    dataset.PixelData, dataset.NumberOfFrames = encapsulate(3000 * [content]), 3000
    (folder / "clip.dcm").write_bytes(dicom_bytes(dataset))
    counts = ingested("every:1000", "clip.dcm,,Left?,yes", "clip.dcm,2001,Right?,yes")
    assert (counts["pictures"], counts["rows"], counts["quarantined"]) == (3, 2, {})


def test_the_number_of_pictures_left_counts_frames(folder: Path) -> None:
    """Also where a frame puts its file into quarantine, so that the others are not read."""
    frames = [frame(number) for number in range(4)]
    (folder / "clip.dcm").write_bytes(dicom_bytes(clip(frames[:3])))
    (folder / "blank.dcm").write_bytes(dicom_bytes(clip([np.full((64, 64), 9, np.uint8), *frames])))
    Path("questions.csv").write_text("image,question,answer\nclip.dcm,Left?,yes\nblank.dcm,Left?,yes\n")
    seen = list[tuple[str, int, int]]()
    options = Options(side=64, memory=2048, frames="all")
    ingest(folder, Path("questions.csv"), Path("mine"), Path("key"), options, 1, lambda *step: seen.append(step))
    steps = [(done, total) for stage, done, total in seen if stage == "reading images"]
    assert steps == [(1, 6), (2, 6), (3, 5), (4, 5), (5, 5)]


@pytest.mark.slow
def test_an_ingestion_that_was_killed_within_a_file_continues_there(folder: Path, ingested: Ingest) -> None:
    """Frames that are in the journal are not read again."""
    (folder / "clip.dcm").write_bytes(dicom_bytes(clip([frame(number % 9) for number in range(40)])))
    Path("questions.csv").write_text("image,frame,question,answer\nclip.dcm,40,Left?,yes\n")
    places = ["in", "--questions", "questions.csv", "--out", "mine", *LIMITS, "--frames", "all"]
    command = [sys.executable, "-c", "from medfedvqa.cli import main; main()", "ingest", *places]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = Path("mine/journal.jsonl")
    while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < 12):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = {path: path.stat().st_mtime_ns for path in Path("mine/images").glob("[0-9a-f]*.dcm")}
    assert 12 <= len(done) < 40
    counts = ingested("all", "clip.dcm,40,Left?,yes")
    assert (counts["stored"], counts["pictures"], counts["rows"]) == (1, 40, 1)
    assert sum(path.stat().st_mtime_ns != before for path, before in done.items()) <= 2  # written, not yet recorded


def film(number: int) -> np.ndarray:
    """Tissue with a scribble that the reader cannot read, brighter below in each frame, uint8 [256, 256]."""
    pixels = scribbled_film()
    pixels[200:] += np.uint8(number)
    return pixels


def flags() -> dict[str, str]:
    """The pictures with a flag, by the id of the flag."""
    finds = ((find, finds.image) for finds in reviewed_finds(Path("mine")) for find in finds.finds)
    return {find.id: image for find, image in finds if find.decision == "flagged"}


def test_one_decision_serves_equal_finds_in_the_frames_of_a_file(medfedvqa, folder: Path, ingested: Ingest) -> None:
    """The sheet shows one of them; the decision is recorded for each picture. Another file has decisions of its own.

    A find that quarantines its picture quarantines the file, until a person decides otherwise.
    """
    review = ("ingest", "review", "mine", "--by", "Dr. Who")
    (folder / "clip.dcm").write_bytes(dicom_bytes(clip([film(number) for number in range(3)], **PLAIN)))
    (folder / "other.dcm").write_bytes(dicom_bytes(clip([film(0)], **PLAIN)))
    rows = ("clip.dcm,,Left?,yes", "other.dcm,,Left?,yes")
    assert ingested("all", *rows, side="256")["flagged"] == 4
    assert medfedvqa("ingest", "review", "mine").returncode == 0
    page = (folder_of_finds(Path("mine")) / "review.html").read_text()
    (shown,) = re.findall(r"<code>([0-9a-f]{16})</code><br></br><small>box [0-9, ]+, the same in 3 frames", page)
    assert page.count('class="flagged"') == 2 and "frame 3 of 3" in page
    done = medfedvqa(*review, "--keep", shown)
    assert "Recorded 3." in done.stdout, done.stderr
    lines = (folder_of_finds(Path("mine")) / "decisions.jsonl").read_text().splitlines()
    assert {json.loads(line)["frame"] for line in lines} == {0, 1, 2}
    assert ingested("all", *rows, side="256")["flagged"] == 1
    assert medfedvqa(*review, "--quarantine", shown).returncode == 0
    assert ingested("all", *rows, side="256")["quarantined"] == {"set_aside": 1}
    path = folder_of_finds(Path("mine")) / "decisions.jsonl"
    path.write_text(path.read_text().replace('"quarantine"', '"blank"'))
    counts = ingested("all", *rows, side="256")
    assert (counts["quarantined"], counts["flagged"], counts["pictures"]) == ({}, 1, 4)


def test_a_decision_applies_to_its_frame_alone(medfedvqa, folder: Path, ingested: Ingest) -> None:
    """Another choice of frames makes another frame the one that stands for the file, under the same id."""
    (folder / "clip.dcm").write_bytes(dicom_bytes(clip([film(number) for number in range(4)], **PLAIN)))
    row = "clip.dcm,,Left?,yes"
    assert ingested("middle", row, side="256")["flagged"] == 1
    (kept, image), *_ = flags().items()
    assert medfedvqa("ingest", "review", "mine", "--by", "Dr. Who", "--keep", kept).returncode == 0
    assert ingested("first", row, side="256")["flagged"] == 1 and flags() == {kept: image}
    assert ingested("all", row, side="256")["flagged"] == 3 and kept not in flags()
    assert ingested("middle", row, side="256")["flagged"] == 0


def test_a_store_of_an_earlier_version_continues(
    medfedvqa, folder: Path, ingested: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had one picture of a file, an option of another name, and decisions without a frame."""
    (folder / "clip.dcm").write_bytes(dicom_bytes(clip([film(number) for number in range(4)], **PLAIN)))
    row = "clip.dcm,,Left?,yes"
    ingested("middle", row, side="256")
    (kept, image), *_ = flags().items()
    assert medfedvqa("ingest", "review", "mine", "--by", "Dr. Who", "--keep", kept).returncode == 0

    def age() -> None:
        for path, new, old in (
            (folder_of_finds(Path("mine")) / "decisions.jsonl", '"frame":2,', ""),
            (Path("mine/journal.jsonl"), '"frame":null,', ""),
            (Path("mine/manifest.json"), '    "pictures": 1,\n', ""),
            (Path("mine/manifest.json"), '"frames":', '"frame":'),
        ):
            path.write_text(path.read_text().replace(new, old))

    age()
    assert read_store(Path("mine"))[0].options.frames == "middle"
    assert ingested("middle", row, side="256")["flagged"] == 0
    age()
    monkeypatch.setattr(
        "medfedvqa.ingest.worker_pool.WorkerProcess._start", lambda self: pytest.fail("a file was read")
    )
    assert ingested("middle", row, side="256")["flagged"] == 0 and set(read_store(Path("mine"))[1]) == {image}
