"""Dates in texts, in all readings: Gregorian in digits and words, and by the Buddhist, Japanese, Islamic and Persian
calendars."""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import date

from medfedvqa.ingest.name_forms import folded
from medfedvqa.ingest.word_lists import ERAS, MONTHS, ORDINALS

Day = tuple[int, int, date]
"""Start, end, and the Gregorian date."""

_NTH = "(?:st|nd|rd|th|\\.|º)?"
_YEAR_FIRST = re.compile(r"(?<!\d)(\d{4})\s?([-./ ]?|年)\s?(\d{1,2})\s?(?:\2|月)\s?(\d{1,2})(?!\d)\s?日?")
_SHORT = re.compile(r"(?<!\d)(\d{4})(\d{2})(\d{2})(?!\d)")
_YEAR_LAST = re.compile(r"(?<!\d)(\d{1,2})\s?([-./ ])\s?(\d{1,2})\s?(?:\2\s?(\d{4}|\d{2})(?!\d)|\((\d{4})\))")
_YEAR_AT_END = re.compile(r"(?<!\d)(\d{2})(\d{2})(\d{4})(?!\d)")
_DAY_FIRST = re.compile(
    rf"(?<!\d)(\d{{1,2}}){_NTH}[ -]?(?:of |de )?([^\W\d_]{{3,9}})\.?,?[ -]?(?:de )?(\d{{4}}|\d{{2}})(?!\d)"
)
_MONTH_FIRST = re.compile(rf"([^\W\d_]{{3,9}})\.? (\d{{1,2}}){_NTH},? (\d{{4}})(?!\d)")
_DAY_LAST = re.compile(rf"([^\W\d_]{{3,9}})\.?,? (\d{{4}}|\d{{2}}),? (?:on )?the (\d{{1,2}}){_NTH}(?!\d)")
_WORDS = re.compile(r"\b([a-z]+(?:[- ][a-z]+)?) (?:of )?([a-z]{3,9}),? (\d{4})\b", re.IGNORECASE)
_ERA = re.compile(
    rf"(?<![A-Za-z])({'|'.join(ERAS)})\s?(\d{{1,2}}|元)\s?[年./-]\s?(\d{{1,2}})\s?[月./-]\s?(\d{{1,2}})日?"
)


def dates_in(text: str) -> Iterator[Day]:
    """All readings of all dates in a text. `03/02/70` has four; of `1440-07-05` the year says the calendar."""
    for match in _YEAR_FIRST.finditer(text):
        year, _, month, day = match.groups()
        yield from _dates(match, (year,), ((month, day),))
    for match in _SHORT.finditer(text):
        year, month, day = match.groups()
        yield from _dates(match, (year,), ((month, day),))
    for match in _YEAR_LAST.finditer(text):
        first, _, second, *years = match.groups()
        yield from _dates(match, _years(years[0] or years[1]), ((first, second), (second, first)))
    for match in _YEAR_AT_END.finditer(text):
        first, second, year = match.groups()
        yield from _dates(match, (year,), ((first, second), (second, first)))
    for match in _DAY_FIRST.finditer(text):
        day, month, year = match.groups()
        yield from _dates(match, _years(year), ((_month(month), day),))
    for match in _MONTH_FIRST.finditer(text):
        month, day, year = match.groups()
        yield from _dates(match, (year,), ((_month(month), day),))
    for match in _DAY_LAST.finditer(text):
        month, year, day = match.groups()
        yield from _dates(match, _years(year), ((_month(month), day),))
    for match in _WORDS.finditer(text):
        words, month, year = match.groups()
        nth = ORDINALS.get(words.lower().replace(" ", "-")) or ORDINALS.get(words.lower().split()[-1])
        yield from _dates(match, (year,), ((_month(month), str(nth or 0)),))
    for match in _ERA.finditer(text):
        era, count, month, day = match.groups()
        year = ERAS[era] - 1 + (1 if count == "元" else int(count))
        yield from _dates(match, (str(year),), ((month, day),))


def _dates(match: re.Match[str], years: Iterable[str], days: Iterable[tuple[str, str]]) -> Iterator[Day]:
    for year in years:
        for month, day in days:
            for found in _gregorian(int(year), int(month), int(day)):
                yield (*match.span(), found)


def _gregorian(year: int, month: int, day: int) -> Iterator[date]:
    """The dates that a year, month and day mean. The years of living people overlap in no two calendars but the Islamic
    and the Persian one."""
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return
    readings: list[Callable[[], tuple[int, int, int]]] = []
    if 1900 <= year < 2100:
        readings.append(lambda: (year, month, day))
    elif 2443 <= year < 2643:
        readings.append(lambda: (year - 543, month, day))
    elif 1279 <= year < 1530:
        from convertdate import islamic, persian  # here, since most texts have no such year

        readings += [lambda: islamic.to_gregorian(year, month, day), lambda: persian.to_gregorian(year, month, day)]
    for reading in readings:
        try:
            yield date(*reading())
        except ValueError:
            continue  # 31 April


def _years(year: str) -> tuple[str, ...]:
    return (year,) if len(year) == 4 else (f"19{year}", f"20{year}")


def _month(name: str) -> str:
    return str(MONTHS.get(folded(name)[:3], 0))
