"""Rules for headers in the manner of MIDI-B 2024, over invented patients: what each stored element must have become.

The benchmark scores actions: for each element of each file whether it was removed, changed, shifted, or kept as its
rule says. Its data are not used here: the patients are drawn. A store keeps fewer elements than the benchmark would.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, timedelta

from dicomanonymizer.dicom_anonymization_databases import dicomfields_2026c
from pydicom.datadict import dictionary_VR, keyword_for_tag
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from pydicom.uid import generate_uid

from medfedvqa.ingest.deidentify import DATES, KEPT, UIDS, deidentified
from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.pseudonyms import Pseudonyms

LEAST_SHARE = 0.999
PATIENTS, STUDIES, IMAGES = 12, 2, 2
TEXTS = frozenset({"LO", "LT", "PN", "SH", "ST", "UC", "UT", "AE", "CS", "UR"})
GIVEN = {"Modality": "CR", "ViewPosition": "PA", "ImageLaterality": "L", "SeriesNumber": "7", "InstanceNumber": "1"}
"""What a rule keeps, since it identifies nobody."""
MADE = frozenset({"AccessionNumber", "DeidentificationMethod", "PatientSex", "ReferringPhysicianName", "StudyID"})
"""Elements that a stored header has, empty or with the project's own words."""
Actions = Iterator[tuple[str, bool]]


def planted(original: Dataset, generator: random.Random) -> dict[str, str]:
    """Puts another invented identifier into each text element of the profile's table, and returns them by keyword."""
    texts = {}
    for tag in dicomfields_2026c.ALL_TAGS:
        keyword = keyword_for_tag(tag) if len(tag) == 2 else ""
        if not keyword or keyword in original or tag[0] in (0x0002, 0x0028) or keyword in (*KEPT, *UIDS):
            continue
        vr = dictionary_VR(tag)
        if vr in TEXTS:
            texts[keyword] = "".join(generator.choices("ABCDEFGHKLMNPRSTUVWXYZ", k=14))
            original.add_new(tag, vr, texts[keyword])
    item = Dataset()
    item.PatientName = texts["nested"] = "".join(generator.choices("ABCDEFGHKLMNPRSTUVWXYZ", k=14))
    original.RequestAttributesSequence = Sequence([item])
    block = original.private_block(0x0013, "INVENTED", create=True)
    texts["private"] = "".join(generator.choices("ABCDEFGHKLMNPRSTUVWXYZ", k=14))
    block.add_new(1, "LT", texts["private"])
    return texts


def cohort(make_dicom: Callable[..., Dataset]) -> Iterator[tuple[int, Dataset, dict[str, str]]]:
    """Each image with its patient's number and what was planted in it."""
    generator = random.Random(2024)
    for patient in range(PATIENTS):
        born = date(1930, 1, 1) + timedelta(days=generator.randrange(25_000))
        for study in range(STUDIES):
            day = date(2010, 1, 1) + timedelta(days=generator.randrange(4_000))
            uids = {"StudyInstanceUID": generate_uid(), "SeriesInstanceUID": generate_uid()}
            for _ in range(IMAGES):
                original = make_dicom(
                    PatientID=f"PID-{patient:05d}",
                    PatientName=f"INVENTED^N{patient:05d}",
                    PatientBirthDate=f"{born:%Y%m%d}",
                    FrameOfReferenceUID=generate_uid(),
                    **uids,
                    **{name: f"{day + timedelta(days=study):%Y%m%d}" for name in DATES},
                    **GIVEN,
                )
                yield patient, original, planted(original, generator)


def actions(original: Dataset, stored: Dataset, texts: dict[str, str]) -> Actions:
    """Each action on a single file, by its kind, and whether it was right."""
    content = str(stored)
    yield from (("text removed", text not in content) for text in texts.values())
    texts = {keyword: text for keyword, text in texts.items() if keyword not in ("nested", "private")}
    yield from (("element removed", keyword not in stored) for keyword in texts if keyword not in MADE)
    yield from (("private removed", not element.tag.is_private) for element in stored.iterall())
    yield from (("kept", str(stored.get(name)) == value) for name, value in GIVEN.items())
    for keyword in UIDS:
        yield (
            "UID changed",
            stored[keyword].value != original[keyword].value and str(original[keyword].value) not in content,
        )
    yield "birth date removed", not stored.PatientBirthDate
    yield "patient replaced", original.PatientID not in content and str(original.PatientName) not in content


def over_files(files: list[tuple[int, Dataset, Dataset]]) -> Actions:
    """The actions that join files: one pseudonym for a patient, one UID for a study, one shift of dates."""
    for number, first, mine in files:
        for other, second, theirs in files:
            yield "patient consistent", (mine.PatientID == theirs.PatientID) == (number == other)
            for keyword in UIDS:
                same = first[keyword].value == second[keyword].value
                yield "UID consistent", (mine[keyword].value == theirs[keyword].value) == same
            if number == other:
                for keyword in DATES:
                    yield "date shifted", shift(first, mine, keyword) == shift(second, theirs, "StudyDate") > 0


def shift(original: Dataset, stored: Dataset, keyword: str) -> int:
    """By how many days a date was moved back."""
    before, after = (date.fromisoformat(str(dataset[keyword].value)) for dataset in (original, stored))
    return (before - after).days


def test_at_least_999_of_1000_actions_on_headers_are_right(
    make_dicom: Callable[..., Dataset], make_picture: Callable, keys: Pseudonyms, options: Options
) -> None:
    """All kinds of actions are tried, each many times; a kind with a single wrong one is named."""
    kept = Options(**{**vars(options), "retain": ("dates",)})
    grey = (make_picture(0) // 16).astype("uint8")
    right, wrong, files = Counter[str](), Counter[str](), []
    for patient, original, texts in cohort(make_dicom):
        stored = deidentified(original, grey, keys, kept)
        assert len(texts) > 100
        for kind, is_right in actions(original, stored, texts):
            (right if is_right else wrong)[kind] += 1
        files.append((patient, original, stored))
    for kind, is_right in over_files(files):
        (right if is_right else wrong)[kind] += 1
    total = right.total() + wrong.total()
    assert len(right) == 10 and total > 10_000
    assert right.total() / total >= LEAST_SHARE, wrong
