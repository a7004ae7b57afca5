"""The pages of a privacy-budget report: all of its content, nothing else, and always the same bytes."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader
from pypdf.generic import ArrayObject
from report_trees import EXAMPLE, REPORT

from medfedvqa.figures import encoded, inline_svg
from medfedvqa.report import charts, render, render_joined
from medfedvqa.report.blocks import (
    Drawing,
    DrawingGroup,
    Section,
    at_least,
    at_most,
    links_to,
    moment,
    printable,
    words,
)
from medfedvqa.report.document import compose
from medfedvqa.report.page import page
from medfedvqa.report.pdf import pdf_bytes
from privacy.report import Report, SourceReport, join
from privacy.report.figures import figure_of

HEADINGS = [
    "A · Identity",
    "B · Claim",
    "C · Unit and bounds",
    "D · Mechanism as executed",
    "E · Accounting",
    "F · Outside the theorem",
    "G · Trust and aggregation",
    "H · Egress",
    "I · Data handling",
    "J · Empirical audit and cost",
    "K · Mappings",
    "L · Verdicts and sign-off",
    "M · Never in a report",
]
ASIDE = ("svg", "style")
WORDS = {"shown", "not shown", "broken", "running", "closed", "refused", "in clear", "on shares", "nothing released"}
WORDS |= {"supports", "partly supports", "not provided", "finished", "alone", "received"}
"""Values of closed vocabularies."""


class Parsed(HTMLParser):
    """Text outside of pictures and style, tags and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags, self.values = "", list[tuple[str, dict[str, str | None]]](), set[str]()
        self.aside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.aside |= tag in ASIDE
        self.tags.append((tag, dict(attrs)))
        self.text += "\n" if tag in ("td", "th", "dd", "li", "p", "h1", "h2", "h3") else ""
        self.values |= {value for name, value in attrs if value and name in ("value", "datetime", "title")}

    def handle_endtag(self, tag: str) -> None:
        self.aside &= tag not in ASIDE

    def handle_data(self, data: str) -> None:
        self.text += "" if self.aside else data


@pytest.fixture(scope="module")
def report() -> Report:
    return REPORT


@pytest.fixture(scope="module")
def drawn(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the report's pages."""
    folder = tmp_path_factory.mktemp("drawn")
    render(report, folder)
    return folder


@pytest.fixture(scope="module")
def reader(drawn: Path) -> PdfReader:
    return PdfReader(drawn / "report.pdf")


def told(report: Report) -> Parsed:
    return Parsed(page(compose(report)))


def with_values(report: Report, leaf: Callable[[str, Any], Any]) -> Report:
    """The report with each value replaced; of a list, each item. `leaf` gets the last name of the row as well."""

    def other(row: str, value: Any) -> Any:
        name = row.rpartition(".")[2]
        return tuple(leaf(name, item) for item in value) if isinstance(value, tuple) else leaf(name, value)

    return report.changed({row: other(row, value) for row, value in report.rows.items()})


def unknown(report: Report) -> Report:
    """The report without any of the figures that may be unknown."""
    return report.changed({row: None for row in report.rows if (figure := figure_of(row)) and figure.nullable})


def without_pictures(section: Section) -> Section:
    """Their axes begin at 0."""
    return replace(section, blocks=tuple(block for block in section.blocks if not isinstance(block, DrawingGroup)))


def test_a_page_answers_the_question_first_and_has_all_sections(report: Report) -> None:
    """Answer, open rules with what closes each, what left, what it means for a patient, budget, limits, signatures;
    then A to M in their order. One heading of the first rank, and links that all lead somewhere."""
    found = told(report)
    assert [tag for tag, _ in found.tags].count("h1") == 1
    places = [found.text.index(f"\n{heading}\n") for heading in HEADINGS]
    assert places == sorted(places)
    first = [
        "May what left be used as planned?\n",
        "4 rules are open: agreement",
        "Found at most",
        "Set `require_dp: true`",
    ]
    first += ["32,840 bytes in 7 messages, to the server and the other sites", "at most 15 of 100 who did"]
    first += ["Of epsilon 8 that the site allows", "fit: 6", "The model that the site keeps", "Data protection officer"]
    assert [found.text.index(text) for text in first] == sorted(found.text.index(text) for text in first)
    assert "mu" not in found.text[: places[0]].split()
    names = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    links = [attributes["href"] or "" for tag, attributes in found.tags if tag == "a"]
    assert len(set(names)) == len(names) and {link[1:] for link in links} <= set(names)
    assert {"#entry-2", "#record-4", "#E", "#H"} <= set(links)


def test_every_figure_of_the_sections_is_on_the_page(report: Report) -> None:
    """Each number of the report is made unlike all others: the page holds every one, with all of its digits."""
    numbers, made = count(200_001, 2), list[str]()
    bounded = {"wrongly": 0.323456789, "most_counted": 97}

    def other(name: str, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        new = bounded.get(name, next(numbers) + (0.123456789 if isinstance(value, float) else 0))
        made.append(repr(new))
        return new

    found = told(with_values(report, other))
    shown_ones = found.values | set(re.findall(r"\d+(?:\.\d+)?", found.text))
    assert len(made) > 200 and [number for number in made if number not in shown_ones] == []


def test_every_text_of_the_sections_is_on_the_page_and_none_of_it_is_markup(report: Report) -> None:
    """Names with tags, quotes, template marks and no end are read as they are, on the page and in the PDF."""
    numbers, made = count(), list[str]()

    def hostile(name: str, value: Any) -> Any:
        if not isinstance(value, str) or value in WORDS or name in ("created", "evidence"):
            return value
        made.append(f"<script>alert({next(numbers)})</script>\"'>&amp;{{{{ 7 * 7 }}}}{{% if %}}" + "w" * 50)
        return made[-1]

    tags = {tag for tag, _ in told(report).tags}
    attacked = compose(with_values(report, hostile))
    found = Parsed(page(attacked))
    everything = found.text + "".join(found.values)
    assert len(made) > 300 and [text for text in made if text not in everything] == []
    assert {tag for tag, _ in found.tags} <= tags and "script" not in tags
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    few = replace(attacked, sections=attacked.sections[:3])
    whole = "".join("".join(sheet.extract_text().split()) for sheet in PdfReader(BytesIO(pdf_bytes(few))).pages)
    assert all("".join(text.split()) in whole for text in (attacked.title, attacked.lead.text))


def test_characters_that_hide_or_turn_text_around_are_shown_as_such() -> None:
    """Neither a control character nor one that reverses what follows reaches a page."""
    assert printable("a\u202eb\x00c\u200bd\ne") == "a\\u202eb\\u0000c\\u200bd\\u000ae"


def test_a_page_asks_for_nothing(report: Report) -> None:
    """No script, no picture, no address: a page is one file, and forbids the browser to load anything."""
    text = page(compose(report))
    found = Parsed(text)
    assert {tag for tag, _ in found.tags}.isdisjoint({"script", "img", "link", "iframe", "object", "form", "base"})
    assert {name for _, attributes in found.tags for name in attributes}.isdisjoint({"src", "srcset", "action"})
    assert all((attributes.get("href") or "#").startswith("#") for _, attributes in found.tags)
    assert not re.search(r"url\(|@import|https?://", text)
    assert "default-src 'none'; style-src 'unsafe-inline'" in text


def test_pages_are_the_same_bytes_each_time(drawn: Path, tmp_path: Path) -> None:
    """Another process, time zone, locale and order of hashing draw the very same files."""
    call = "import sys; from pathlib import Path; from privacy.report import read_report; "
    call += "from medfedvqa.report import render; "
    call += "render(read_report(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2]))"
    place = {"TZ": "Asia/Tokyo", "LC_ALL": "", "LANG": "C", "LC_CTYPE": "C.UTF-8"}
    environment = os.environ | {"PYTHONHASHSEED": "7", **place}
    subprocess.run([sys.executable, "-c", call, EXAMPLE, tmp_path], env=environment, check=True)
    for name in ("report.html", "report.pdf"):
        assert (tmp_path / name).read_bytes() == (drawn / name).read_bytes(), name


def test_what_is_not_known_is_never_shown_as_0(report: Report) -> None:
    """Where a figure is missing stands a dash or a sentence; all that is known is made other than 0 first."""
    known = with_values(report, lambda _, value: value or 5 if type(value) in (int, float) else value)
    evidence = report.evidence.model_copy(update={"run": None})
    document = compose(replace(unknown(known), evidence=evidence))
    bare = replace(document, sections=tuple(without_pictures(one) for one in document.sections[: len(HEADINGS)]))
    said = Parsed(page(bare)).text
    assert "—" in said and "no limit is set" in said
    first, *others = PdfReader(BytesIO(pdf_bytes(bare))).pages
    assert "no limit is set" in first.extract_text()
    for text in (said, *(sheet.extract_text() for sheet in others)):
        numbers = text.replace("entries 0–15", "")
        assert re.findall(r"(?<![\w.:-])0(?:\.0+)?(?![\w.:-])", numbers) == []


def marks(drawing: Drawing) -> int:
    """How many accuracies are drawn."""
    return sum(line.get_marker() != "None" for line in drawing.figure.axes[0].lines)


def test_pictures_write_the_figures_that_they_are_described_by(report: Report) -> None:
    """No digit is lost between the description and the picture, and the page's form leaves the PDF's as it was."""
    document = compose(report)
    blocks = [block for section in (*document.front, *document.sections) for block in section.blocks]
    drawings = [drawing for block in blocks if isinstance(block, DrawingGroup) for drawing in block.drawings]
    assert len(drawings) == 6
    for drawing in drawings:
        before = encoded(drawing.figure, "svg")
        written = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", inline_svg(drawing.figure, drawing.title)))
        figures = re.findall(r"\d[\d,.]*", drawing.description)
        assert figures and [figure for figure in figures if figure not in written] == []
        assert encoded(drawing.figure, "svg") == before


def test_the_kept_model_stands_beside_what_epsilon_covers(report: Report) -> None:
    """The released, the finished and the two models trained alone, each with its interval, in table and picture; and
    what epsilon does not cover. Where no model was trained on, there is neither a row, nor a bar, nor a sentence."""
    models = ("The same, finished at the site", "Trained by the site alone", "Trained alone with equal steps")
    text, drawing = told(report).text, charts.accuracy(report.sections.empirical)
    assert (
        all(model in text for model in models)
        and "answers of it that are shown outside the site, are not covered" in text
    )
    for figure in ("68.8 %", "62.1 % to 74.8 %", "60.1 %", "53.2 % to 66.7 %", "65.2 %", "58.3 % to 71.4 %"):
        assert figure in text
    assert drawing and marks(drawing) == 5
    names = ("accuracy_finished", "accuracy_alone", "accuracy_alone_equal", "kept", "kept_said")
    rows = (row for row in report.rows if row.startswith(tuple(f"empirical.{name}" for name in names)))
    without = report.changed(dict.fromkeys(rows))
    text, drawing = told(without).text, charts.accuracy(without.sections.empirical)
    assert not any(model in text for model in models) and text.count("are not covered") == 1
    assert drawing and marks(drawing) == 2


def test_bounds_are_rounded_to_the_safe_side() -> None:
    """An upper bound never looks smaller than it is, nor a lower one larger; digits are not lost."""
    assert [words([at_most(bound)]) for bound in (2.9975098, 3.0, 1e-9, 0.0)] == ["2.998", "3", "0.001", "0"]
    assert [words([at_least(bound)]) for bound in (4.8019, 0.1109, 1e-9)] == ["4.801", "0.11", "0"]
    assert words([at_most(float("inf"))]) == "unbounded" and words([at_most(None)]) == words([at_least(None)]) == "—"


def test_places_in_log_and_ledger_are_ranges() -> None:
    """Neighbours are drawn together, and of many only the first and last are named."""
    assert words(links_to("entry", [7, 3, 4, 5])) == "entries 3–5, 7" and words(links_to("record", [3])) == "record 3"
    assert words(links_to("entry", range(0, 40, 2))) == "entries 0, 2, 4, …, 38" and words(links_to("entry", [])) == "—"


def test_times_are_utc_to_the_second_and_others_stay() -> None:
    assert words([moment("2026-11-22T07:27:43.571291Z")]) == "2026-11-22 07:27:43"
    assert words([moment("2026-11-22T07:27:43+01:00")]) == "2026-11-22T07:27:43+01:00" and words([moment(None)]) == "—"


def test_the_pdf_has_a_title_bookmarks_and_the_claim(report: Report, reader: PdfReader) -> None:
    """Its date is the report's, its sections are bookmarks, its list of sections has their pages."""
    about, created = reader.metadata, datetime.fromisoformat(report.sections.identity.created)
    assert about and about.title == "Job ph at site chest · Privacy-budget report"
    assert about.creation_date == created and reader.trailer["/Root"]["/Lang"] == "en"
    bookmarks = {str(entry["/Title"]): reader.get_destination_page_number(entry) + 1 for entry in _flat(reader.outline)}
    first, contents = (sheet.extract_text() for sheet in reader.pages[:2])
    later = {name: sheet for name, sheet in bookmarks.items() if sheet > 1}
    assert list(later)[:13] == HEADINGS
    assert "May what left be used as planned?" in first and "Date and signature" in first
    assert all(re.search(rf"{re.escape(name)}[\s.]+{sheet}\b", contents) for name, sheet in later.items())
    whole = "\n".join(sheet.extract_text() for sheet in reader.pages)
    assert f"{len(reader.pages)} / {len(reader.pages)}" in whole
    assert report.sections.identity.log_root in whole and "Attacks on synthetic patients" in whole


def test_links_of_the_pdf_lead_to_their_rows(reader: PdfReader) -> None:
    """Every link has a place: a section by its name, a digest's row by its page."""
    links = [annotation.get_object()["/Dest"] for sheet in reader.pages for annotation in sheet.get("/Annots", [])]
    names = {str(link) for link in links if not isinstance(link, ArrayObject)}
    assert names <= set(reader.named_destinations) and "E" in names
    places = [link[0].get_object() for link in links if isinstance(link, ArrayObject)]
    text = {sheet.indirect_reference.idnum: sheet.extract_text() for sheet in reader.pages if sheet.indirect_reference}
    led_to = [text[place.indirect_reference.idnum] for place in places]
    assert led_to and all("As they stand in report.json" in found for found in led_to)


def test_the_pdf_is_tagged_for_screen_readers(reader: PdfReader) -> None:
    """It says that it is PDF/UA-1, every table has a row of heads, every plot a description."""
    root = reader.trailer["/Root"]
    about = root["/Metadata"].get_data().decode()
    assert root["/MarkInfo"]["/Marked"] and "<pdfuaid:part>1</pdfuaid:part>" in about
    elements = list(_elements(root["/StructTreeRoot"]))
    tables = [[str(part["/S"]) for part in _elements(table)] for table in elements if table["/S"] == "/Table"]
    assert len(tables) > 20 and all("/TH" in parts for parts in tables)
    figures = [element for element in elements if element["/S"] == "/Figure"]
    assert len(figures) == 6 and all(len(figure["/Alt"]) > 20 for figure in figures)
    assert {"/H1", "/H2", "/Link", "/L"} <= {str(element["/S"]) for element in elements}


def test_the_pdf_can_be_walked_by_its_headings_tables_and_tabs(reader: PdfReader) -> None:
    """No level of headings is skipped, every head of a column says so, a title shows, tabs follow the order."""
    root = reader.trailer["/Root"]
    elements = list(_elements(root["/StructTreeRoot"]))
    levels = [int(str(element["/S"])[2]) for element in elements if re.fullmatch(r"/H\d", str(element["/S"]))]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    abouts = [element["/A"] for element in elements if element["/S"] == "/TH"]
    heads = [about if isinstance(about, list) else [about] for about in abouts]
    assert len(heads) > 80 and all(any(about.get("/Scope") == "/Column" for about in head) for head in heads)
    assert root["/ViewerPreferences"]["/DisplayDocTitle"]
    assert {sheet["/Tabs"] for sheet in reader.pages if "/Annots" in sheet} == {"/S"}


def test_no_text_of_the_pdf_is_smaller_than_nine_points(reader: PdfReader) -> None:
    """Text inside plots is part of their pictures."""
    sizes = set[float]()
    for sheet in reader.pages:
        sheet.extract_text(visitor_text=lambda text, _, matrix, font, size: sizes.add(round(abs(matrix[3]) * size, 1)))
    assert min(sizes - {0.0}) >= 9


def _elements(parent: Any) -> Iterator[Any]:
    """The structure elements below one."""
    children = parent.get("/K", ())
    for child in children if isinstance(children, list) else [children]:
        element = child.get_object()
        if isinstance(element, dict) and "/S" in element:
            yield element
            yield from _elements(element)


def _flat(outline: Any) -> Iterator[Any]:
    for entry in outline:
        if isinstance(entry, list):
            yield from _flat(entry)
        else:
            yield entry


def test_joined_reports_name_every_site_and_what_is_missing(report: Report, tmp_path: Path) -> None:
    """Claims, agreements and egress of all sites, and in red the sites that gave no report."""
    reports = [report, report.changed({"identity.site": "abdomen"})]
    joined = join(SourceReport(one, "ab" * 32) for one in reports)
    render_joined(joined, tmp_path)
    found = Parsed((tmp_path / "joined.html").read_text(encoding="utf-8"))
    assert joined.sentence in found.text and "Without a report: head." in found.text
    assert all(one.what in found.text and one.said in found.text for one in joined.agreements)
    assert all(said in found.text for said in joined.left_out)
    text = " ".join(PdfReader(tmp_path / "joined.pdf").pages[0].extract_text().split())
    assert joined.sentence in text
