"""Measures ingestion, in files a second and memory, on pydicom's test files and on a large mixed folder.

The mixed folder holds radiographs of 1,024 pixels a side, of which questions name every fourth, and junk. It is then
ingested again without a change.
"""

import argparse
import csv
import resource
import tempfile
import time
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ComputedRadiographyImageStorage, ExplicitVRLittleEndian, generate_uid

from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.ingest import ingest

SIDE = 1024


def radiograph(number: int) -> bytes:
    """A DICOM file of a blob with noise, 12 bits."""
    generator = np.random.default_rng(number)
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE - 0.5
    pixels = 3500 * np.exp(-8 * (x**2 + y**2)) + generator.normal(0, 40, (SIDE, SIDE))
    dataset = Dataset()
    dataset.SOPClassUID, dataset.SOPInstanceUID = ComputedRadiographyImageStorage, generate_uid()
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = generate_uid(), generate_uid()
    dataset.PatientID, dataset.BodyPartExamined, dataset.Modality = f"P{number}", "CHEST", "CR"
    dataset.Rows = dataset.Columns = SIDE
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation, dataset.PixelRepresentation = 1, "MONOCHROME2", 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 12, 11
    dataset.PixelData = pixels.clip(0, 4095).astype(np.uint16).tobytes()
    dataset["PixelData"].VR = "OW"
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    buffer = BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def measure(name: str, folder: Path, image_names: Iterable[str], place: Path, workers: int) -> None:
    """Ingest, and print seconds, verdicts and memory."""
    questions = place / "questions.csv"
    with questions.open("w", newline="") as file:
        csv.writer(file).writerows([("image", "question", "answer"), *((image, "Q?", "yes") for image in image_names)])
    began = time.perf_counter()
    counts = ingest(folder, questions, place / "store", place / "key", Options(), workers, lambda *_: None).counts
    seconds = time.perf_counter() - began
    ours, theirs = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(f"{name}: {counts.files} files in {seconds:.1f} s, {counts.files / seconds:.1f} a second")
    print(f"  stored {counts.stored}, unasked {counts.unasked}, quarantined {sum(counts.quarantined.values())}")
    print("  " + ", ".join(f"{reason.value} {number}" for reason, number in sorted(counts.quarantined.items())))
    print(f"  most memory so far: {ours:.0f} MiB in this process, {theirs:.0f} MiB in a worker")


def main() -> None:
    """Measure both folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--images", type=int, default=40, help="radiographs that questions name")
    parser.add_argument("--junk", type=int, default=5000)
    arguments = parser.parse_args()
    tests = Path(pydicom.__file__).parent / "data" / "test_files"
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        names = [path.relative_to(tests).as_posix() for path in tests.rglob("*") if path.is_file()]
        measure("pydicom's test files", tests, names, place, arguments.workers)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (folder := place / "mixed").mkdir()
        for number in range(4 * arguments.images):
            (folder / f"{number}.dcm").write_bytes(radiograph(number))
        for number in range(arguments.junk):
            (folder / f"{number}.txt").write_text(f"report {number}\n")
        image_names = [f"{4 * number}.dcm" for number in range(arguments.images)]
        for title in ("mixed folder", "the same again"):
            measure(title, folder, image_names, place, arguments.workers)


if __name__ == "__main__":
    main()
