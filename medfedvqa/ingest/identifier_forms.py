"""Normal forms of what identifies a patient, and of the words of a text: equal forms mean the same identifier.

A header says `MÜLLER^JÜRGEN` and `19310507`; a film or a question says "Mueller's" and "7 May 1931". Both sides become
forms such as `name:muller` and `date:19310507`. Forms are compared as keyed digests, so that a store's journal holds
no identifier.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from medfedvqa.ingest.calendar_dates import dates_in
from medfedvqa.ingest.name_forms import (
    FUZZY,
    LETTERS,
    RUN,
    all_forms,
    east_asian_spots,
    exact_forms,
    folded,
    likely_forms,
    person_forms,
    without_prefixes,
)
from medfedvqa.ingest.word_lists import GENERIC, MEDICAL, NOBODY

if TYPE_CHECKING:
    from pydicom.dataelem import DataElement
    from pydicom.dataset import Dataset

NUMBERS = (
    "PatientID", "OtherPatientIDs", "AccessionNumber", "StudyID", "AdmissionID", "RequestedProcedureID",
    "ScheduledProcedureStepID", "PerformedProcedureStepID", "FillerOrderNumberImagingServiceRequest",
    "PlacerOrderNumberImagingServiceRequest", "DeviceSerialNumber",
)  # fmt: skip
PHONES = ("PatientTelephoneNumbers", "ReferringPhysicianTelephoneNumbers", "PersonTelephoneNumbers")
PLACES = (
    "InstitutionName", "InstitutionAddress", "InstitutionalDepartmentName", "PatientAddress", "StationName",
    "ReferringPhysicianAddress", "CountryOfResidence", "RegionOfResidence", "CurrentPatientLocation",
)  # fmt: skip
FREE = re.compile(r"(?:Description|Comments?|History|Reason\w*|Procedure|Occupation|Alerts|Allergies|Needs|State)$")
"""The ends of the keywords of elements in which people write sentences."""
LEAST_PLACE, LEAST_NUMBER = 4, 4
"""The fewest letters of a place's word, and the fewest letters and digits of a number."""
CODECS = (
    "utf-8", "iso2022_jp_2", "iso2022_kr", "gb18030", "big5", "shift_jis", "euc_jp", "euc_kr", "cp1252", "cp1250",
    "cp1251", "iso8859-5", "koi8-r", "cp1253", "iso8859-7", "cp1254", "cp1255", "cp1256", "iso8859-6", "cp874",
)  # fmt: skip
"""The encodings in which the bytes of a header are read that declares none, or another."""
TEXTS = frozenset({"PN", "LO", "SH", "ST", "LT", "UT", "UC", "CS", "AE"})
MOST_BYTES = 1024
"""How much of a value is read in other encodings than its own."""
PHONE = 7
"""Phone numbers are compared by their last digits, since the codes of country and town are written in many ways."""
_WORD = re.compile(rf"{LETTERS}+(?:['’´`׳]{LETTERS}+)?")
_NUMBER = re.compile(r"\+?[A-Za-z]{0,4}[-_.]?\d[\w]*(?:[ ]?[-_./()][ ]?\w*\d\w*|[ ]\(?\d+\)?)*")

_ELEMENTS = {
    "patient": ("PatientID", "LO"),
    "name": ("PatientName", "PN"),
    "birth_date": ("PatientBirthDate", "DA"),
    "number": ("AccessionNumber", "SH"),
}
"""The elements of a header that the columns of a table stand for."""


@dataclass(frozen=True)
class Spotted:
    """A place in a text, and the forms of what stands there."""

    start: int
    end: int
    forms: frozenset[str]
    near: frozenset[str] = frozenset()
    """Forms by which it is probably a name, if it is written like one."""


def header_forms(original: "Dataset") -> frozenset[str]:
    """The forms of names, numbers, dates, phones and places in a header, at any depth, and of words in sentences."""
    forms: set[str] = set()
    for element, raw in _elements(original):
        for text in _texts(element, raw):
            forms |= _element_forms(element.keyword, _meant_vr(element, text), text)
    return frozenset(forms)


def fact_forms(facts: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """The forms of what a table says of a patient: texts by the columns `patient`, `name`, `birth_date`, `number`."""
    forms = set[str]()
    for column, texts in facts.items():
        forms |= {form for text in texts for form in _element_forms(*_ELEMENTS[column], text)}
    return frozenset(forms)


def spotted(text: str) -> Iterator[Spotted]:
    """All words, numbers and dates in a text that could identify somebody, with their forms."""
    for start, end, form in east_asian_spots(text):
        yield Spotted(start, end, frozenset({form}))
    words = list(_WORD.finditer(RUN.sub(lambda run: " " * len(run.group()), text)))
    for match in words:
        names = [name for word in _without_genitive(match.group()) for name in without_prefixes(word)]
        forms = {form for name in names for form in exact_forms(name)}
        if forms:
            likely = {form for name in names for form in likely_forms(name)}
            yield Spotted(*match.span(), frozenset(forms), frozenset(likely))
        elif len(folded(match.group())) == 2 and match.group()[0].isupper() == match.group()[0].isalpha() > 0:
            yield Spotted(*match.span(), frozenset({f"short:{folded(match.group())}"}))
    yield from _joined_names(text, words)
    for match in _NUMBER.finditer(text):
        yield from _number_spots(match)
    for start, end, day in dates_in(text):
        yield Spotted(start, end, frozenset({f"date:{day:%Y%m%d}"}))


def _meant_vr(element: "DataElement", text: str) -> str:
    """The kind of an element by its keyword, whatever its file says; a private one with carets is a name."""
    from pydicom.datadict import dictionary_has_tag, dictionary_VR

    if dictionary_has_tag(element.tag):
        return dictionary_VR(element.tag)
    return "PN" if element.VR == "PN" or re.search(rf"{LETTERS}\^{LETTERS}", text) else element.VR


def _element_forms(keyword: str, vr: str, text: str) -> set[str]:
    if vr == "PN":
        return person_forms(text)
    if vr == "DA":
        return {f"date:{day:%Y%m%d}" for _, _, day in dates_in(text)}
    if vr == "DT":
        return {f"date:{day:%Y%m%d}" for _, _, day in dates_in(text[:8])}
    if keyword in PHONES:
        return _phone_forms(text)
    if keyword in NUMBERS:
        return _number_forms(text) | {form for word in _WORD.findall(text) for form in all_forms(word)}
    if keyword in PLACES:
        named = (word for word in _WORD.findall(text) if folded(word) not in GENERIC)
        return {form for word in named for form in all_forms(word, LEAST_PLACE)}
    if FREE.search(keyword):
        words = map(folded, re.findall(rf"(?=[^\Wa-z]){LETTERS}{{4,}}", text))
        return {f"free:{word}" for word in words if _is_unusual(word)}
    return set()


def _is_unusual(word: str) -> bool:
    return word not in MEDICAL | GENERIC | NOBODY | _answer_words()


@cache
def _answer_words() -> frozenset[str]:
    from medfedvqa.public_answers import training_answers

    return frozenset(folded(word) for answer in training_answers() for word in answer.split())


def _without_genitive(word: str) -> tuple[str, ...]:
    """The word, and the name whose genitive it may be: `Meyer's`, `Meyers`, `Hans'`."""
    name = re.sub(r"['’´`]s?$", "", word)
    return (word, name, name[:-1]) if name[-1:] in "sS" and len(name) > FUZZY else (word, name)


def _joined_names(text: str, words: Sequence[re.Match[str]]) -> Iterator[Spotted]:
    """Names in two or three words, such as `Mayer-Lee` for `MAYERLEE` and `Xiao Dong` for `XiaoDong`."""
    for count in (2, 3):
        for first, last in zip(words, words[count - 1 :], strict=False):
            between = text[first.start() : last.end()]
            if re.fullmatch(rf"{LETTERS}+(?:[ -]{LETTERS}+)+", between):
                yield Spotted(first.start(), last.end(), frozenset(exact_forms(between, FUZZY)))


def _number_spots(match: re.Match[str]) -> Iterator[Spotted]:
    """A run of digits and its parts, since `MRN 4711 0815, 12` could join too much."""
    yield Spotted(*match.span(), frozenset(_number_forms(match.group()) | _phone_forms(match.group())))
    for part in re.finditer(r"\w+(?:[-_./]\w+)*", match.group()):
        if part.group() != match.group():
            start = match.start() + part.start()
            forms = _number_forms(part.group()) | _phone_forms(part.group())
            yield Spotted(start, start + len(part.group()), frozenset(forms))


def _number_forms(text: str) -> set[str]:
    """Letters and digits without punctuation; and the digits alone, since `MRN4711` may be filed as `4711`."""
    whole, digits = folded(text), re.sub(r"\D", "", text)
    return {f"number:{form}" for form in (whole, digits) if len(form) >= LEAST_NUMBER and any(map(str.isdigit, form))}


def _phone_forms(text: str) -> set[str]:
    digits = re.sub(r"\D", "", text)
    return {f"phone:{digits[-PHONE:]}"} if len(digits) >= PHONE else set()


def _elements(dataset: "Dataset") -> Iterator[tuple["DataElement", bytes]]:
    """All elements but sequences, at any depth, each with its bytes as the file has them; none if it was read before,
    since pydicom then keeps only what it took them for."""
    # Here, since every process that trains loads this module, and few need pydicom, which takes a quarter of a second.
    from pydicom.dataelem import RawDataElement

    for tag in list(dataset.keys()):
        item = dataset.get_item(tag)
        raw = item.value if isinstance(item, RawDataElement) and isinstance(item.value, bytes) else b""
        element = dataset[tag]
        if element.VR != "SQ":
            yield element, raw
        else:
            for part in element.value or ():
                yield from _elements(part)


def _texts(element: "DataElement", raw: bytes) -> Iterator[str]:
    """The value of an element, and every other reading of its bytes if they are not plain ASCII."""
    from pydicom.valuerep import PersonName

    value = element.value
    if isinstance(value, bytes):
        if element.VR == "UN" and len(value) <= MOST_BYTES:
            yield from _readings(value)
        return
    several = hasattr(value, "__iter__") and not isinstance(value, (str, PersonName))
    texts = [str(part).strip("\0 ") for part in (value if several else ("" if value is None else value,))]
    yield from texts
    if not raw.isascii() and element.VR in TEXTS:
        for part in {raw[:MOST_BYTES], *raw[:MOST_BYTES].split(b"\\")}:
            yield from _readings(part)


def _readings(raw: bytes) -> Iterator[str]:
    """All texts that these bytes are in some encoding, without control characters but those at the end."""
    found = set()
    for codec in CODECS:
        try:
            found.add(raw.decode(codec).strip("\0 \r\n"))
        except UnicodeError:
            continue
    yield from (text for text in found if text.isprintable())
