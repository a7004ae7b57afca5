"""Reads dates as people write them: in figures or words, of the Gregorian calendar or another that hospitals use.

Years tell calendars apart: 2562 is Thailand's, 1397 Iran's, 1440 Islamic or Iran's, and 平成31年 or H31 names a reign.
"""

import re
from collections.abc import Iterator
from datetime import date

from medfedvqa.ingest.name_forms import ERAS, MONTHS, ORDINALS, folded

_DAY = rf"(\d{{1,2}}|(?:(?:twenty|thirty)[- ])?(?:{'|'.join(ORDINALS)})|(?:twen|thir)tieth)(?:st|nd|rd|th|er|\.)?"
_MONTH = r"([^\s\d.,/()\u3040-\ud7af]{2,12})"
_YEAR_FIRST = re.compile(r"(?<!\d)(\d{4})([-./ ]?)(\d{1,2})\2(\d{1,2})(?!\d)")
_YEAR_LAST = re.compile(r"(?<!\d)(\d{1,2})\s?([-./ ])\s?(\d{1,2})\s?\2\s?(\d{4}|\d{2})(?!\d)")
_YEAR_APART = re.compile(r"(?<![A-Za-z\d.])(\d{1,2})[./-](\d{1,2})\.?[ ,]{0,2}(?:\((\d{4})\)|of (\d{4}))(?!\d)")
_YEAR_AT_END = re.compile(r"(?<!\d)(\d{2})(\d{2})(\d{4})(?!\d)")
_BY_SIGNS = re.compile(r"(?<!\d)(\d{4})\s?[年년]\s?(\d{1,2})\s?[月월]\s?(\d{1,2})(?!\d)")
_OF_AN_ERA = re.compile(
    rf"(?<![A-Za-z\d])({'|'.join(ERAS)})\s?(元|\d{{1,2}}(?=[\s年.])|\d\d(?=/))\s?[年./]\s?(\d{{1,2}})\s?[月./]\s?(\d{{1,2}})(?!\d)"
)
_DAY_FIRST = re.compile(
    rf"(?<!\d){_DAY}[ -]?(?:of |del? |di |d['’])?{_MONTH}\.?,?[ -]?(?:del? )?(\d{{4}}|\d{{2}})(?!\d)", re.I
)
_MONTH_FIRST = re.compile(rf"{_MONTH}\.? (?:the )?{_DAY},? (\d{{4}})(?!\d)", re.I)
_DAY_LAST = re.compile(rf"{_MONTH}\.? ['’]?(\d{{4}}|\d{{2}}),? (?:on )?the {_DAY}(?![A-Za-z\d])", re.I)
_TENS = {"": 0, "twenty": 20, "twentieth": 20, "thirty": 30, "thirtieth": 30}
_BUDDHIST = 543
"""Years by which Thailand's calendar is ahead."""
Reading = tuple[int, int, date]


def dates_in(text: str) -> Iterator[Reading]:
    """All readings of all dates in a text: start, end, date. `03/02/70` has four."""
    for match in _YEAR_FIRST.finditer(text):
        year, separator, month, day = match.groups()
        if separator not in ("", " ") or len(month) == len(day) == 2:
            yield from _dates(match, (year,), ((month, day),), separator not in ("", " "))
    for match in _YEAR_LAST.finditer(text):
        first, separator, second, year = match.groups()
        yield from _dates(match, _years(year), ((first, second), (second, first)), separator != " ")
    for match in _YEAR_APART.finditer(text):
        first, second, *years = match.groups()
        yield from _dates(match, tuple(filter(None, years)), ((first, second), (second, first)))
    for match in _YEAR_AT_END.finditer(text):
        first, second, year = match.groups()
        yield from _dates(match, (year,), ((first, second), (second, first)), False)
    for match in _BY_SIGNS.finditer(text):
        year, month, day = match.groups()
        yield from _dates(match, (year,), ((month, day),))
    for match in _OF_AN_ERA.finditer(text):
        era, year, month, day = match.groups()
        counted = ERAS[era] + (1 if year == "元" else int(year))
        yield from _dates(match, (str(counted),), ((month, day),))
    yield from _with_words(text)


def _with_words(text: str) -> Iterator[Reading]:
    for match in _DAY_FIRST.finditer(text):
        day, month, year = match.groups()
        yield from _dates(match, _years(year), ((_month(month), _day(day)),))
    for match in _MONTH_FIRST.finditer(text):
        month, day, year = match.groups()
        yield from _dates(match, (year,), ((_month(month), _day(day)),))
    for match in _DAY_LAST.finditer(text):
        month, year, day = match.groups()
        yield from _dates(match, _years(year), ((_month(month), _day(day)),))


def _dates(
    match: re.Match[str], years: tuple[str, ...], days: tuple[tuple[str, str], ...], foreign: bool = True
) -> Iterator[Reading]:
    """The readings of a match. `foreign`: whether a year from 1279 to 1499 counts, as Islamic or Iran's."""
    for year in map(int, years):
        for month, day in days:
            yield from ((*match.span(), read) for read in _read(year, int(month), int(day), foreign))


def _read(year: int, month: int, day: int, foreign: bool) -> Iterator[date]:
    """The Gregorian dates that a year, month and day may mean."""
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        return
    try:
        if 1900 <= year < 2100:
            yield date(year, month, day)
        elif 1900 + _BUDDHIST <= year < 2100 + _BUDDHIST:
            yield date(year - _BUDDHIST, month, day)
        elif foreign and 1279 <= year < 1500:
            # Here, since few texts need it and every process that trains loads this module.
            from convertdate import islamic, persian

            for calendar in (islamic, persian):
                read = date(*calendar.to_gregorian(year, month, day))
                if 1900 <= read.year < 2100:
                    yield read
    except ValueError:
        return  # 31 April


def _years(year: str) -> tuple[str, ...]:
    return (year,) if len(year) == 4 else (f"19{year}", f"20{year}")


def _month(name: str) -> str:
    word = folded(name)
    return str(MONTHS.get(word[:4]) or MONTHS.get(word[:3], 0))


def _day(text: str) -> str:
    """A day in figures: `12`, `twelfth`, `twenty-first`."""
    tens, _, last = text.casefold().replace(" ", "-").rpartition("-")
    if last.isdigit():
        return last
    if last in _TENS:
        return str(_TENS[last])
    return str(_TENS[tens] + ORDINALS[last])
