"""Why an image or a question was set aside: the only words about it that appear outside of the store."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a file is in quarantine. The value is written into lists and manifests."""

    NOT_REGULAR = "not_regular"
    UNOPENED = "unopened"
    NOT_DICOM = "not_dicom"
    UNREADABLE = "unreadable"
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"
    CRASHED = "crashed"
    NO_PIXELS = "no_pixels"
    NOT_A_PICTURE = "not_a_picture"
    NO_PATIENT = "no_patient"
    NO_DECODER = "no_decoder"
    UNDECODABLE = "undecodable"
    UNKNOWN_COLOURS = "unknown_colours"
    TOO_SMALL = "too_small"
    BLANK = "blank"
    TEXT_NOT_FOUND = "text_not_found"
    TEXT_REMAINS = "text_remains"
    MOSTLY_TEXT = "mostly_text"


class RowReason(StrEnum):
    """Why a question is left out of the store."""

    NO_SUCH_IMAGE = "no_such_image"
    SEVERAL_IMAGES = "several_images"
    IMAGE_QUARANTINED = "image_quarantined"
    IDENTIFIER_IN_TEXT = "identifier_in_text"


MEANINGS: dict[Reason | RowReason, str] = {
    Reason.NOT_REGULAR: "a link, a pipe or a device: never opened",
    Reason.UNOPENED: "the file cannot be opened or changed while it was read",
    Reason.NOT_DICOM: "no DICOM file",
    Reason.UNREADABLE: "the header is damaged",
    Reason.TOO_LARGE: "more bytes, pixels or inflated bytes than allowed, or more memory than a worker may use",
    Reason.TOO_SLOW: "a worker did not finish in time and was ended",
    Reason.CRASHED: "a worker died of it",
    Reason.NO_PIXELS: "no pixel data, or none that has rows and columns",
    Reason.NOT_A_PICTURE: "pixels that are no picture of a patient, such as a dose grid or a segmentation",
    Reason.NO_PATIENT: "no patient ID: there is nobody whose privacy could be accounted for",
    Reason.NO_DECODER: "a transfer syntax that no installed decoder reads",
    Reason.UNDECODABLE: "the pixel data are cut, damaged or contradict the header",
    Reason.UNKNOWN_COLOURS: "a photometric interpretation that is not handled",
    Reason.TOO_SMALL: "fewer than 16 pixels high or wide",
    Reason.BLANK: "all pixels have the same grey",
    Reason.TEXT_NOT_FOUND: "the header says that text is burned in, and none was found",
    Reason.TEXT_REMAINS: "text is still found after three times of blanking",
    Reason.MOSTLY_TEXT: "text covers more than a quarter of the picture",
    RowReason.NO_SUCH_IMAGE: "no file has this name, SOP instance UID or accession number",
    RowReason.SEVERAL_IMAGES: "several images have this name, SOP instance UID or accession number",
    RowReason.IMAGE_QUARANTINED: "the image is in quarantine",
    RowReason.IDENTIFIER_IN_TEXT: "question or answer holds the patient's name, ID, birth date or accession number",
}

PASSING = frozenset({Reason.UNOPENED, Reason.TOO_SLOW, Reason.CRASHED})
"""Reasons that may be the machine's and not the file's: tried again by the next ingestion."""


class Quarantined(Exception):
    """A file is set aside; carries the reason and nothing of the file."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason
