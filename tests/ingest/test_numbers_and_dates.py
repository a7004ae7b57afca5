"""National numbers, telephone numbers and dates in questions, and the ordinary numbers beside them."""

from datetime import date

import pytest

from medfedvqa.ingest.identifier_search import identifiers_in, without
from medfedvqa.ingest.written_dates import dates_in

PERSONS = {
    "United States": "536-90-4399", "United Kingdom": "943 476 5870", "Germany": "36 574 261 809",
    "France": "2 95 10 99 126 111 93", "Italy": "RCCMNL83S18D969H", "Spain": "54362315-K",
    "foreigners in Spain": "X-2482300W", "Netherlands": "1112.22.333", "Belgium": "85.07.30-033 28",
    "Switzerland": "756.9217.0769.85", "Austria": "1237 010180",
    "Sweden": "880320-0016", "Norway": "151086 95088", "Denmark": "211062-5629", "Finland": "131052-308T",
    "Poland": "44051401359", "Czechia": "710319/2745", "China": "360426199101010071", "Korea": "971013-9019902",
    "India": "2341 2341 2346", "Brazil": "390.533.447-05", "Turkey": "17291716060", "Romania": "1630615123457",
    "South Africa": "7503305044089", "Ireland": "6433435F", "Mexico": "BOXW310820HNERXN09", "Canada": "123-456-782",
    "Iceland": "450401-3150",
}  # fmt: skip
"""The numbers that python-stdnum's own documentation shows, in the form of each country."""


def found(text: str) -> str:
    """The text as it stays without any header."""
    return without(text, identifiers_in(text, lambda _: False))


@pytest.mark.parametrize("country", PERSONS)
def test_a_national_number_is_found_by_its_check_digits(country: str) -> None:
    """Whatever the header says; and with one digit changed it is no number of a person, unless a word says so."""
    number = PERSONS[country]
    assert found(f"Was {number} scanned?") == "Was [removed] scanned?"


@pytest.mark.parametrize(
    "text",
    [
        "SSN 123-45-6789: is there a bleed?", "NHS number 943 476 5919: is there a bleed?", "BSN 111222333?",
        "Call 079 555 01 23: is there a bleed?", "Tel. 555-0123?", "Phone (212) 555-0187?",
        "Is +41 79 555 01 23 right?",
        "Ring 020 7946 0958?", "0049 30 1234567?", "電話 03-1234-5678?", "тел. 8 495 123-45-67?",
        "Is 030 901820 right?", "患者身份证360426199101010071号？", "患者44051401359号",
    ],
)  # fmt: skip
def test_a_number_that_is_written_or_announced_as_a_persons_is_found(text: str) -> None:
    """Numbers of few or no check digits, and telephone numbers, count by their form or by a word before."""
    assert "[removed]" in found(text)


@pytest.mark.parametrize(
    "text",
    [
        "Is 123456789 the series?", "Series 1234567, image 12 of 120?", "Size 3.5 x 4.2 x 5.1 cm?",
        "Of 512 x 512 x 300?",
        "Window 40 400, level 1500 -600?", "1234567890 voxels?", "L4/5 2.5 3.5 4.5 5.5?",
        "kVp 120 mAs 250 FOV 350 350?", "Dose 100.5 mGy, 1234.56 mGy cm?", "Is 2019 2020 2021 worse?",
        "12345678 images?",
        "Is it 1.2.840.113619.2.55.3?", "TE 90 TR 4000 TI 2500?", "123-45-678 voxels?", "123 456 789?",
        "On T1.2.3 is it dark?", "Is it S1/2/3?", "Ratio 3/4 (75)?", "The 5th of 12?", "In May 2019?", "In 2019?",
    ],
)  # fmt: skip
def test_ordinary_numbers_stay(text: str) -> None:
    """Measures, series, years, levels of the spine and version numbers are nobody's."""
    assert found(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "12/3 (2019)", "the twelfth of March 2019", "March the twelfth, 2019", "March twelfth 2019", "12th March 2019",
        "Mar 19, on the 12th", "12.03.2019", "2019-03-12", "2019年3月12日", "平成31年3月12日", "H31.3.12", "12/03/2562",
        "2019년 3월 12일", "12 มีนาคม 2562", "21/12/1397", "1397/12/21", "12 марта 2019", "12 Μαρτίου 2019",
        "12 de marzo de 2019",
        "12 mars 2019", "5/7/1440", "12 مارس 2019", "२०१९-०३-१२", "21 اسفند 1397",
    ],
)  # fmt: skip
def test_a_date_is_read_in_words_and_in_four_calendars(text: str) -> None:
    """All stand for 12 March 2019, among other readings, and count as a date whatever the header says."""
    assert date(2019, 3, 12) in {day for _, _, day in dates_in(f"Is the bleed of {text} new?")}
    assert "[removed]" in found(f"Is the bleed of {text} new?") and "[removed]" in found(f"生于{text}的患者")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("令和元年5月1日", date(2019, 5, 1)), ("昭和6年5月7日", date(1931, 5, 7)), ("S6.5.7", date(1931, 5, 7)),
        ("the twenty-first of May 1931", date(1931, 5, 21)), ("thirtieth of May 1931", date(1931, 5, 30)),
        ("7 May 1931", date(1931, 5, 7)), ("07-MAY-31", date(1931, 5, 7)), ("1931.05.07", date(1931, 5, 7)),
        ("in May 31, on the 7th", date(1931, 5, 7)),
    ],
)  # fmt: skip
def test_a_date_has_its_day(text: str, expected: date) -> None:
    """Reigns, ordinal numbers and short years are read as the day that they mean."""
    assert expected in {day for _, _, day in dates_in(text)}
