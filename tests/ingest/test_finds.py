"""What is found in pictures: read, decided, blanked or kept, and listed beside the store."""

import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset

from medfedvqa.errors import DataError
from medfedvqa.ingest.burned_in_text import TextFinder, code_corners
from medfedvqa.ingest.find_list import (
    Decision,
    FindKind,
    Reading,
    decide,
    folder_of_finds,
    is_central,
    is_off_anatomy,
    read_finds,
)
from medfedvqa.ingest.store import read_store

KNOWN = frozenset({"name:davidson", "near:davidson", "near:daidson", "date:19310507"})


@pytest.fixture(scope="module")
def finder() -> TextFinder:
    return TextFinder()


def tissue(side: int = 400) -> np.ndarray:
    """Smooth grey tissue without black ground, uint8 [side, side]."""
    noise = np.random.default_rng(3).normal(size=(side, side)).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), 12)
    return np.clip(110 + 25 * smooth / smooth.std(), 0, 255).astype(np.uint8)


@pytest.mark.parametrize(
    ("text", "confidence", "off_anatomy", "expected"),
    [
        ("DAVIDSON", 0.9, False, (FindKind.IDENTIFIER, Decision.BLANKED)),
        ("DAV1DSON", 0.4, False, (FindKind.UNREAD, Decision.FLAGGED)),
        ("DAVIDS0N 1931-05-07", 0.4, False, (FindKind.IDENTIFIER, Decision.BLANKED)),
        ("Dr. Unheard", 0.9, False, (FindKind.TEXT, Decision.BLANKED)),
        ("MRN 77123456", 0.5, False, (FindKind.IDENTIFIER, Decision.BLANKED)),
        ("54Y F", 0.9, False, (FindKind.TEXT, Decision.BLANKED)),
        ("L", 0.9, False, (FindKind.MARKER, Decision.KEPT)),
        ("AP supine", 0.9, True, (FindKind.MARKER, Decision.KEPT)),
        ("W 400 L 40", 0.9, True, (FindKind.MARKER, Decision.KEPT)),
        ("10 cm", 0.9, True, (FindKind.MARKER, Decision.KEPT)),
        ("1931", 0.9, True, (FindKind.TEXT, Decision.BLANKED)),
        ("IIo", 0.3, False, (FindKind.UNREAD, Decision.FLAGGED)),
        ("IIo", 0.3, True, (FindKind.UNREAD, Decision.BLANKED)),
        ("", 0.0, False, (FindKind.UNREAD, Decision.FLAGGED)),
    ],
)
def test_what_is_read_is_decided_and_what_is_not_read_is_never_blanked_in_anatomy(
    text: str, confidence: float, off_anatomy: bool, expected: tuple[FindKind, Decision]
) -> None:
    """Identifiers and all legible text go, markers stay; unread marks in anatomy are flagged."""
    assert decide(Reading(text, confidence), KNOWN.__contains__, off_anatomy, blank_unread=True) == expected


def test_unread_marks_near_the_border_follow_the_policy() -> None:
    """Under the policy `flag` nothing unread is blanked."""
    decided = decide(Reading("IIo", 0.3), KNOWN.__contains__, off_anatomy=True, blank_unread=False)
    assert decided == (FindKind.UNREAD, Decision.FLAGGED)


def test_a_single_letter_in_the_anatomy_is_kept_without_a_flag() -> None:
    """Where there is room for more than one letter, a reading of one is no reading."""
    single = Reading("O", 0.6)
    assert decide(single, KNOWN.__contains__, False, True, square=True) == (FindKind.UNREAD, Decision.KEPT)
    assert decide(single, KNOWN.__contains__, False, True, square=False) == (FindKind.UNREAD, Decision.FLAGGED)


def test_the_border_is_wider_on_black_ground() -> None:
    """A box at a fifth of the width is off the anatomy if all around it is black."""
    bright, black = np.full((200, 200), 90, np.uint8), np.zeros((200, 200), np.uint8)
    box = (30, 90, 50, 100)
    assert is_off_anatomy(box, black) and not is_off_anatomy(box, bright)
    assert is_off_anatomy((2, 90, 22, 100), bright) and not is_off_anatomy((90, 90, 110, 100), black)


@pytest.mark.parametrize(("middle", "expected"), [(38, False), (42, True), (158, True), (162, False)])
def test_the_centre_is_sixty_per_cent_of_width_and_height(middle: int, expected: bool) -> None:
    """What `benchmarks/burned_in_text.py` counts as lost anatomy, whatever the rule of ingestion becomes."""
    picture = np.zeros((200, 200), np.uint8)
    assert is_central((middle - 5, 95, middle + 5, 105), picture) == expected
    assert is_central((95, middle - 5, 105, middle + 5), picture) == expected


def test_nothing_unread_is_blanked_in_the_centre_and_legible_text_is(finder: TextFinder) -> None:
    """On black ground beside anatomy, between a fifth and a quarter of the width from the side."""
    picture = np.zeros((400, 400), np.uint8)
    for left, top in ((74, 120), (26, 200)):
        heights = (0, 12, 4, 10, 2, 12, 5, 9, 1, 11, 3, 12)  # a regular zigzag is read as MM, which is a unit, and kept
        zigzag = np.array([(left + 4 * step, top + height) for step, height in enumerate(heights)])
        cv2.polylines(picture, [zigzag], False, 220, 2)
    cv2.putText(picture, "SMITH", (60, 290), cv2.FONT_HERSHEY_SIMPLEX, 0.7, 255, 2)
    finds = finder.clean(picture, 400).finds
    unread = {is_central(find.box, picture): find.decision for find in finds if find.kind == FindKind.UNREAD}
    assert unread == {True: Decision.FLAGGED, False: Decision.BLANKED}
    assert [(is_central(find.box, picture), find.decision) for find in finds if find.kind == FindKind.TEXT] == [
        (True, Decision.BLANKED)
    ]


def test_a_marker_of_side_stays_and_a_name_beside_it_goes(finder: TextFinder) -> None:
    """Both are in one picture of tissue, far from its border."""
    picture = tissue()
    plain = picture.copy()
    cv2.putText(picture, "LEFT", (100, 120), cv2.FONT_HERSHEY_SIMPLEX, 0.8, 255, 2)
    marked = picture.copy()
    cv2.putText(picture, "DAVIDSON", (120, 250), cv2.FONT_HERSHEY_SIMPLEX, 0.8, 255, 2)
    cleaned = finder.clean(picture, 400, KNOWN.__contains__)
    kinds = {find.kind for find in cleaned.finds}
    assert kinds == {FindKind.MARKER, FindKind.IDENTIFIER} and cleaned.flags == 0
    assert (cleaned.grey[picture != marked] == 0).mean() > 0.95
    assert np.array_equal(cleaned.grey[marked != plain], picture[marked != plain])


def test_a_faint_name_on_a_plate_is_blanked(finder: TextFinder) -> None:
    """Grey 150 on a grey plate of 120, within tissue."""
    picture = tissue()
    picture[240:280, 110:290] = 120
    plate = picture.copy()
    cv2.putText(picture, "DAVIDSON", (120, 268), cv2.FONT_HERSHEY_SIMPLEX, 0.8, 150, 2)
    cleaned = finder.clean(picture, 400, KNOWN.__contains__)
    assert (cleaned.grey[picture != plate] == 0).mean() > 0.95


def test_a_qr_code_is_found_and_blanked(finder: TextFinder) -> None:
    """A real code, made by OpenCV's encoder, within tissue. Tissue alone has none."""
    picture = tissue()
    assert code_corners(picture) == []
    code = cv2.QRCodeEncoder.create().encode("MRN 77123456")
    code = cv2.resize(code, None, fx=3, fy=3, interpolation=cv2.INTER_NEAREST)
    height, width = code.shape
    picture[150 : 150 + height, 150 : 150 + width] = code
    cleaned = finder.clean(picture, 400)
    assert FindKind.CODE in {find.kind for find in cleaned.finds}
    assert (cleaned.grey[156 : 144 + height, 156 : 144 + width] == 0).mean() > 0.95


def test_finds_are_listed_beside_the_store_and_nowhere_else(
    place, make_dicom: Callable[..., Dataset], make_picture: Callable[..., np.ndarray]
) -> None:
    """What was read is in a folder of mode 0700, in files of mode 0600; the store and its codes tell nothing of it."""
    pixels = make_picture(1, 256)
    letters = cv2.putText(np.zeros((256, 256), np.uint8), "SECRET ANNA", (20, 30), cv2.FONT_HERSHEY_SIMPLEX, 0.8, 1, 2)
    pixels[letters > 0] = 4000
    place.add("1.dcm", make_dicom(pixels))
    place.ask("1.dcm")
    counts = place.ingest(side=256).counts
    folder = folder_of_finds(place.out)
    (path,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700 and path.stat().st_mode & 0o777 == 0o600
    (finds,) = read_finds(folder)
    assert "SECRET" in " ".join(find.reading for find in finds.finds) and counts.redacted == 1
    assert not any("SECRET" in path.read_text(errors="replace") for path in place.out.rglob("*") if path.is_file())
    place.add("2.dcm", make_dicom(make_picture(2)))
    place.ask("2.dcm")
    place.ingest(side=256)
    assert list(folder.iterdir()) == []


def test_an_open_flag_takes_back_the_claim_of_clean_pixels(place, make_dicom: Callable[..., Dataset]) -> None:
    """With an unread mark in the anatomy neither header nor manifest says 113101, or that nothing is burned in.

    The mark is a scribble, as handwriting is: the detector finds it, and the reader is not sure of any letter.
    """
    pixels, generator = tissue(256), np.random.default_rng(3)
    for left in range(80, 171, 13):
        strokes = generator.uniform(0, 1, (5, 2)) * (10, 18) + (left, 118)
        cv2.polylines(pixels, [strokes.astype(np.int32)], False, 255, 2)
    place.add("1.dcm", make_dicom(pixels))
    place.ask("1.dcm")
    manifest = place.ingest(side=256)
    (image,) = read_store(place.out)[1].values()
    assert image.flags >= 1 and manifest.counts.flagged == 1 and not image.boxes
    assert [code.value for code in manifest.deidentification] == ["113100"]
    dataset = pydicom.dcmread(place.out / "images" / f"{image.id}.dcm")
    assert [code.CodeValue for code in dataset[0x0012, 0x0064].value] == ["113100"]
    assert "BurnedInAnnotation" not in dataset


def test_a_damaged_list_of_finds_is_one_sentence(tmp_path: Path) -> None:
    """It quotes nothing of the list."""
    (tmp_path / f"{32 * 'a'}.finds.json").write_text(json.dumps({"image": "SECRET"}))
    with pytest.raises(DataError, match="the list of finds beside the store is damaged") as caught:
        list(read_finds(tmp_path))
    assert "SECRET" not in str(caught.value)
