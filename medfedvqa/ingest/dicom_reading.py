"""Reads a DICOM file's bytes into a data set, within bounds of memory, whatever the bytes are.

Values that localised or old software writes otherwise than the standard are spelled as the standard spells them: codes
in upper case, decimal points in place of commas, and the transfer syntax of a file without file meta information.
"""

import re
import zlib
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import pydicom
from pydicom.datadict import dictionary_has_tag, dictionary_VR
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.errors import InvalidDicomError
from pydicom.filebase import DicomBytesIO
from pydicom.filereader import read_dataset, read_preamble
from pydicom.filewriter import write_file_meta_info
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
)

from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.refusal_reasons import Quarantined, Reason

PREAMBLE = 132
STARTS = (b"\x02\x00", b"\x00\x02", b"\x08\x00", b"\x00\x08")
"""The first bytes of a file without preamble: group 2 or 8, in either byte order."""
PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
NOT_PICTURES = frozenset({"RTDOSE", "SEG", "REG", "RWV", "FID"})
UNDEFINED = 0xFFFFFFFF
"""The length of pixel data that are compressed."""
_COMMA = re.compile(rb" *[+-]?(?:0?,\d+|\d+,(?:\d\d?|\d{4,}))(?:[eE][+-]?\d+)? *")
"""A number with a decimal comma. One with three digits behind a comma may mean thousands, and is not repaired."""


def read_bytes(path: Path, options: Options) -> bytes:
    """The whole file. Raises `Quarantined` if it cannot be opened or is too large."""
    try:
        with path.open("rb") as file:
            content = file.read(options.max_bytes + 1)
    except OSError:
        raise Quarantined(Reason.UNOPENED) from None
    if len(content) > options.max_bytes:
        raise Quarantined(Reason.TOO_LARGE)
    return content


def is_dicom(content: bytes) -> bool:
    """Whether the bytes have the mark of a DICOM file behind its preamble."""
    return content[128:PREAMBLE] == b"DICM"


def read_dicom(content: bytes, options: Options) -> Dataset:
    """The data set in these bytes; its pixels are not decoded yet.

    `options.assume` fills in what the header lacks. Raises `Quarantined` if the bytes are not DICOM, cannot be read,
    still lack something, or inflate to more than is allowed.
    """
    if not is_dicom(content) and content[:2] not in STARTS:
        raise Quarantined(Reason.NOT_DICOM)
    try:
        dataset = pydicom.dcmread(BytesIO(_inflated(content, options.max_bytes)), force=True)
        is_image = "SOPClassUID" in dataset or has_pixels(dataset)
        _respell(dataset)
        _complete(dataset, options)
    except Quarantined:
        raise
    except MemoryError:
        raise Quarantined(Reason.TOO_LARGE) from None
    except Exception:  # pydicom raises errors of many kinds for damaged files
        raise Quarantined(Reason.UNREADABLE) from None
    if not is_image and not is_dicom(content):
        raise Quarantined(Reason.NOT_DICOM)
    if not len(dataset):
        raise Quarantined(Reason.UNREADABLE)
    return dataset


def numbers(dataset: Dataset | None, keyword: str) -> list[float | None]:
    """The numbers of an element, None for each empty one. Raises `Quarantined` for what is not a number."""
    try:
        value = None if dataset is None else dataset.get(keyword)
        values = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
        return [None if number is None or str(number).strip() == "" else float(number) for number in values]
    except (ValueError, TypeError, OverflowError):
        raise Quarantined(Reason.NOT_A_NUMBER) from None


def first_window(dataset: Dataset | None) -> tuple[float, float] | None:
    """Centre and width of the first usable window; None if there is none."""
    pairs = zip(numbers(dataset, "WindowCenter"), numbers(dataset, "WindowWidth"), strict=False)
    return next(((centre, width) for centre, width in pairs if centre is not None and width and width > 0), None)


def has_pixels(dataset: Dataset) -> bool:
    """Whether the data set has pixel data of any kind."""
    return any(name in dataset for name in PIXELS)


def check_picture(dataset: Dataset, options: Options) -> None:
    """Raises `Quarantined` unless the header declares a patient's picture that is small enough to decode."""
    if not has_pixels(dataset):
        raise Quarantined(Reason.NO_PIXELS)
    if str(dataset.get("Modality", "")) in NOT_PICTURES:
        raise Quarantined(Reason.NOT_A_PICTURE)
    rows, columns = dataset.get("Rows"), dataset.get("Columns")
    samples, bits = dataset.get("SamplesPerPixel", 1), dataset.get("BitsAllocated", 8)
    if not all(isinstance(number, int) and number > 0 for number in (rows, columns)):
        raise Quarantined(Reason.NO_PIXELS)
    if samples not in (1, 3) or bits not in (1, 8, 16, 32, 64):
        raise Quarantined(Reason.UNKNOWN_COLOURS)
    check_size(rows, columns, samples * bits / 8, options)


def check_size(rows: int, columns: int, pixel: float, options: Options) -> None:
    """Raises `Quarantined` if a picture of this size is too large to decode. `pixel`: bytes of a pixel."""
    if rows * columns > options.max_pixels or rows * columns * pixel >= options.max_bytes + 1:
        raise Quarantined(Reason.TOO_LARGE)
    if min(rows, columns) < 16:
        raise Quarantined(Reason.TOO_SMALL)


def _respell(dataset: Dataset) -> None:
    """Respells codes in upper case without blanks around them, and decimal commas as points, also in nested items."""
    for tag in list(dataset.keys()):
        element = dataset.get_item(tag)
        vr = element.VR or (dictionary_VR(tag) if dictionary_has_tag(tag) else "UN")
        if vr == "SQ":
            for item in dataset[tag].value or ():
                _respell(item)
        elif isinstance(element, RawDataElement) and isinstance(element.value, bytes):
            value = element.value
            if vr == "CS":
                value = b"\\".join(code.strip(b" \0") for code in value.upper().split(b"\\"))
            elif vr == "DS" and b"," in value:
                parts = value.strip(b"\0").split(b"\\")
                value = b"\\".join(part.replace(b",", b".") if _COMMA.fullmatch(part) else part for part in parts)
            if value != element.value:
                dataset[tag] = element._replace(value=value, length=len(value))


def _complete(dataset: Dataset, options: Options) -> None:
    """Fills in the transfer syntax, which follows from the bytes unless they are compressed, and an assumed window."""
    meta = dataset.file_meta
    if not meta.get("TransferSyntaxUID") and has_pixels(dataset):
        compressed = "PixelData" in dataset and _is_compressed(dataset)
        implicit, little = dataset.original_encoding
        plain = ImplicitVRLittleEndian if implicit else ExplicitVRLittleEndian if little else ExplicitVRBigEndian
        meta.TransferSyntaxUID = UID(options.assumed.get("meta", "")) if compressed else plain
        if not meta.TransferSyntaxUID:
            raise Quarantined(Reason.NO_META)
    window = options.assumed.get(f"window.{dataset.get('Modality')}", options.assumed.get("window"))
    if window is not None and "VOILUTSequence" not in dataset:
        try:
            named = first_window(dataset)
        except Quarantined:
            named = None
        if named is None:
            dataset.WindowCenter, dataset.WindowWidth = window.split(",")


def _is_compressed(dataset: Dataset) -> bool:
    element = dataset.get_item("PixelData")
    return bool(element.length == UNDEFINED if isinstance(element, RawDataElement) else element.is_undefined_length)


def _inflated(content: bytes, max_bytes: int) -> bytes:
    """The file in a transfer syntax that is not deflated, since pydicom (3) inflates without a bound."""
    file = BytesIO(content)
    meta = _file_meta(file)
    if meta is None or meta.get("TransferSyntaxUID") != DeflatedExplicitVRLittleEndian:
        return content
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    data = stream.decompress(file.read(), max_bytes)
    if stream.unconsumed_tail:
        raise Quarantined(Reason.TOO_LARGE)
    if not stream.eof:
        raise Quarantined(Reason.UNREADABLE)
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    plain = DicomBytesIO()
    plain.write(bytes(128) + b"DICM")
    write_file_meta_info(plain, meta, enforce_standard=False)
    return plain.getvalue() + data


def _file_meta(file: BinaryIO) -> FileMetaDataset | None:
    """The group 2 elements, after which the file's position is; None if there are none."""
    try:
        read_preamble(file, force=True)
        elements = read_dataset(file, False, True, stop_when=lambda tag, vr, length: tag >> 16 != 2)
        return FileMetaDataset(elements) if len(elements) else None
    except (InvalidDicomError, ValueError, EOFError):
        return None
