"""Masks by device: read in the form of CTP's script, refused where they do not fit, applied, and proposed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence

from medfedvqa.errors import ConfigError
from medfedvqa.ingest.device_masks import (
    ENOUGH,
    BlankedBoxes,
    around_ultrasound,
    parsed,
    proposals,
    read_masks,
    regions_of,
)
from medfedvqa.ingest.find_list import read_finds
from medfedvqa.ingest.review import folder_of_finds, write_sheet
from medfedvqa.ingest.store import read_store

SCRIPT = """The banner of the ultrasound in room 3.
{ Manufacturer.containsIgnoreCase("acme") * ManufacturerModelName.equals("Echo 3") * Rows.equals("128") *
  Columns.equals("256") }
(0, 0, 256, 20) and the corner (200, 100, 56, 28)
"""
DEVICE = {"Manufacturer": "ACME Medical", "ManufacturerModelName": "Echo 3"}


def section(regions: str = "(0, 0, 9, 9)", **changes: str) -> str:
    """A section whose conditions may be changed."""
    values = {"Manufacturer": '"A"', "ManufacturerModelName": '"B"', "Rows": '"128"', "Columns": '"256"', **changes}
    return "{" + " * ".join(f"{name}.equals({value})" for name, value in values.items() if value) + "}" + regions


def blob() -> np.ndarray:
    """A blob that is bright in the corners, too, uint16 [128, 256]."""
    y, x = np.mgrid[0:128, 0:256]
    return (1000 + 2500 * np.exp(-(((x - 128) / 50) ** 2) - ((y - 64) / 30) ** 2)).astype(np.uint16)


def test_the_first_signature_that_fits_counts() -> None:
    """Device and size have to fit, each by its operation; comments do not matter."""
    masks = parsed(SCRIPT + section("(0, 0, 5, 5)", Manufacturer='"ACME Medical"', ManufacturerModelName='"Echo 3"'))
    picture = Dataset()
    picture.Manufacturer, picture.ManufacturerModelName, picture.Rows, picture.Columns = (
        "ACME Medical",
        "Echo 3",
        128,
        256,
    )
    assert regions_of(picture, masks) == ((0, 0, 256, 20), (200, 100, 256, 128))
    picture.ManufacturerModelName = "Echo 4"
    assert regions_of(picture, masks) == ()
    picture.ManufacturerModelName, picture.Rows = "Echo 3", 127
    assert regions_of(picture, masks) == ()


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (section("(0, 120, 10, 9)"), "section 1: a region is empty or outside"),
        (section("(250, 0, 7, 9)"), "section 1: a region is empty or outside"),
        (section("(5, 5, 0, 9)"), "section 1: a region is empty or outside of the picture"),
        (section() + section("(0, 0, 9)"), "section 2: give at least one region as"),
        (section(""), "section 1: give at least one region as"),
        (section(Rows=""), "section 1: a signature must name"),
        (section(PatientName='"SECRET"'), "section 1: a signature joins conditions"),
        (section(Rows='"128").or("9"'), "section 1: a signature joins conditions"),
        (section() + "(", "a brace or a parenthesis outside of a section"),
        ("nothing", "has no section"),
    ],
)
def test_a_script_that_is_not_understood_or_does_not_fit_is_refused(script: str, sentence: str, tmp_path: Path) -> None:
    """Before any picture is read, in one sentence that quotes nothing of it."""
    path = tmp_path / "masks.script"
    path.write_text(script)
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_masks(path)
    assert "SECRET" not in str(caught.value)


def test_a_mask_is_blanked_in_pictures_of_its_device_alone(place, make_dicom: Callable[..., Dataset]) -> None:
    """The regions are scaled to the stored picture and listed for the review; another device's picture stays."""
    place.add("1.dcm", make_dicom(blob(), **DEVICE))
    place.add("2.dcm", make_dicom(blob(), **{**DEVICE, "Manufacturer": "Other"}))
    place.ask("1.dcm", "2.dcm")
    manifest = place.ingest(side=128, masks=SCRIPT)
    assert len(manifest.options.masks) == 64 and "room 3" not in (place.out / "manifest.json").read_text()
    (finds,) = read_finds(folder_of_finds(place.out))
    assert [(find.kind, find.box) for find in finds.finds if find.kind == "region"] == [
        ("region", [0, 0, 128, 10]),
        ("region", [100, 50, 128, 64]),
    ]
    for image in read_store(place.out)[1]:
        grey = pydicom.dcmread(place.out / "images" / f"{image}.dcm").pixel_array
        masked = image == finds.image
        assert (grey[:10] == 0).all() == masked and (grey[50:, 100:] == 0).all() == masked
        assert (grey[20:44, 40:88] > 0).all()


def test_another_mask_makes_the_store_anew(place, make_dicom: Callable[..., Dataset]) -> None:
    """The regions decide what the store holds, as other options do."""
    place.add("1.dcm", make_dicom(blob(), **DEVICE))
    place.ask("1.dcm")
    assert place.ingest(side=128).counts.redacted == 0
    assert place.ingest(side=128, masks=SCRIPT).counts.redacted == 1


def ultrasound(*regions: tuple[int, int, int, int]) -> Sequence:
    """Regions as a device names them: left, top, right, bottom, the last pixels included."""
    items = []
    for region in regions:
        item = Dataset()
        for corner, place in zip(("MinX0", "MinY0", "MaxX1", "MaxY1"), region, strict=True):
            setattr(item, f"RegionLocation{corner}", place)
        items.append(item)
    return Sequence(items)


def test_around_the_regions_of_an_ultrasound_all_is_blanked(place, make_dicom: Callable[..., Dataset]) -> None:
    """Without a mask, as the header names the regions. Inside nothing changes; the review lists what was blanked."""
    place.add("1.dcm", make_dicom(blob(), Modality="US"))
    named = make_dicom(blob(), Modality="US")
    named.SequenceOfUltrasoundRegions = ultrasound((32, 24, 127, 127), (100, 24, 223, 100))
    place.add("2.dcm", named)
    place.ask("1.dcm", "2.dcm")
    place.ingest(side=128)
    (finds,) = read_finds(folder_of_finds(place.out))
    assert {find.kind for find in finds.finds} == {"region"}
    greys = {
        image == finds.image: pydicom.dcmread(place.out / "images" / f"{image}.dcm").pixel_array
        for image in read_store(place.out)[1]
    }
    outside = np.ones((64, 128), dtype=bool)
    outside[12:64, 16:112] = False
    assert (greys[True][outside] == 0).all() and (greys[False][outside] > 0).any()
    assert (greys[True][~outside] == greys[False][~outside]).all()


@pytest.mark.parametrize(
    "regions",
    [
        [],
        [(0, 0, 256, 127)],
        [(0, 0, 99, 99), (5, 5, 4, 9)],
        [(255, 0, 0, 99)],
        [(100, 50, 130, 80)],
        [(0, 0, 255, 127)],
    ],
)
def test_regions_that_cannot_be_right_blank_nothing(regions: list[tuple[int, int, int, int]]) -> None:
    """None, one beyond the picture, one empty, one from right to left, one too small, and the whole picture."""
    picture = Dataset()
    picture.Rows, picture.Columns = 128, 256
    picture.SequenceOfUltrasoundRegions = ultrasound(*regions)
    assert around_ultrasound(picture) == ()


def test_a_box_that_recurs_is_proposed_as_a_mask_that_can_be_read() -> None:
    """In enough pictures of one device and size, though not exactly the same; one picture less proposes nothing."""
    boxes = [
        BlankedBoxes(("A", "B"), (128, 256), ((n % 3, 4, 100 + n % 2, 24), (n, n, n + 5, n + 5))) for n in range(ENOUGH)
    ]
    ((count, script),) = proposals(boxes)
    (mask,) = parsed(script)
    assert count == ENOUGH and mask.regions == ((0, 4, 101, 24),)
    assert (
        proposals(boxes[1:]) == []
        and proposals([*boxes[1:], BlankedBoxes(("A", "C"), (128, 256), boxes[0].boxes)]) == []
    )


def test_the_sheet_proposes_masks(place, make_dicom: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a store whose pictures have the same name in the same corner; here two pictures are enough."""
    cv2 = pytest.importorskip("cv2")
    monkeypatch.setattr("medfedvqa.ingest.device_masks.ENOUGH", 2)
    for number in (1, 2):
        pixels = blob()
        pixels[5 * number :, -1] += number  # another file with the same text
        letters = cv2.putText(np.zeros(pixels.shape, np.uint8), "SECRET ANNA", (8, 20), 0, 0.6, 1, 2)
        pixels[letters > 0] = 4000
        place.add(f"{number}.dcm", make_dicom(pixels, **DEVICE))
    place.ask("1.dcm", "2.dcm")
    place.ingest(side=256)
    page = write_sheet(place.out)[0].read_text()
    assert "in 2 pictures" in page and "ManufacturerModelName.equals" in page


def test_a_mask_fits_a_picture_whose_pixels_became_square(place, make_dicom) -> None:
    """It is in pixels of the original, whose rows are half as many as those of the stored picture."""
    place.add("a.dcm", make_dicom(blob(), **DEVICE, PixelSpacing=[2, 1], WindowCenter=2048, WindowWidth=4096))
    place.ask("a.dcm")
    place.ingest(side=256, masks=SCRIPT)
    ((name, image),) = read_store(place.out)[1].items()
    grey = pydicom.dcmread(place.out / "images" / f"{name}.dcm").pixel_array
    assert grey.shape == (256, 256) and image.squared
    assert not grey[:40].any() and not grey[200:, 200:].any()
    assert grey[41:200].all() and grey[41:, :199].all()
    assert [find.size for find in read_finds(folder_of_finds(place.out))] == [[128, 256]]
