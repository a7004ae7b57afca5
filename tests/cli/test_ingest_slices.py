"""`medfedvqa ingest slices`: slices of NIfTI volumes, the right way round, as pictures that the ingestion stores."""

import csv
import gzip
import subprocess
import sys
from itertools import permutations, product
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from PIL import Image
from pydicom import dcmread

from medfedvqa.errors import DataError
from medfedvqa.ingest.volume_slices import SliceOutcome, Window, cut_slices

SCRIPT = "from medfedvqa.cli import main; main()"
SHAPE = (5, 7, 9)
"""Voxels from left to right, from back to front, and from the feet to the head."""
VALUES = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
HEADINGS = ("image", "question", "answer", "organ", "patient")


def table(path: Path, *names: str) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADINGS)
        writer.writerows((name, f"Question {index}?", "yes", "head", "P-1") for index, name in enumerate(names))
    return path


def volume(path: Path, values: np.ndarray, affine: np.ndarray | None = None, kind: type = nib.Nifti1Image) -> Path:
    path.parent.mkdir(exist_ok=True)
    nib.save(kind(values, np.eye(4) if affine is None else affine), path)
    return path


def stored_as(order: tuple[int, ...], flips: tuple[bool, ...]) -> nib.Nifti1Image:
    """`VALUES` as a file stores them whose axes are those of the patient in another order and direction."""
    orientation = np.array([[axis, -1 if flip else 1] for axis, flip in zip(order, flips, strict=True)])
    canonical = nib.Nifti1Image(VALUES, np.eye(4))
    return canonical.as_reoriented(nib.orientations.ornt_transform(np.array([[0, 1], [1, 1], [2, 1]]), orientation))


def cut(volumes: Path, into: Path, *names: str, window: Window | None = None) -> dict[SliceOutcome, int]:
    return cut_slices(volumes, table(volumes / "q.csv", *names), into, lambda done, total: None, window=window)


def picture(path: Path) -> np.ndarray:
    with Image.open(path) as opened:
        return np.asarray(opened)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_slices_lie_as_radiologists_look_at_them_however_the_file_stores_them(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """Of all 48 orders and directions of axes: right on the left, front on the left of a sagittal one, head above."""
    expected = {
        "axial-8": VALUES[::-1, ::-1, 8].T,
        "coronal-2": VALUES[::-1, 2, ::-1].T,
        "sagittal-4": VALUES[4, ::-1, ::-1].T,
    }
    for number, flips in enumerate(product((False, True), repeat=3)):
        nib.save(stored_as(order, flips), tmp_path / f"{number}.nii.gz")
        names = [f"{number}.nii.gz@{plane}.png" for plane in expected]
        assert cut(tmp_path, tmp_path / "out", *names, window=Window(0, 512)) == {SliceOutcome.CUT: 3}
        for name, values in zip(names, expected.values(), strict=True):
            np.testing.assert_array_equal(picture(tmp_path / "out" / name), np.rint(values / 512 * 255))


def test_without_a_window_levels_have_16_bits_and_what_is_no_number_is_black(tmp_path: Path) -> None:
    """From the slice's lowest value to its highest; a slice of one value is black."""
    values = np.zeros((2, 2, 2), np.float32)
    values[..., 0] = [[-1000, np.nan], [np.inf, 3000]]
    volume(tmp_path / "a.nii", values, kind=nib.Nifti2Image)
    assert cut(tmp_path, tmp_path / "out", "a.nii@axial-0.png", "a.nii@axial-1.png") == {SliceOutcome.CUT: 2}
    first, second = (picture(tmp_path / "out" / f"a.nii@axial-{number}.png") for number in range(2))
    assert first.dtype == np.uint16 and first.tolist() == [[65535, 0], [65535, 0]]
    assert not second.any()


def test_pixels_are_square_where_voxels_are_not(tmp_path: Path) -> None:
    """Slices of 5 mm with pixels of 1 mm: a coronal picture is five times as high as it has slices."""
    volume(tmp_path / "a.nii", VALUES, np.diag([1.0, 1, 5, 1]))
    cut(tmp_path, tmp_path / "out", "a.nii@coronal-0.png", "a.nii@axial-0.png")
    assert picture(tmp_path / "out/a.nii@coronal-0.png").shape == (45, 5)
    assert picture(tmp_path / "out/a.nii@axial-0.png").shape == (7, 5)


def test_what_cannot_be_cut_is_counted_and_nothing_is_written(tmp_path: Path) -> None:
    """No orientation, four dimensions, colour, torn files, another kind, a slice too far, a link to a device."""
    nowhere = nib.Nifti1Image(VALUES, None)
    nowhere.header["sform_code"] = nowhere.header["qform_code"] = 0
    nib.save(nowhere, tmp_path / "nowhere.nii")
    volume(tmp_path / "moments.nii", np.zeros((2, 2, 2, 3), np.int16))
    volume(tmp_path / "colour.nii", np.zeros((2, 2, 2), [("R", "u1"), ("G", "u1"), ("B", "u1")]))
    whole = gzip.compress(volume(tmp_path / "whole.nii", VALUES).read_bytes())
    (tmp_path / "torn.nii.gz").write_bytes(whole[:-6])
    (tmp_path / "short.nii").write_bytes((tmp_path / "whole.nii").read_bytes()[:-1])
    (tmp_path / "text.nii").write_text("SECRET")
    (tmp_path / "device.nii").symlink_to("/dev/zero")
    places = (
        "nowhere.nii",
        "moments.nii",
        "colour.nii",
        "torn.nii.gz",
        "short.nii",
        "text.nii",
        "device.nii",
        "none.nii",
        "whole.nii",
    )
    names = [f"{place}@axial-{'9' if place == 'whole.nii' else '1'}.png" for place in places]
    assert cut(tmp_path, tmp_path / "out", *names, "radiograph.png") == {
        SliceOutcome.NO_ORIENTATION: 1,
        SliceOutcome.DAMAGED: 5,
        SliceOutcome.NO_VOLUME: 2,
        SliceOutcome.NO_SLICE: 1,
    }
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, 1.0), (float("nan"), 1.0), (0.0, float("inf"))])
def test_a_window_without_values_is_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(DataError, match="the second one larger"):
        Window(*bounds)


def test_slices_of_a_volume_are_stored_without_its_name(tmp_path: Path) -> None:
    """Through the commands: cut, then ingested under a pseudonym. Neither prints a name; a second call cuts nothing."""
    noise = np.random.default_rng(0).normal(size=(64, 64, 8)).astype(np.float32)
    volume(tmp_path / "volumes/SECRET.nii.gz", noise)
    questions = table(tmp_path / "questions.csv", "SECRET.nii.gz@axial-3.png", "SECRET.nii.gz@axial-70.png")

    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, "-c", SCRIPT, "ingest", *command], capture_output=True, text=True)
        assert done.returncode == 0 and "SECRET" not in done.stdout + done.stderr, done.stderr
        return done.stdout

    slices = ("slices", str(tmp_path / "volumes"), "--questions", str(questions), "--into", str(tmp_path / "images"))
    assert "1 cut" in (first := run(*slices, "--window=-2,2")) and "1 beyond the last slice" in first
    assert "1 in the folder before" in run(*slices)
    folders = (str(tmp_path / "images"), "--questions", str(questions), "--out", str(tmp_path / "store"))
    run(*folders, "--key", str(tmp_path / "key"), "--workers", "1")
    (stored,) = (tmp_path / "store/images").iterdir()
    dataset = dcmread(stored)
    assert dataset.pixel_array.shape[:2] == (64, 64) and dataset.PatientID != "P-1"
    assert (tmp_path / "images").stat().st_mode & 0o077 == 0
