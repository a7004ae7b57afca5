"""Normal forms of what identifies a patient, and of the words of a text: equal forms mean the same identifier.

A header says `MÜLLER^JÜRGEN` and `19310507`; a film or a question says "Mueller's" and "7 May 1931". Both sides become
forms such as `name:muller` and `date:19310507`. Forms are compared as keyed digests, so that a store's journal holds
no identifier. A name of five letters or more also has the forms that lack one letter: two names that differ in one
letter share such a form (the symmetric deletion of Garbe's SymSpell).
"""

import re
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from medfedvqa.ingest.name_forms import (
    FUZZY,
    GENERIC,
    LEAST_NAME,
    RUN,
    WORD,
    folded,
    is_in_cases,
    is_ordinary,
    near_forms,
    person_forms,
    run_forms,
    runs_of_signs,
    sounds,
    spelled,
    without_prefixes,
    word_forms,
    words_joined,
)
from medfedvqa.ingest.written_dates import dates_in

if TYPE_CHECKING:
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
LEAST_PLACE, LEAST_NUMBER = 4, 4
"""The fewest letters of a place's word, and the fewest letters and digits of a number."""
PHONE = 7
"""Phone numbers are compared by their last digits, since the codes of country and town are written in many ways."""
ENCODINGS = (
    "utf-8", "cp1252", "gb18030", "cp932", "euc_jp", "cp949", "big5hkscs", "cp1251", "iso8859_5", "koi8_r", "iso8859_7",
    "iso8859_6", "cp1256", "iso8859_8", "iso8859_9", "iso8859_2", "tis_620", "iso2022_jp_2", "iso2022_kr",
)  # fmt: skip
"""Encodings that headers are written in, whatever they declare. The first two are the usual faults."""
MOST_UNKNOWN = 1024
"""The most bytes of an element of unknown kind that may be a text."""
MOST_READ = 1 << 16
"""The most bytes that are read in more encodings than the usual ones."""
_TEXTS = frozenset({"PN", "LO", "SH", "ST", "LT", "UT", "UC", "UN"})
_NO_PERSON = re.compile("Manufacturer|Software|Code|Protocol|Algorithm|^ImplementationVersion|^PrivateCreator")
"""Keywords of texts that name devices, and words of lists of codes."""
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
    """A span of a text, and the forms under which it is compared."""

    start: int
    end: int
    forms: frozenset[str]
    near: frozenset[str] = frozenset()
    """Forms that count only where the text is doubtful or looks like a name."""


def header_forms(original: "Dataset") -> frozenset[str]:
    """The forms of all names, numbers, dates, phones and places in a header, at any depth.

    A text that is not ASCII has the forms of all its plausible readings, since headers declare none or a wrong one.
    """
    forms = set[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydicom warns of an encoding that is wrong or unknown; all are tried
        for keyword, kinds, texts, readings in _elements(original):
            for kind in kinds:
                for text in texts:
                    forms |= _element_forms(keyword, kind, text)
                for number, text in enumerate(readings):
                    forms |= _element_forms(keyword, kind, text, fuzzy=number < 2)
    return frozenset(forms)


def fact_forms(facts: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """The forms of a table's facts about a patient: texts by the columns `patient`, `name`, `birth_date`, `number`."""
    forms = set[str]()
    for column, texts in facts.items():
        forms |= {form for text in texts for form in _element_forms(*_ELEMENTS[column], text)}
    return frozenset(forms)


def spotted(text: str) -> Iterator[Spotted]:
    """All words, numbers and dates in a text that could identify somebody, with their forms."""
    for match in WORD.finditer(text):
        word = match.group()
        forms = {form for name in _uninflected(word) for form in spelled(name, LEAST_NAME)}
        if is_in_cases(word) and not word.islower():
            forms |= sounds(word)
        if not word[0].islower():
            forms |= {f"short:{folded(name)}" for name in _uninflected(word) if len(folded(name)) == 2}
        if forms:
            yield Spotted(*match.span(), frozenset(forms), frozenset(_doubtful_forms(word, forms)))
    for start, end, forms in words_joined(text):
        yield Spotted(start, end, frozenset(forms))
    for start, end, signs, forms in runs_of_signs(text):
        yield Spotted(start, end, frozenset(forms), frozenset({f"free:{signs}"}))
    for match in _NUMBER.finditer(text):
        yield from _number_spots(match)
    for start, end, day in dates_in(text):
        yield Spotted(start, end, frozenset({f"date:{day:%Y%m%d}"}))


def _element_forms(keyword: str, vr: str, text: str, fuzzy: bool = True) -> set[str]:
    """The forms of an element's text. `vr`: its kind by the file or the standard. `fuzzy`: with a wrong letter, too."""
    if vr == "PN":
        return person_forms(text, fuzzy)
    if "^" in text and not keyword:  # a device's own element, which may say `Head^Routine` as well
        return person_forms(WORD.sub(lambda word: "" if is_ordinary(folded(word[0])) else word[0], text), fuzzy)
    if vr == "DA":
        return {f"date:{day:%Y%m%d}" for _, _, day in dates_in(text)}
    if vr == "DT":
        return {f"date:{day:%Y%m%d}" for _, _, day in dates_in(text[:8])}
    if keyword in PHONES:
        return _phone_forms(text)
    if keyword in NUMBERS:
        words = {form for word in WORD.findall(text) for form in word_forms(word, LEAST_NAME, fuzzy)}
        return _number_forms(text) | words
    if keyword in PLACES:
        named = (word for word in WORD.findall(text) if folded(word) not in GENERIC)
        runs = {form for run in RUN.findall(text) if len(run) >= LEAST_PLACE for form in run_forms(run)}
        return runs | {form for word in named for form in word_forms(word, LEAST_PLACE, fuzzy)}
    if vr in _TEXTS and not _NO_PERSON.search(keyword):
        words = {folded(word) for word in (*WORD.findall(text), *RUN.findall(text))}
        return {f"free:{word}" for word in words if len(word) > 1 and not is_ordinary(word)}
    return set()


def _uninflected(word: str) -> set[str]:
    """The word, and the names whose case it may be: `Meyer's`, `Meyers`, `Hans'`, `Yılmaz'ın`, `לשרון`."""
    name = re.split("['’´`ʼ]", word)[0] if re.search(r"^.{2,}['’´`ʼ]", word) else word
    shorter = (name[:-1],) if name[-1:] in "sS" and len(name) > FUZZY else ()
    return {word, name, *shorter, *(() if word.isascii() else without_prefixes(word))}


def _doubtful_forms(word: str, forms: set[str]) -> Iterator[str]:
    """The forms that count where the word looks like a name: with a wrong letter, an ending of a case (`Kowalskiego`),
    or in a text of the header that names more than persons. Short words in capitals are abbreviations there."""
    yield from near_forms(form for form in forms if form.startswith("name:"))
    for name in _uninflected(word):
        plain = folded(name)
        yield from (f"name:{plain[:-cut]}" for cut in range(1, 5) if len(plain) - cut >= FUZZY)
        if len(plain) >= LEAST_NAME and not (word.isupper() and word.lower() != word.upper() and len(plain) < FUZZY):
            yield f"free:{plain}"


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


def _elements(dataset: "Dataset") -> Iterator[tuple[str, set[str], list[str], list[str]]]:
    """All elements at any depth: keyword, kinds by the file and by the standard, texts, further readings of the bytes.

    Raises what pydicom does for elements that it cannot parse.
    """
    # Here, since every process that trains loads this module, and few need pydicom, which takes a quarter of a second.
    from pydicom.datadict import dictionary_has_tag, dictionary_VR

    for tag in sorted(dataset.keys()):
        stored = dataset.get_item(tag)
        content = stored.value if stored is not None else None  # bytes, as long as nobody has asked for the element
        element = dataset[tag]
        if element.VR == "SQ":
            for item in element.value:
                yield from _elements(item)
            continue
        kinds = {element.VR} | ({dictionary_VR(tag)} if dictionary_has_tag(tag) else set())
        readings = list[str]()
        if isinstance(content, bytes) and kinds & _TEXTS and ("UN" not in kinds or len(content) <= MOST_UNKNOWN):
            readings = _readings(content)
        yield element.keyword, kinds, list(_texts(element.value)), readings


def _readings(content: bytes) -> list[str]:
    """The texts that these bytes may be, by any encoding in use."""
    if content.isascii() and b"\x1b" not in content:
        return [content.decode().strip("\0 ")]
    readings = list[str]()
    for encoding in ENCODINGS if len(content) <= MOST_READ else ENCODINGS[:2]:
        try:
            text = content.decode(encoding).strip("\0 ")
        except UnicodeError:
            continue
        if all(unicodedata.category(letter)[0] in "LMPZ" or letter in "^=0123456789\r\n\t" for letter in text):
            readings.append(text)
    return readings


def _texts(value: object) -> Iterator[str]:
    from pydicom.valuerep import PersonName

    if isinstance(value, (str, PersonName)) or not hasattr(value, "__iter__"):
        yield "" if value is None else str(value).strip("\0 ")
    elif not isinstance(value, bytes):
        yield from (str(part).strip("\0 ") for part in value)
