"""The answers to a question about a DICOM picture as a Structured Report: preliminary and unverified.

It is a Basic Text SR (DICOM PS3.3 A.35.1) in a new series of the picture's study: the observing device (PS3.16, TID
1001, 1204), then the question, each answer with its probability, the model's accuracy, and the warnings.
It names the patient like the picture does: it is for the site's own archive.
"""

from collections.abc import Sequence
from datetime import datetime
from io import BytesIO

from pydicom import dcmread
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.errors import InvalidDicomError
from pydicom.uid import BasicTextSRStorage, ExplicitVRLittleEndian, generate_uid

from medfedvqa.answering.answerer import UNCALIBRATED, WARNING, tested_sentence
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.accuracy import Proportion
from medfedvqa.version import VERSION

_OF_THE_STUDY = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex"),
    *("StudyDate", "StudyTime", "AccessionNumber", "ReferringPhysicianName", "StudyID"),
)
"""Elements of types 1 and 2 of the patient and the study: empty where the picture has none."""
_REFERENCE = ("StudyInstanceUID", "SeriesInstanceUID", "SOPClassUID", "SOPInstanceUID")
_NAME = "medfedvqa"


def source_of(picture: bytes) -> Dataset:
    """The header of a DICOM file. Raises `ConfigError` if it is none, or if a report could not refer to it."""
    try:
        source = dcmread(BytesIO(picture), stop_before_pixels=True)
    except (InvalidDicomError, ValueError, TypeError, OSError, EOFError):
        raise ConfigError("--structured-report needs a DICOM picture, whose patient and study it names") from None
    if not all(source.get(keyword) for keyword in _REFERENCE):
        raise ConfigError("--structured-report cannot refer to this picture: it lacks study, series or instance")
    return source


def structured_report(
    source: Dataset, question: str, answers: Sequence[tuple[str, float]], tested: Proportion
) -> bytes:
    """The file of a Structured Report about the picture with this header; `answers` with probabilities in 0..1."""
    report, now = Dataset(), datetime.now()
    for keyword in _OF_THE_STUDY:
        value = source.get(keyword)
        setattr(report, keyword, str(value) if value else None)  # a name is decoded, to be written in Unicode
    report.SpecificCharacterSet = "ISO_IR 192"
    report.StudyInstanceUID, report.SeriesInstanceUID = source.StudyInstanceUID, generate_uid(prefix=None)
    report.SOPClassUID, report.SOPInstanceUID = BasicTextSRStorage, generate_uid(prefix=None)
    report.Modality, report.SeriesNumber, report.InstanceNumber = "SR", 1, 1
    report.SeriesDescription = "Answers of a research model, not for care"
    report.ReferencedPerformedProcedureStepSequence = []
    report.Manufacturer, report.ManufacturerModelName, report.SoftwareVersions = _NAME, _NAME, VERSION
    report.ContentDate = report.SeriesDate = report.InstanceCreationDate = now.strftime("%Y%m%d")
    report.ContentTime = report.SeriesTime = report.InstanceCreationTime = now.strftime("%H%M%S")
    report.CompletionFlag, report.PreliminaryFlag, report.VerificationFlag = "PARTIAL", "PRELIMINARY", "UNVERIFIED"
    report.PerformedProcedureCodeSequence = []
    report.CurrentRequestedProcedureEvidenceSequence = [_evidence(source)]
    report.ValueType, report.ContinuityOfContent = "CONTAINER", "SEPARATE"
    report.ConceptNameCodeSequence = [_code("18748-4", "LN", "Diagnostic Imaging Report")]
    report.ContentSequence = [
        _coded(_code("121049", "DCM", "Language of Content Item and Descendants"), _code("en", "RFC5646", "English")),
        _coded(_code("121005", "DCM", "Observer Type"), _code("121007", "DCM", "Device"), "HAS OBS CONTEXT"),
        _observer_uid(),
        _text(_code("121013", "DCM", "Device Observer Name"), _NAME, "HAS OBS CONTEXT"),
        _text(_code("121106", "DCM", "Comment"), WARNING),
        _text(_code("121062", "DCM", "Request"), question),
        *(_text(_code("121071", "DCM", "Finding"), f"{share:.1%}  {answer}") for answer, share in answers),
        _text(_code("121106", "DCM", "Comment"), f"{tested_sentence(tested)} {UNCALIBRATED}"),
        _image(source),
    ]
    return _file(report)


def _file(report: Dataset) -> bytes:
    report.file_meta = FileMetaDataset()
    report.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    buffer = BytesIO()
    report.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def _code(value: str, scheme: str, meaning: str) -> Dataset:
    code = Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = value, scheme, meaning
    return code


def _item(value_type: str, relation: str, name: Dataset | None = None) -> Dataset:
    item = Dataset()
    item.RelationshipType, item.ValueType = relation, value_type
    if name is not None:
        item.ConceptNameCodeSequence = [name]
    return item


def _text(name: Dataset, text: str, relation: str = "CONTAINS") -> Dataset:
    item = _item("TEXT", relation, name)
    item.TextValue = text
    return item


def _coded(name: Dataset, value: Dataset, relation: str = "HAS CONCEPT MOD") -> Dataset:
    item = _item("CODE", relation, name)
    item.ConceptCodeSequence = [value]
    return item


def _observer_uid() -> Dataset:
    """The observer's UID, the same for every answer of one version of this software."""
    item = _item("UIDREF", "HAS OBS CONTEXT", _code("121012", "DCM", "Device Observer UID"))
    item.UID = generate_uid(entropy_srcs=[_NAME, VERSION])
    return item


def _reference(source: Dataset) -> Dataset:
    reference = Dataset()
    reference.ReferencedSOPClassUID = source.SOPClassUID
    reference.ReferencedSOPInstanceUID = source.SOPInstanceUID
    return reference


def _image(source: Dataset) -> Dataset:
    item = _item("IMAGE", "CONTAINS")
    item.ReferencedSOPSequence = [_reference(source)]
    return item


def _evidence(source: Dataset) -> Dataset:
    study, series = Dataset(), Dataset()
    series.SeriesInstanceUID, series.ReferencedSOPSequence = source.SeriesInstanceUID, [_reference(source)]
    study.StudyInstanceUID, study.ReferencedSeriesSequence = source.StudyInstanceUID, [series]
    return study
