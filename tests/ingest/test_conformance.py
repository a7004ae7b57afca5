"""Files as equipment writes them, each against a picture that the test computes by the standard's formula itself."""

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.filebase import DicomBytesIO
from pydicom.filewriter import write_dataset
from pydicom.pixels import apply_windowing
from pydicom.sequence import Sequence
from pydicom.uid import (
    ExplicitVRBigEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    RLELossless,
)
from typer.testing import CliRunner

from medfedvqa.cli import app
from medfedvqa.errors import ConfigError
from medfedvqa.ingest.dicom_reading import check_picture, read_dicom
from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.image_rendering import Rendered, render
from medfedvqa.ingest.refusal_reasons import Quarantined, Reason
from medfedvqa.ingest.store import read_manifest

Array = np.ndarray
Make = Callable[..., Dataset]
Encode = Callable[[Dataset], bytes]
SIDE = 48
Y, X = np.mgrid[0:SIDE, 0:SIDE]
SEEN = (3 * X + Y) / (4 * (SIDE - 1.0))
"""What a radiologist is to see, 0 to 1."""
SEEN[10:20, 15:30], SEEN[30:40, 5:15] = 0.9, 0.1
TWELVE = np.floor(SEEN * 4095).astype(np.uint16)
EIGHT = np.floor(SEEN * 255).astype(np.uint8)
WHOLE = {"WindowCenter": 2048, "WindowWidth": 4096}
HOUNSFIELD = np.floor(SEEN * 2000 - 1000).astype(np.int16)


def element(tag: int, vr: str, value: Any) -> Callable[[Dataset], object]:
    """Adds an element as a file has it, with whatever VR."""
    return lambda dataset: dataset.add_new(tag, vr, value)


def table(values: Array, first: int, bits: int, keyword: str = "VOILUTSequence") -> Callable[[Dataset], object]:
    """Adds a lookup table whose descriptor says this first value and these bits."""
    item = Dataset()
    item.add_new("LUTDescriptor", "US", [len(values) % 65536, first, bits])
    item.add_new("LUTData", "OW", np.asarray(values).astype("<u2").tobytes())
    item.ModalityLUTType = "US"
    return lambda dataset: setattr(dataset, keyword, Sequence([item]))


def palette(values: Array, bits: int) -> Callable[[Dataset], None]:
    """Adds a grey palette of 256 entries."""

    def add(dataset: Dataset) -> None:
        for colour in ("Red", "Green", "Blue"):
            name = f"{colour}PaletteColorLookupTable"
            dataset.add_new(f"{name}Descriptor", "US", [256, 0, bits])
            dataset.add_new(f"{name}Data", "OW", values.tobytes())

    return add


def colours(pixels: Array, photometric: str, stored: int) -> dict[str, Any]:
    """Elements of a colour picture [rows, columns, 3]."""
    shape = {"Rows": SIDE, "Columns": SIDE, "SamplesPerPixel": 3, "PlanarConfiguration": 0}
    return shape | {"PhotometricInterpretation": photometric, "BitsStored": stored, "HighBit": stored - 1}


def overlaid(bits: int = 0x1000) -> Array:
    """The values with an overlay in a bit above them."""
    words = TWELVE.copy()
    words[5:15, 5:40:2] |= bits
    return words


def padded(values: Array, padding: int) -> Array:
    """The values with eight columns of padding."""
    words = values.copy()
    words[:, :8] = padding
    return words


def without(seen: Array) -> Array:
    """What is seen where eight columns are padding."""
    black = seen.copy()
    black[:, :8] = 0
    return black


ROOT = np.linspace(0, 1, 4096) ** 2
SIGMOID = 1 / (1 + np.exp(-4 * (TWELVE - 2048.0) / 1024))
GREY_CHANNELS = np.stack([EIGHT, np.full_like(EIGHT, 128), np.full_like(EIGHT, 128)], axis=-1)
PALETTE = {"PhotometricInterpretation": "PALETTE COLOR"}
SIGNED = {"BitsStored": 16, "HighBit": 15, "WindowCenter": 0, "WindowWidth": 2001}
SQUARED = (np.floor(SEEN * 4095) / 4095) ** 2
KAGGLE = {"RescaleSlope": 1, "RescaleIntercept": -1024, "WindowCenter": -24, "WindowWidth": 2000}
CASES: dict[str, tuple[Array, dict[str, Any], Any, Array]] = {
    "photometric: MONOCHROME1": (TWELVE, {**WHOLE, "PhotometricInterpretation": "MONOCHROME1"}, None, 1 - SEEN),
    "photometric: lower case": (TWELVE, WHOLE, element(0x00280004, "CS", "monochrome1 "), 1 - SEEN),
    "photometric: shape INVERSE": (TWELVE, {**WHOLE, "PresentationLUTShape": "INVERSE"}, None, 1 - SEEN),
    "photometric: MONOCHROME1 and INVERSE": (
        TWELVE,
        {**WHOLE, "PhotometricInterpretation": "MONOCHROME1", "PresentationLUTShape": "INVERSE"},
        None,
        1 - SEEN,
    ),
    "photometric: RGB": (np.stack([EIGHT] * 3, -1), colours(EIGHT, "RGB", 8), None, EIGHT / 255),
    "photometric: RGB of 16 bits with values of 8": (
        np.stack([EIGHT.astype(np.uint16)] * 3, -1),
        colours(EIGHT, "RGB", 16),
        None,
        EIGHT / 255,
    ),
    "photometric: YBR_FULL": (GREY_CHANNELS, colours(EIGHT, "YBR_FULL", 8), None, EIGHT / 255),
    "photometric: YBR_FULL_422 of whole pixels": (GREY_CHANNELS, colours(EIGHT, "YBR_FULL_422", 8), None, EIGHT / 255),
    "LUT: palette, 8 bits in 16": (EIGHT, PALETTE, palette(np.arange(256, dtype="<u2"), 16), EIGHT / 255),
    "LUT: palette, 16 bits in 8": (EIGHT, PALETTE, palette(np.arange(256, dtype="<u2") * 257, 8), EIGHT / 255),
    "LUT: palette, packed": (EIGHT, PALETTE, palette(np.arange(256, dtype="u1"), 8), EIGHT / 255),
    "LUT: VOI, 10 bits": (TWELVE, {}, table(ROOT * 1023, 0, 10), SQUARED),
    "LUT: VOI, 12 bits in 16": (TWELVE, {}, table(ROOT * 4095, 0, 16), SQUARED),
    "LUT: VOI, 65536 entries": (
        (SEEN * 65535).astype(np.uint16),
        {"BitsStored": 16, "HighBit": 15},
        table(np.linspace(0, 1, 65536) ** 2 * 65535, 0, 16),
        SEEN**2,
    ),
    "LUT: VOI, first value unsigned": (
        TWELVE,
        {"RescaleSlope": 1, "RescaleIntercept": -1024},
        table(ROOT * 65535, 65536 - 1024, 16),
        SQUARED,
    ),
    "LUT: modality, then window": (
        TWELVE,
        WHOLE,
        table(4095 - np.arange(4096), 0, 16, "ModalityLUTSequence"),
        1 - SEEN,
    ),
    "window: lower case": (
        TWELVE,
        {"WindowCenter": 2048, "WindowWidth": 1024},
        element(0x00281056, "CS", "sigmoid "),
        SIGMOID,
    ),
    "window: narrower than 1": (
        TWELVE,
        {"RescaleSlope": "0.0002442", "RescaleIntercept": 0, "WindowCenter": "0.5", "WindowWidth": "0.9"},
        None,
        np.clip((SEEN - 0.5) / 0.9 + 0.5, 0, 1),
    ),
    "window: only the second": (TWELVE, {"WindowCenter": ["", "2048"], "WindowWidth": ["", "4096"]}, None, SEEN),
    "window: none": (TWELVE, {}, None, SEEN),
    "bits: High Bit 15 of 12": (TWELVE << 4, {**WHOLE, "HighBit": 15}, None, SEEN),
    "bits: overlay above": (overlaid(), WHOLE, None, SEEN),
    "bits: signed without sign extension": (
        (TWELVE - 2048) & 0x0FFF,
        {"PixelRepresentation": 1, "WindowCenter": 0, "WindowWidth": 4096},
        None,
        SEEN,
    ),
    "bits: unsigned with negative values": (
        padded((SEEN * 2000).astype(np.uint16), 63536),
        {"BitsStored": 16, "HighBit": 15, **KAGGLE},
        None,
        without(SEEN),
    ),
    "bits: a white mark of 65535 stays white": (
        padded((SEEN * 2000).astype(np.uint16), 65535),
        {"BitsStored": 16, "HighBit": 15, **KAGGLE},
        None,
        1 - without(1 - SEEN),
    ),
    "padding: unsigned in a signed file": (
        padded(HOUNSFIELD, -2000),
        SIGNED | {"PhotometricInterpretation": "MONOCHROME1"},
        element(0x00280120, "US", 63536),
        without(1 - SEEN),
    ),
    "padding: signed in an unsigned file": (
        padded(TWELVE, 63536),
        {**WHOLE, "PhotometricInterpretation": "MONOCHROME1"},
        element(0x00280120, "SS", -2000),
        without(1 - SEEN),
    ),
    "padding: beyond the stored bits": (padded(TWELVE, 65535), WHOLE, element(0x00280120, "US", 65535), without(SEEN)),
    "padding: a range": (
        padded(HOUNSFIELD, -1500),
        SIGNED | {"PhotometricInterpretation": "MONOCHROME1"},
        lambda dataset: [element(0x00280120, "US", 63536)(dataset), element(0x00280121, "US", 64136)(dataset)],
        without(1 - SEEN),
    ),
}


def seen(content: bytes, options: Options = Options()) -> Rendered:  # noqa: B008
    """As the ingestion sees a file."""
    dataset = read_dicom(content, options)
    check_picture(dataset, options)
    return render(dataset, options)


def differs(grey: Array, expected: Array) -> float:
    """The largest difference, in greys of 255."""
    assert grey.shape == expected.shape
    return float(np.abs(grey - 255 * expected).max())


@pytest.mark.filterwarnings("ignore:Invalid value for VR CS")
@pytest.mark.parametrize("name", CASES)
def test_what_equipment_writes_is_what_a_radiologist_sees(make_dicom: Make, encode: Encode, name: str) -> None:
    """Every pixel to two greys of 255: photometric interpretations, tables, windows, bits and padding."""
    pixels, facts, change, expected = CASES[name]
    dataset = make_dicom(pixels, **facts)
    if change:
        change(dataset)
    assert differs(seen(encode(dataset)).grey, expected) <= 2.5


@pytest.mark.parametrize("syntax", [ImplicitVRLittleEndian, ExplicitVRBigEndian, RLELossless, JPEG2000Lossless])
def test_every_syntax_gives_the_same_picture(make_dicom: Make, syntax: str) -> None:
    """Native ones whichever byte comes first, and compressed ones with an overlay above the 12 bits as well."""
    dataset = make_dicom(overlaid(), **WHOLE, BitsStored=16, HighBit=15)
    file = BytesIO()
    if syntax == ImplicitVRLittleEndian:
        dataset.file_meta.TransferSyntaxUID = syntax
    elif syntax == ExplicitVRBigEndian:
        dataset.file_meta.TransferSyntaxUID, dataset.PixelData = syntax, overlaid().astype(">u2").tobytes()
    else:
        dataset.compress(syntax)
    dataset.BitsStored, dataset.HighBit = 12, 11
    dataset.save_as(file, enforce_file_format=True)
    assert differs(seen(file.getvalue()).grey, SEEN) <= 1.5


def bare(dataset: Dataset, implicit: bool) -> bytes:
    """The data set without preamble and file meta information."""
    file = DicomBytesIO()
    file.is_little_endian, file.is_implicit_VR = True, implicit
    del dataset.file_meta
    write_dataset(file, dataset)
    return file.getvalue()


@pytest.mark.parametrize("implicit", [False, True])
def test_a_file_without_meta_information_is_read_by_its_bytes(make_dicom: Make, implicit: bool) -> None:
    """Compressed ones need what the hospital says of them."""
    assert differs(seen(bare(make_dicom(TWELVE, **WHOLE), implicit)).grey, SEEN) <= 1.5
    compressed = make_dicom(TWELVE, **WHOLE)
    compressed.compress(RLELossless)
    content = bare(compressed, False)
    with pytest.raises(Quarantined, match=r"^no_meta$"):
        seen(content)
    assert "--assume meta=" in Reason.NO_META.meaning
    assert differs(seen(content, Options(assume=(f"meta={RLELossless}",))).grey, SEEN) <= 1.5


@pytest.mark.parametrize(
    "facts",
    [{"PixelAspectRatio": ["2", "1"]}, {"PixelSpacing": [0.5, 0.25]}, {"ImagerPixelSpacing": [2, 1]}]
    + [{"NominalScannedPixelSpacing": [2, 1], "PixelAspectRatio": ["1", "1"]}],
)
def test_pixels_become_square(make_dicom: Make, encode: Encode, facts: dict[str, Any]) -> None:
    """Half of the rows, each twice as high: the shape of the body returns, and the shape of the file is kept."""
    smooth = (3 * X + Y) / (4 * (SIDE - 1.0))
    rendered = seen(encode(make_dicom(np.floor(smooth * 4095).astype(np.uint16)[::2], **WHOLE, **facts)))
    assert differs(rendered.grey, smooth) <= 2.5 and rendered.original == (SIDE // 2, SIDE)


def test_an_enhanced_image_has_its_spacing_by_frame(make_dicom: Make, encode: Encode) -> None:
    """In the functional group that all frames share."""
    group, measures = Dataset(), Dataset()
    measures.PixelSpacing = [1, 2]
    group.PixelMeasuresSequence = Sequence([measures])
    shared = {"SharedFunctionalGroupsSequence": Sequence([group])}
    assert seen(encode(make_dicom(TWELVE, **WHOLE, **shared))).grey.shape == (SIDE, 2 * SIDE)


@pytest.mark.filterwarnings("ignore:Invalid value for VR CS")
def test_the_codes_of_a_frame_may_be_in_lower_case(make_dicom: Make, encode: Encode) -> None:
    """As those of the whole file."""
    group, display = Dataset(), Dataset()
    display.WindowCenter, display.WindowWidth = 2048, 1024
    display.add_new("VOILUTFunction", "CS", "sigmoid")
    group.FrameVOILUTSequence = Sequence([display])
    shared = {"SharedFunctionalGroupsSequence": Sequence([group])}
    assert differs(seen(encode(make_dicom(TWELVE, **shared))).grey, SIGMOID) <= 1.5


def with_comma(encode: Encode, dataset: Dataset, number: bytes) -> bytes:
    return encode(dataset).replace(b"2048.125", number, 1)


def test_a_decimal_comma_is_a_point_unless_it_may_mean_thousands(make_dicom: Make, encode: Encode) -> None:
    """The reason names the elements, and the option that gives a window in their place."""
    dataset = make_dicom(TWELVE, WindowCenter="2048.125", WindowWidth=4096)
    assert differs(seen(with_comma(encode, dataset, b"2048,0  ")).grey, SEEN) <= 1.5
    unclear = with_comma(encode, dataset, b"2048,125")
    with pytest.raises(Quarantined, match=r"^not_a_number$"):
        seen(unclear)
    assert "--assume window=" in Reason.NOT_A_NUMBER.meaning
    assert differs(seen(unclear, Options(assume=("window=2048,4096",))).grey, SEEN) <= 1.5


def test_a_window_is_assumed_where_the_header_has_none(make_dicom: Make, encode: Encode) -> None:
    """That of the modality before the general one; the header's own counts first."""
    options = Options(assume=("window.CR=3000,2000", "window=2048,4096"))
    narrow = np.array(apply_windowing(TWELVE, make_dicom(TWELVE, WindowCenter=3000, WindowWidth=2000))) / 4095
    assert differs(seen(encode(make_dicom(TWELVE)), options).grey, narrow) <= 1.5
    assert differs(seen(encode(make_dicom(TWELVE, Modality="DX")), options).grey, SEEN) <= 1.5
    assert differs(seen(encode(make_dicom(TWELVE, **WHOLE)), options).grey, SEEN) <= 1.5


REFUSED: dict[str, tuple[Array, dict[str, Any], str]] = {
    "a window far wider than the values": (TWELVE, {"WindowCenter": 2048, "WindowWidth": 80000}, "few_greys"),
    "a window below most values": (TWELVE, {"WindowCenter": 512, "WindowWidth": 1024}, "saturated"),
    "an unknown function": (TWELVE, {**WHOLE, "VOILUTFunction": "CUBIC"}, "bad_window"),
    "High Bit below Bits Stored": (TWELVE, {**WHOLE, "HighBit": 7}, "bad_bits"),
    "High Bit that the values contradict": (TWELVE, {**WHOLE, "HighBit": 15}, "bad_bits"),
    "pixels twenty times as long as wide": (TWELVE, {**WHOLE, "PixelSpacing": [20, 1]}, "stretched"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nobody_saw_so_is_quarantined_with_what_to_repair(make_dicom: Make, encode: Encode, name: str) -> None:
    """A picture of few greys or of much white is not stored, and no contradiction is guessed away."""
    pixels, facts, reason = REFUSED[name]
    with pytest.raises(Quarantined) as caught:
        seen(encode(make_dicom(pixels, **facts)))
    assert caught.value.reason == reason and "repair" in Reason(reason).meaning


def test_a_film_on_much_black_is_kept(make_dicom: Make, encode: Encode) -> None:
    """Black is what lies around a body: the gate does not count it, nor padding of whatever colour."""
    film = np.where((X > 15) & (X < 30) & (Y > 10), TWELVE, 0).astype(np.uint16)
    assert (seen(encode(make_dicom(film, **WHOLE))).grey == 0).mean() > 0.7


def test_what_the_hospital_says_reaches_the_workers_and_the_manifest(place: Any, make_dicom: Make) -> None:
    """By the option of the command; without it the file waits in quarantine, and is read again with it."""
    place.add("a.dcm", make_dicom(TWELVE, SOPInstanceUID=None))
    place.ask("a.dcm")
    assert place.ingest().counts.quarantined == {"no_uid": 1}
    texts = ["--questions", place.questions, "--out", place.out, "--key", place.key, "--memory", 2048, "--seconds", 60]
    texts += ["--assume", "window.CR=3000,2000", "--assume", "uid=content"]
    result = CliRunner().invoke(app, ["ingest", *map(str, [place.dicom, *texts])])
    assert result.exit_code == 0, result.output
    manifest = read_manifest(place.out)
    assert manifest.counts.stored == 1 and manifest.options.assume == ["uid=content", "window.CR=3000,2000"]
    (path,) = (place.out / "images").glob("*.dcm")
    assert (dcmread(path).pixel_array == 0).mean() > 0.3


@pytest.mark.parametrize(
    "wrong", ["window=40", "window=40,0", "window=40,-1", "uid=1.2", "spacing=1,1", "window.ct=1,2"]
)
def test_an_assumption_that_makes_no_sense_is_refused(wrong: str) -> None:
    """Before a file is read."""
    with pytest.raises(ConfigError, match="--assume must be one of"):
        replace(Options(), assume=(wrong,))
