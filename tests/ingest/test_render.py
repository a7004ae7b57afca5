"""From stored values to what is seen."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset
from pydicom.pixels import apply_windowing
from pydicom.sequence import Sequence

from medfedvqa.ingest.dicom_reading import check_picture
from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.image_rendering import render, window
from medfedvqa.ingest.organs import ORGANS, PARTS, organ_of
from medfedvqa.ingest.refusal_reasons import Quarantined

Make = Callable[..., Dataset]
RAMP = np.arange(1024, dtype=np.uint16).reshape(32, 32) * 4
TESTS = Path(pydicom.__file__).parent / "data" / "test_files"


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_windows_are_those_of_the_standard(make_dicom: Make, function: str) -> None:
    """The same values as pydicom's, which scales them to the range of stored bits."""
    dataset = make_dicom(RAMP, WindowCenter=1500, WindowWidth=900, VOILUTFunction=function)
    wanted = apply_windowing(RAMP, dataset) / 4095
    assert np.allclose(window(RAMP.astype(float), 1500, 900, function), wanted, atol=1e-6)


def test_a_window_says_what_is_seen(make_dicom: Make, options: Options) -> None:
    grey = render(make_dicom(RAMP, WindowCenter=2048, WindowWidth=1024), options).grey
    assert grey.dtype == np.uint8 and (grey[RAMP < 1500] == 0).all() and (grey[RAMP > 2600] == 255).all()


def test_rescaling_comes_before_the_window(make_dicom: Make, options: Options) -> None:
    plain = render(make_dicom(RAMP, WindowCenter=2048, WindowWidth=1024), options).grey
    moved = make_dicom(RAMP, RescaleSlope=2, RescaleIntercept=-100, WindowCenter=3996, WindowWidth=2048)
    assert np.abs(render(moved, options).grey.astype(int) - plain).max() <= 1


def test_monochrome1_is_inverted(make_dicom: Make, options: Options) -> None:
    one, two = (render(make_dicom(RAMP, PhotometricInterpretation=f"MONOCHROME{n}"), options).grey for n in (1, 2))
    assert np.array_equal(one, 255 - two)


def test_padding_is_black_and_does_not_set_the_scale(make_dicom: Make, options: Options) -> None:
    padded = RAMP.copy()
    padded[:4] = 60000
    for photometric in ("MONOCHROME1", "MONOCHROME2"):
        facts = {"PhotometricInterpretation": photometric, "BitsStored": 16, "HighBit": 15, "PixelPaddingValue": 60000}
        grey = render(make_dicom(padded, **facts), options).grey
        assert (grey[:4] == 0).all() and grey[4:].max() == 255


def test_a_voi_table_is_followed(make_dicom: Make, options: Options) -> None:
    table = Dataset()
    table.add_new("LUTDescriptor", "US", [4096, 0, 8])
    table.add_new("LUTData", "US", [255 if value >= 3000 else value // 20 for value in range(4096)])
    grey = render(make_dicom(RAMP, VOILUTSequence=Sequence([table])), options).grey
    assert (grey == np.where(RAMP >= 3000, 255, RAMP // 20)).all()


@pytest.mark.parametrize(
    ("choice", "named", "frame"), [("middle", None, 2), ("first", None, 0), ("first", 4, 3), ("middle", 99, 2)]
)
def test_of_several_frames_one_is_chosen(
    make_dicom: Make, options: Options, choice: str, named: int | None, frame: int
) -> None:
    """The representative one that the file names, else the middle or the first."""
    frames = np.stack([RAMP[:, ::-1] if number == frame else RAMP for number in range(5)])
    dataset = make_dicom(frames, NumberOfFrames=5, RepresentativeFrameNumber=named)
    rendered = render(dataset, Options(**{**vars(options), "frames": choice}))
    assert (rendered.frame, rendered.frames) == (frame, 5) and rendered.grey[0, 0] > rendered.grey[0, -1]


def test_an_enhanced_image_has_windows_by_frame(make_dicom: Make, options: Options) -> None:
    groups = []
    for centre in (2500, 3000):
        voi, group = Dataset(), Dataset()
        voi.WindowCenter, voi.WindowWidth = centre, 200
        group.FrameVOILUTSequence = Sequence([voi])
        groups.append(group)
    dataset = make_dicom(np.stack([RAMP, RAMP]), NumberOfFrames=2, PerFrameFunctionalGroupsSequence=Sequence(groups))
    white = [
        (render(dataset, Options(**{**vars(options), "frames": frame})).grey == 255).sum()
        for frame in ("first", "middle")
    ]
    assert white == [(centre + 99 <= RAMP).sum() for centre in (2500, 3000)]


def test_colours_become_their_luminance(make_dicom: Make, options: Options) -> None:
    pixels = np.zeros((16, 48), np.uint8)
    dataset = make_dicom(pixels, PhotometricInterpretation="RGB", SamplesPerPixel=3, PlanarConfiguration=0, Columns=16)
    colours = np.zeros((16, 16, 3), np.uint8)
    colours[:5, :, 0], colours[5:10, :, 1], colours[10:, :, 2] = 255, 255, 255
    colours[:, 1:, :] = np.arange(15)[None, :, None] * 17
    dataset.PixelData = colours.tobytes()
    assert [int(render(dataset, options).grey[row, 0]) for row in (0, 5, 10)] == [76, 150, 29]


def readable() -> list[str]:
    """Every file of pydicom's own that has a picture of enough pixels and is not known to be damaged."""
    damaged = {"MR_truncated.dcm", "JPEG2000-embedded-sequence-delimiter.dcm"}
    names = []
    for path in sorted(TESTS.rglob("*")):
        if not path.is_file() or path.name in damaged:
            continue
        try:
            dataset = pydicom.dcmread(path, force=True)
            check_picture(dataset, Options())
        except Exception:
            continue
        names.append(path.relative_to(TESTS).as_posix())
    return names


@pytest.mark.filterwarnings("ignore")
def test_every_picture_in_pydicoms_own_files_is_decoded() -> None:
    """Whatever its transfer syntax: 15 of them; two are flat, and those drawn in a dozen colours have too few greys."""
    syntaxes, few, blank = set(), [], []
    names = readable()
    for name in names:
        dataset = pydicom.dcmread(TESTS / name, force=True)
        syntaxes.add(dataset.file_meta.get("TransferSyntaxUID"))
        try:
            assert render(dataset, Options()).grey.max() > 0
        except Quarantined as quarantined:
            (few if quarantined.reason == "few_greys" else blank).append((name, quarantined.reason.value))
    assert len(names) > 60 and len(syntaxes) >= 12
    assert {reason for _, reason in blank} == {"blank"} and len(blank) == 2
    assert all("SC_rgb" in name or "17136" in name for name, _ in few)


@pytest.mark.filterwarnings("ignore")
def test_twelve_bit_jpeg_shows_what_the_jpeg2000_copy_shows() -> None:
    """The same scan in both syntaxes, both lossy."""
    one, two = (
        render(pydicom.dcmread(TESTS / name), Options()).grey.astype(float).ravel()
        for name in ("JPGExtended.dcm", "JPEG2000.dcm")
    )
    assert np.corrcoef(one, two)[0, 1] > 0.9


@pytest.mark.parametrize(
    ("part", "organ"),
    [
        ("CHEST", "chest"),
        ("Lungs", "chest"),
        ("C-SPINE", "spine"),
        ("brain", "head"),
        ("others", "others"),
        ("X", None),
    ],
)
def test_body_parts_have_organs(part: str, organ: str | None) -> None:
    assert organ_of(part) == organ


def test_every_part_belongs_to_one_organ() -> None:
    parts = [part for listed in PARTS.values() for part in listed.split()]
    assert len(parts) == len(set(parts)) and set(PARTS) == set(ORGANS)
