"""Makes the header of a stored picture: PS3.15's basic profile, applied to the few attributes that are listed here."""

import hashlib
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache

import numpy as np
from dicomanonymizer.simpledicomanonymizer import (
    anonymize_dataset,
    delete_or_empty_or_replace_UID,
    initialize_actions,
    replace_UID,
)
from pydicom.datadict import tag_for_keyword
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

from medfedvqa.ingest.dicom_reading import PIXELS
from medfedvqa.ingest.image_options import CLEAN_PIXELS, Cleaning, Code, Options
from medfedvqa.ingest.organs import CODES, PARTS, organ_of
from medfedvqa.ingest.pseudonyms import UID_ROOT, Pseudonyms
from medfedvqa.ingest.refusal_reasons import Quarantined, Reason

TABLE = "dicomfields_2026c"
"""dicom-anonymizer's copy of PS3.15 table E.1-1."""
UIDS = ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "FrameOfReferenceUID")
DATES = ("StudyDate", "SeriesDate", "AcquisitionDate", "ContentDate")
CHARACTERISTICS = {
    "PatientAge": r"\d{3}[DWMY]",
    "PatientSex": r"[MFO]",
    "PatientSize": r"\d(\.\d{1,3})?",
    "PatientWeight": r"\d{1,3}(\.\d{1,3})?",
    "SmokingStatus": r"YES|NO|UNKNOWN",
    "PregnancyStatus": r"[1-4]",
}
STUDY_FACTS = ("PatientID", "StudyInstanceUID", "StudyDate", "StudyTime", "StudyID", "AccessionNumber")
SERIES_FACTS = ("SeriesInstanceUID", "Modality", "SeriesNumber", "SeriesDescription", "SeriesTime")
"""The attributes that distinguish a study or series without a valid UID."""
KEPT = {
    "Modality": r"AR|BI|BMD|CR|CT|DX|EPS|ES|GM|IO|IVUS|MG|MR|NM|OCT|OP|OPT|OT|PT|PX|RF|RG|RTIMAGE|SC|SM|TG|US|XA|XC",
    "Laterality": r"[LR]",
    "ImageLaterality": r"[LRBU]",
    "ViewPosition": r"AP|PA|LL|RL|RLD|LLD|RLO|LLO|CC|MLO|ML|LM|LATERAL|ERECT",
    "SeriesNumber": r"\d{1,6}",
    "InstanceNumber": r"\d{1,6}",
    "LossyImageCompression": r"0[01]",
}
"""Attributes that the stored header keeps beside UIDs, with the pattern of their values. Other values are left out."""
TYPE_2 = (
    "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "AccessionNumber", "ReferringPhysicianName", "StudyID",
    "SeriesNumber", "InstanceNumber", "Modality",
)  # fmt: skip
"""Attributes that a secondary capture image must have, even if they are empty."""
OLDEST = "090Y"
"""Ages above 89 years are stored as 090Y."""
Rules = dict[tuple[int, ...], Callable[..., None]]


def deidentified(
    original: Dataset,
    grey: np.ndarray,
    keys: Pseudonyms,
    options: Options,
    cleaning: Cleaning = Cleaning.MACHINE,
    frame: int | None = None,
) -> Dataset:
    """A new secondary capture image of `grey`, uint8 [rows, columns], with the attributes that may stay.

    `cleaning`: how far its pixels are cleaned. While a mark waits for a person the header does not call them clean.
    `frame`: the number of a frame other than the file's main one; it gets a SOP instance UID of its own. Raises
    `Quarantined` if the original names no patient, or cannot be read.
    """
    try:
        patient = patient_id(original)
        dataset = _listed(original, options)
        anonymize_dataset(dataset, _option_rules(patient, keys, options), True, lambda: _profile(keys))
        if frame is not None:
            dataset.SOPInstanceUID = keys.uid(f"{dataset.SOPInstanceUID} {frame}")
        codes = options.codes(is_clean=cleaning != Cleaning.OPEN)
        _add_codes(dataset, codes, cleaning, "dates" in options.retain)
        _add_picture(dataset, grey, organ(original))
        for keyword in TYPE_2:
            if keyword not in dataset:
                setattr(dataset, keyword, None)
    except Quarantined:
        raise
    except Exception:  # pydicom raises errors of many kinds for elements that it cannot parse
        raise Quarantined(Reason.UNREADABLE) from None
    return dataset


def patient_id(original: Dataset) -> str:
    """The patient's ID as the file has it. Raises `Quarantined` if there is none."""
    value = str(original.get("PatientID") or "").strip("\0 ")
    if not value:
        raise Quarantined(Reason.NO_PATIENT)
    return value


def organ(original: Dataset) -> str:
    """The organ that the body part or the anatomic region belongs to; `others` if the header names neither."""
    named = organ_of(str(original.get("BodyPartExamined") or ""))
    regions = original.get("AnatomicRegionSequence") or ()
    coded = (CODES.get(str(region.get("CodeValue", ""))) for region in regions)
    return named or next(filter(None, coded), "others")


def _listed(original: Dataset, options: Options) -> Dataset:
    """A new data set with the listed attributes alone, each with a value that matches its pattern."""
    patterns = KEPT | (CHARACTERISTICS if "characteristics" in options.retain else {})
    dataset = Dataset()
    dataset.PatientID = dataset.PatientName = "x"
    for keyword in UIDS:
        value = str(original.get(keyword) or "")
        if re.fullmatch(r"[0-9.]{1,64}", value):
            setattr(dataset, keyword, value)
    _make_up_uids(dataset, original, options)
    for keyword, pattern in patterns.items():
        value = str(original.get(keyword) if original.get(keyword) is not None else "").strip()
        if re.fullmatch(pattern, value, re.ASCII):
            setattr(dataset, keyword, int(value) if keyword == "PregnancyStatus" else value)
    for keyword in DATES if "dates" in options.retain else ():
        value = str(original.get(keyword) or "")
        if re.fullmatch(r"\d{8}", value, re.ASCII):
            setattr(dataset, keyword, value)
    if dataset.get("PatientAge", "")[3:] == "Y" and dataset.PatientAge > OLDEST:
        dataset.PatientAge = OLDEST
    return dataset


def _make_up_uids(dataset: Dataset, original: Dataset, options: Options) -> None:
    """Gives a study or series without a valid UID one that is the same for the same patient, date and numbers.

    Raises `Quarantined` for a missing SOP instance UID, unless it is to be made of the pixel data.
    """
    if "SOPInstanceUID" not in dataset:
        if options.assumed.get("uid") != "content":
            raise Quarantined(Reason.NO_UID)
        pixels = next(original[name].value for name in PIXELS if name in original)
        dataset.SOPInstanceUID = _made_uid(hashlib.sha256(pixels).hexdigest())
    for keyword, facts in (("StudyInstanceUID", STUDY_FACTS), ("SeriesInstanceUID", STUDY_FACTS + SERIES_FACTS)):
        if keyword not in dataset:
            setattr(dataset, keyword, _made_uid(*(str(original.get(fact) or "") for fact in (keyword, *facts))))


def _made_uid(*facts: str) -> str:
    return UID_ROOT + str(int.from_bytes(hashlib.sha256("\0".join(facts).encode()).digest()[:16]))


def _profile(keys: Pseudonyms) -> Rules:
    """The basic profile's rules, with keyed UIDs in place of random ones."""

    def keyed(dataset: Dataset, tag: tuple[int, int]) -> None:
        element = dataset.get(tag)
        if element is not None and element.VR == "UI":
            element.value = keys.uid(str(element.value))

    at_random = (replace_UID, delete_or_empty_or_replace_UID)
    return {tag: keyed if action in at_random else action for tag, action in _table().items()}


@lru_cache
def _table() -> Rules:
    rules: Rules = initialize_actions(TABLE)
    return rules


def _option_rules(patient: str, keys: Pseudonyms, options: Options) -> Rules:
    """The rules that replace the profile's, for the options and the pseudonym."""

    def pseudonym(dataset: Dataset, tag: tuple[int, int]) -> None:
        dataset[tag].value = keys.patient(patient)

    def keep(dataset: Dataset, tag: tuple[int, int]) -> None:
        """Leave the element as it is."""

    def shift(dataset: Dataset, tag: tuple[int, int]) -> None:
        if tag in dataset:
            try:
                date = datetime.strptime(str(dataset[tag].value), "%Y%m%d") - timedelta(days=keys.days(patient))
            except (ValueError, OverflowError):
                del dataset[tag]
            else:
                dataset[tag].value = date.strftime("%Y%m%d")

    rules: Rules = {_tag(name): pseudonym for name in ("PatientID", "PatientName")}
    if "characteristics" in options.retain:
        rules |= {_tag(name): keep for name in CHARACTERISTICS}
    if "dates" in options.retain:
        rules |= {_tag(name): shift for name in DATES}
    return rules


def _tag(keyword: str) -> tuple[int, int]:
    tag = tag_for_keyword(keyword)
    if tag is None:
        raise ValueError(f"'{keyword}' is not an attribute of DICOM")
    return tag >> 16, tag & 0xFFFF


def _add_codes(dataset: Dataset, codes: tuple[Code, ...], cleaning: Cleaning, keeps_dates: bool) -> None:
    """Record what was done to the file: (0012,0062), (0012,0063), (0012,0064), (0028,0303), (0028,0301)."""
    dataset.PatientIdentityRemoved = "YES"
    dataset.DeidentificationMethod = [*(meaning[:60] for _, meaning in codes), cleaning.value]
    dataset.DeidentificationMethodCodeSequence = []
    for value, meaning in codes:
        code = Dataset()
        code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = value, "DCM", meaning[:64]
        dataset.DeidentificationMethodCodeSequence.append(code)
    dataset.LongitudinalTemporalInformationModified = "MODIFIED" if keeps_dates else "REMOVED"
    if CLEAN_PIXELS in codes:
        dataset.BurnedInAnnotation = "NO"


def _add_picture(dataset: Dataset, grey: np.ndarray, organ: str) -> None:
    dataset.SOPClassUID = SecondaryCaptureImageStorage
    dataset.ImageType = ["DERIVED", "SECONDARY"]
    dataset.ConversionType = "WSD"
    if organ != "others":
        dataset.BodyPartExamined = PARTS[organ].split()[0]
    dataset.Rows, dataset.Columns = grey.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 8, 8, 7, 0
    content = grey.tobytes()
    dataset.PixelData = content + b"\0" * (len(content) % 2)
    dataset["PixelData"].VR = "OB"
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
