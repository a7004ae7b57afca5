"""Headers: nothing of a patient survives, what was done is written down."""

from collections.abc import Callable
from io import BytesIO

import numpy as np
import pydicom
import pytest
from dicomanonymizer.dicom_anonymization_databases import dicomfields_2026c
from pydicom.datadict import dictionary_VR
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence

from medfedvqa.ingest.deidentify import deidentified
from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.pseudonyms import Pseudonyms, load_pseudonyms
from medfedvqa.ingest.refusal_reasons import Quarantined

Make = Callable[..., Dataset]
GREY = np.arange(30, dtype=np.uint8).reshape(5, 6)
MARK = "SECRET"
VALUES = {
    **dict.fromkeys(("LO", "LT", "PN", "SH", "ST", "UC", "UT"), MARK),
    "AE": MARK, "CS": MARK, "UR": f"http://{MARK}", "AS": "037Y", "DA": "19760616", "TM": "235959",
    "DT": "19760616235959", "UI": "1.2.3.4.5.6.7.8.9", "DS": "987654", "IS": "987654",
    "OB": MARK.encode(), "UN": MARK.encode(),
}  # fmt: skip


def told(dataset: Dataset) -> str:
    """The whole file as text, whatever the encoding of its elements."""
    buffer = BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue().decode("latin-1")


@pytest.fixture
def marked(make_dicom: Make) -> Dataset:
    """A file in which every attribute of the profile's table that can hold a mark holds one."""
    dataset = make_dicom()
    for tag in dicomfields_2026c.ALL_TAGS:
        if len(tag) == 2 and tag[0] not in (0x0002, 0x0028) and (tag not in dataset or tag[0] != 0x0008):
            try:
                vr = dictionary_VR(tag)
            except KeyError:
                continue
            if vr in VALUES and dictionary_VR(tag) != "UI":
                dataset.add_new(tag, vr, VALUES[vr])
    item = Dataset()
    item.PatientName, item.PatientID = f"{MARK}^NESTED", MARK
    deep = Dataset()
    deep.add_new((0x0011, 0x0010), "LO", f"{MARK} CREATOR")
    deep.add_new((0x0011, 0x1001), "LO", MARK)
    item.ReferencedStudySequence = Sequence([deep])
    dataset.RequestAttributesSequence = Sequence([item])
    dataset.AnatomicRegionSequence = Sequence([item])
    dataset.private_block(0x0013, f"{MARK} CREATOR", create=True).add_new(1, "LT", MARK)
    dataset.add_new((0x6000, 0x3000), "OW", MARK.encode())
    dataset.add_new((0x5000, 0x0010), "LO", MARK)
    dataset.ImageComments = MARK
    dataset.BodyPartExamined = MARK
    dataset.PatientID = dataset.AccessionNumber = MARK
    return dataset


@pytest.mark.parametrize("retain", [(), ("characteristics",), ("dates",), ("characteristics", "dates")])
def test_no_mark_survives_wherever_it_was_put(
    marked: Dataset, keys: Pseudonyms, options: Options, retain: tuple[str, ...]
) -> None:
    """Listed attributes, nested ones, private ones, overlays, curves, free text: none is in the file's bytes."""
    assert told(marked).count(MARK) > 200
    result = deidentified(marked, GREY, keys, Options(**{**vars(options), "retain": retain}))
    text = told(result)
    assert MARK not in text and "19760616" not in text and "987654" not in text and "235959" not in text
    assert all(str(marked[name].value) not in text for name in ("SOPInstanceUID", "StudyInstanceUID"))
    assert ("037Y" in text) == ("characteristics" in retain)


@pytest.mark.parametrize(
    ("retain", "codes", "dates"),
    [
        ((), ["113100", "113101"], "REMOVED"),
        (("characteristics", "dates"), ["113100", "113101", "113107", "113108"], "MODIFIED"),
    ],
)
def test_what_was_done_is_written_as_codes(
    make_dicom: Make, keys: Pseudonyms, options: Options, retain: tuple[str, ...], codes: list[str], dates: str
) -> None:
    """(0012,0062), (0012,0063), (0012,0064), (0028,0303) and (0028,0301)."""
    result = deidentified(make_dicom(), GREY, keys, Options(**{**vars(options), "retain": retain}))
    assert result[0x0012, 0x0062].value == "YES" and result[0x0028, 0x0303].value == dates
    assert [item.CodeValue for item in result[0x0012, 0x0064].value] == codes
    assert {item.CodingSchemeDesignator for item in result[0x0012, 0x0064].value} == {"DCM"}
    assert len(result[0x0012, 0x0063].value) == len(codes) + 1 and result[0x0028, 0x0301].value == "NO"


def test_the_result_is_a_sound_dicom_image(make_dicom: Make, keys: Pseudonyms, options: Options) -> None:
    buffer = BytesIO()
    deidentified(make_dicom(), GREY, keys, options).save_as(buffer, enforce_file_format=True)
    again = pydicom.dcmread(BytesIO(buffer.getvalue()))
    assert np.array_equal(again.pixel_array, GREY) and again.BodyPartExamined == "CHEST"
    assert again.PatientID == again.PatientName == keys.patient("SECRET-1")


def test_uids_are_keyed_and_consistent(make_dicom: Make, keys: Pseudonyms, options: Options) -> None:
    """Two images of a study stay together; another key gives other UIDs."""
    one, two = make_dicom(StudyInstanceUID="1.2.3"), make_dicom(StudyInstanceUID="1.2.3")
    first, second = (deidentified(dataset, GREY, keys, options) for dataset in (one, two))
    assert first.StudyInstanceUID == second.StudyInstanceUID == keys.uid("1.2.3")
    assert first.SOPInstanceUID != second.SOPInstanceUID
    assert first.file_meta.MediaStorageSOPInstanceUID == first.SOPInstanceUID
    assert keys.uid("1.2.3").startswith("2.25.") and len(keys.uid("1.2.3")) <= 64
    assert Pseudonyms(bytes(32)).uid("1.2.3") != keys.uid("1.2.3")


def test_pseudonyms_are_stable_under_the_key_and_different_under_another(tmp_path) -> None:
    one, again, other = (load_pseudonyms(tmp_path / name) for name in ("a", "a", "b"))
    assert one.patient("P 1") == again.patient(" p1 ") != other.patient("P 1")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert one.fingerprint() != other.fingerprint()


def test_dates_are_shifted_by_patient_and_keep_their_distances(
    make_dicom: Make, keys: Pseudonyms, options: Options
) -> None:
    dated = make_dicom(StudyDate="20200101", ContentDate="20200131")
    result = deidentified(dated, GREY, keys, Options(**{**vars(options), "retain": ("dates",)}))
    assert int(result.ContentDate) - int(result.StudyDate) != 0 and result.StudyDate < "20200101"
    days = [np.datetime64(f"{d[:4]}-{d[4:6]}-{d[6:]}") for d in (result.StudyDate, result.ContentDate)]
    assert days[1] - days[0] == np.timedelta64(30, "D")
    assert np.datetime64("2020-01-01") - days[0] == np.timedelta64(keys.days("SECRET-1"), "D")


def test_the_oldest_are_told_as_ninety(make_dicom: Make, keys: Pseudonyms, options: Options) -> None:
    kept = Options(**{**vars(options), "retain": ("characteristics",)})
    ages = {age: deidentified(make_dicom(PatientAge=age), GREY, keys, kept).PatientAge for age in ("089Y", "104Y")}
    assert ages == {"089Y": "089Y", "104Y": "090Y"}


@pytest.mark.parametrize("nobody", [None, "", "  "])
def test_an_image_without_patient_is_quarantined(
    make_dicom: Make, keys: Pseudonyms, options: Options, nobody: str | None
) -> None:
    with pytest.raises(Quarantined, match="no_patient"):
        deidentified(make_dicom(PatientID=nobody), GREY, keys, options)


def test_a_study_and_series_without_a_uid_are_told_apart_by_what_there_is(make_dicom: Make) -> None:
    """The same for the same patient, date and number, another for another patient; an invalid UID is as none."""
    keys = Pseudonyms(b"k" * 32)
    facts = {"StudyInstanceUID": None, "SeriesInstanceUID": None, "StudyDate": "20200102"}
    uids = [
        tuple(stored[name].value for name in ("StudyInstanceUID", "SeriesInstanceUID"))
        for more in ({}, {}, {"SeriesNumber": 2}, {"PatientID": "SECRET-2"}, {"StudyDate": "20200103"})
        for stored in [deidentified(make_dicom(**(facts | more)), GREY, keys, Options())]
    ]
    assert uids[0] == uids[1] and len(set(uids)) == 4
    assert uids[0][0] == uids[2][0] and len({study for study, _ in uids}) == 3
    assert all(uid.startswith("2.25.") for pair in uids for uid in pair)


def test_an_instance_without_a_uid_needs_the_assumption(make_dicom: Make) -> None:
    """Two pictures then have two UIDs, which follow from their pixels."""
    keys = Pseudonyms(b"k" * 32)
    pictures = [make_dicom(np.full((32, 32), level, np.uint16), SOPInstanceUID=None) for level in (1, 1, 2)]
    with pytest.raises(Quarantined, match=r"^no_uid$"):
        deidentified(pictures[0], GREY, keys, Options())
    assumed = Options(assume=("uid=content",))
    first, same, other = (deidentified(picture, GREY, keys, assumed).SOPInstanceUID for picture in pictures)
    assert first == same != other
