"""Why an image or a question is set aside: codes and sentences, the only facts about it shown outside of the store."""

from enum import StrEnum


class _WithMeaning(StrEnum):
    """A reason and its meaning. Lists and manifests hold the reason; people read the meaning beside it."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> "_WithMeaning":
        member = str.__new__(cls, value)
        member._value_, member.meaning = value, meaning
        return member


class Reason(_WithMeaning):
    """Why a file is in quarantine."""

    NOT_REGULAR = "not_regular", "a link, a pipe or a device: never opened"
    UNOPENED = "unopened", "the file cannot be opened or changed while it was read"
    NOT_DICOM = "not_dicom", "neither DICOM nor a picture (PNG, JPEG, TIFF)"
    UNREADABLE = "unreadable", "the header is damaged: export the file again"
    TOO_LARGE = "too_large", "more bytes, pixels or inflated bytes than allowed, or more memory than a worker may use"
    TOO_SLOW = "too_slow", "a worker did not finish in time and was ended"
    CRASHED = "crashed", "a worker died of it"
    NO_PIXELS = "no_pixels", "no pixel data, or none that has rows and columns"
    NOT_A_PICTURE = "not_a_picture", "pixels that are not a picture of a patient, such as a dose grid or a segmentation"
    NO_PATIENT = "no_patient", "no patient ID in header or table: there is nobody whose privacy could be accounted for"
    SEVERAL_PATIENTS = "several_patients", "the table names several patients, or another than the header"
    WITHDRAWN = "withdrawn", "the patient was withdrawn"
    NO_UID = "no_uid", "no SOP instance UID: repair (0008,0018), or give --assume uid=content"
    NO_META = (
        "no_meta",
        "compressed without file meta information: export the file again, or give --assume meta=TRANSFER-SYNTAX-UID",
    )
    NOT_A_NUMBER = (
        "not_a_number",
        "a window, spacing, rescale value or number of frames is not a number, or has a comma of two meanings: repair "
        "(0028,1050) to (0028,1053), (0028,0030) or (0028,0008), or give --assume window=CENTRE,WIDTH for a window",
    )
    BAD_WINDOW = "bad_window", "a window of an unknown function: repair (0028,1056)"
    BAD_BITS = "bad_bits", "High Bit contradicts Bits Stored or the pixels: repair (0028,0101) and (0028,0102)"
    STRETCHED = "stretched", "pixels over eight times as long as wide: repair (0028,0030), (0018,1164) or (0028,0034)"
    NO_DECODER = "no_decoder", "a transfer syntax that no installed decoder reads"
    UNDECODABLE = "undecodable", "the pixel data are cut, damaged or contradict the header: export the file again"
    UNKNOWN_COLOURS = (
        "unknown_colours",
        "a photometric interpretation or a depth that is not handled: export it in grey or RGB",
    )
    SEVERAL_PAGES = "several_pages", "a PNG or TIFF of several pages: which one is meant is not said"
    TOO_SMALL = "too_small", "fewer than 16 pixels high or wide"
    BLANK = "blank", "all pixels have the same grey"
    FEW_GREYS = (
        "few_greys",
        "fewer than 16 greys: window, lookup table or bits in the header do not fit the pixels; repair them, or give "
        "--assume window=CENTRE,WIDTH if it has no window",
    )
    SATURATED = (
        "saturated",
        "more than half full white: window, lookup table or bits in the header do not fit the pixels; repair them, or "
        "give --assume window=CENTRE,WIDTH if it has no window",
    )
    SET_ASIDE = "set_aside", "a person who reviewed it set it aside"
    TEXT_NOT_FOUND = "text_not_found", "the header says that text is burned in, and none was found"
    TEXT_REMAINS = "text_remains", "text is still found after seven searches"
    MOSTLY_TEXT = "mostly_text", "text covers more than a quarter of the picture"


class RowReason(_WithMeaning):
    """Why a question is left out of the store."""

    NO_SUCH_IMAGE = "no_such_image", "no file has this name, SOP instance UID or accession number"
    SEVERAL_IMAGES = "several_images", "several images have this name, SOP instance UID or accession number"
    NO_SUCH_FRAME = "no_such_frame", "the image has no frame of this number, or --frames does not keep it"
    IMAGE_QUARANTINED = "image_quarantined", "the image is in quarantine"
    CONTRADICTORY = "contradictory", "the same question about the same image has another answer as well"
    IDENTIFIER_IN_TEXT = (
        "identifier_in_text",
        "question or answer holds an identifier from the headers of the patient, or a date, an address or the like",
    )


PASSING = frozenset({Reason.UNOPENED, Reason.TOO_SLOW, Reason.CRASHED})
"""Reasons that may lie in the machine instead of the file: the next ingestion tries the file again."""


class Quarantined(Exception):
    """A file is set aside. The error carries the reason and nothing of the file."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


EXHAUSTED = "exhausted"
"""The key in a worker's answer that says that its memory did not suffice."""
