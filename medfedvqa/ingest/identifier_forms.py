"""Normal forms of what identifies a patient, and of the words of a text: equal forms mean the same identifier.

A header says `MÜLLER^JÜRGEN` and `19310507`; a film or a question says "Mueller's" and "7 May 1931". Both sides become
forms such as `name:muller` and `date:19310507`. Forms are compared as keyed digests, so that a store's journal holds
no identifier. A name of five letters or more also has the forms that lack one letter: two names that differ in one
letter share such a form (the symmetric deletion of Garbe's SymSpell).
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from medfedvqa.ingest.word_lists import GENERIC, MONTHS, NOBODY

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
LEAST_NAME, LEAST_PLACE, LEAST_NUMBER = 3, 4, 4
"""The fewest letters of a name and of a place's word, and the fewest letters and digits of a number."""
FUZZY = 5
"""The fewest letters of a name that is also recognised with one letter wrong."""
PHONE = 7
"""Phone numbers are compared by their last digits, since the codes of country and town are written in many ways."""
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "ø": "oe", "å": "aa", "æ": "ae", "œ": "oe"})
_PLAIN = str.maketrans({"ß": "ss", "ø": "o", "æ": "ae", "œ": "oe", "ł": "l", "đ": "d", "ı": "i"})
_WORD = re.compile(r"[^\W\d_]+(?:['’´`][^\W\d_]+)?")
_NUMBER = re.compile(r"\+?[A-Za-z]{0,4}[-_.]?\d[\w]*(?:[ ]?[-_./()][ ]?\w*\d\w*|[ ]\(?\d+\)?)*")
_YEAR_FIRST = re.compile(r"(?<!\d)(\d{4})([-./ ]?)(\d{2})\2(\d{2})(?!\d)")
_YEAR_LAST = re.compile(r"(?<!\d)(\d{1,2})\s?([-./ ])\s?(\d{1,2})\s?\2\s?(\d{4}|\d{2})(?!\d)")
_YEAR_AT_END = re.compile(r"(?<!\d)(\d{2})(\d{2})(\d{4})(?!\d)")
_DAY_FIRST = re.compile(r"(?<!\d)(\d{1,2})(?:st|nd|rd|th|\.)?[ -]?(?:of )?([^\W\d_]{3,9})\.?,?[ -]?(\d{4}|\d{2})(?!\d)")
_MONTH_FIRST = re.compile(r"([^\W\d_]{3,9})\.? (\d{1,2})(?:st|nd|rd|th)?,? (\d{4})(?!\d)")


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
    """Forms that a name shares with names that differ in one letter."""


def header_forms(original: "Dataset") -> frozenset[str]:
    """The forms of all names, numbers, dates, phones and places in a header, at any depth."""
    forms: set[str] = set()
    for element in original.iterall():
        texts = _texts(element.value) if element.VR != "SQ" else ()
        for text in texts:
            forms |= _element_forms(element.keyword, element.VR, text)
    return frozenset(forms)


def fact_forms(facts: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """The forms of what a table says of a patient: texts by the columns `patient`, `name`, `birth_date`, `number`."""
    forms = set[str]()
    for column, texts in facts.items():
        forms |= {form for text in texts for form in _element_forms(*_ELEMENTS[column], text)}
    return frozenset(forms)


def spotted(text: str) -> Iterator[Spotted]:
    """All words, numbers and dates in a text that could identify somebody, with their forms."""
    for match in _WORD.finditer(text):
        word = match.group()
        forms = {form for name in _without_genitive(word) for form in _name_forms(name, LEAST_NAME)}
        if forms:
            yield Spotted(*match.span(), frozenset(forms), frozenset(_near_forms(forms)))
    yield from _joined_names(text)
    for match in _NUMBER.finditer(text):
        yield from _number_spots(match)
    for start, end, day in dates_in(text):
        yield Spotted(start, end, frozenset({f"date:{day:%Y%m%d}"}))


def dates_in(text: str) -> Iterator[tuple[int, int, date]]:
    """All readings of all dates in a text: start, end, date. `03/02/70` has four."""
    for match in _YEAR_FIRST.finditer(text):
        year, _, month, day = match.groups()
        yield from _dates(match, (year,), ((month, day),))
    for match in _YEAR_LAST.finditer(text):
        first, _, second, year = match.groups()
        yield from _dates(match, _years(year), ((first, second), (second, first)))
    for match in _YEAR_AT_END.finditer(text):
        first, second, year = match.groups()
        yield from _dates(match, (year,), ((first, second), (second, first)))
    for match in _DAY_FIRST.finditer(text):
        day, month, year = match.groups()
        yield from _dates(match, _years(year), ((_month(month), day),))
    for match in _MONTH_FIRST.finditer(text):
        month, day, year = match.groups()
        yield from _dates(match, (year,), ((_month(month), day),))


def folded(word: str) -> str:
    """A word in lower case, without accents, punctuation and white space."""
    plain = unicodedata.normalize("NFKD", word.casefold().translate(_PLAIN))
    return "".join(letter for letter in plain if letter.isalnum())


def _element_forms(keyword: str, vr: str, text: str) -> set[str]:
    if vr == "PN":
        parts = re.split(r"[\^=\s,.\-]+", text)
        return {form for word in (*parts, text.replace("-", "")) for form in _all_name_forms(word, LEAST_NAME)}
    if vr == "DA":
        return {f"date:{day:%Y%m%d}" for _, _, day in dates_in(text)}
    if vr == "DT":
        return {f"date:{day:%Y%m%d}" for _, _, day in dates_in(text[:8])}
    if keyword in PHONES:
        return _phone_forms(text)
    if keyword in NUMBERS:
        words = {form for word in _WORD.findall(text) for form in _all_name_forms(word, LEAST_NAME)}
        return _number_forms(text) | words
    if keyword in PLACES:
        named = (word for word in _WORD.findall(text) if folded(word) not in GENERIC)
        words = {form for word in named for form in _all_name_forms(word, LEAST_PLACE)}
        return words
    return set()


def _all_name_forms(word: str, least: int) -> set[str]:
    forms = _name_forms(word, least) - {f"name:{nobody}" for nobody in NOBODY}
    return forms | set(_near_forms(forms))


def _name_forms(word: str, least: int) -> set[str]:
    """With accents dropped, and with umlauts in two letters."""
    letters = word.casefold()
    spellings = {folded(letters), folded(letters.translate(_UMLAUTS))}
    return {f"name:{spelling}" for spelling in spellings if len(spelling) >= least and not spelling.isdigit()}


def _near_forms(forms: Iterable[str]) -> Iterator[str]:
    """The forms that lack at most one letter of a name."""
    for form in forms:
        name = form.removeprefix("name:")
        if len(name) >= FUZZY:
            yield f"near:{name}"
            yield from (f"near:{name[:place]}{name[place + 1 :]}" for place in range(len(name)))


def _without_genitive(word: str) -> tuple[str, ...]:
    """The word, and the name whose genitive it may be: `Meyer's`, `Meyers`, `Hans'`."""
    name = re.sub(r"['’´`]s?$", "", word)
    return (word, name, name[:-1]) if name[-1:] in "sS" and len(name) > FUZZY else (word, name)


def _joined_names(text: str) -> Iterator[Spotted]:
    """Names in two words, such as `Mayer-Lee` for `MAYERLEE`."""
    for match in re.finditer(r"(?=\b([^\W\d_]{2,}-[^\W\d_]{2,}))", text):
        yield Spotted(match.start(1), match.end(1), frozenset(_name_forms(match.group(1), LEAST_NAME)))


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


def _dates(
    match: re.Match[str], years: tuple[str, ...], days: tuple[tuple[str, str], ...]
) -> Iterator[tuple[int, int, date]]:
    for year in years:
        for month, day in days:
            if 1900 <= int(year) < 2100 and 1 <= int(month) <= 12:
                try:
                    yield (*match.span(), date(int(year), int(month), int(day)))
                except ValueError:
                    continue  # 31 April


def _years(year: str) -> tuple[str, ...]:
    return (year,) if len(year) == 4 else (f"19{year}", f"20{year}")


def _month(name: str) -> str:
    return str(MONTHS.get(folded(name)[:3], 0))


def _texts(value: object) -> Iterator[str]:
    # Here, since every process that trains loads this module, and few need pydicom, which takes a quarter of a second.
    from pydicom.valuerep import PersonName

    if isinstance(value, (str, PersonName)) or not hasattr(value, "__iter__"):
        yield "" if value is None else str(value).strip("\0 ")
    elif not isinstance(value, bytes):
        yield from (str(part).strip("\0 ") for part in value)
