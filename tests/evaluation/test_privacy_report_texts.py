"""Texts of others in the pages of a report: shown by their numbers where they hide, and never slow to set."""

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pypdf import PdfReader
from report_trees import REPORT, changed
from tiers import examples

from audits.escaping import NAME, bounded
from medfedvqa.report.blocks import MAX_CHARACTERS, Document, Section, Table, row
from medfedvqa.report.document import compose
from medfedvqa.report.page import page
from medfedvqa.report.pdf import _Setting, pdf_bytes

COMPOSED = compose(REPORT)
PLAIN = st.characters(min_codepoint=0x21, max_codepoint=0x7E)
HIDDEN = st.sampled_from("\x00\x07\t\n\r\x1b\x7f\x9b\u061c\u200b\u200e\u2028\u202e\u2066\ufeff\ue000\U000e0001")
LACKED = st.sampled_from("漢字かな한")
"""Letters that the PDF's fonts do not have."""


def bare(*texts: str) -> Document:
    """A report whose only section has a table of these texts."""
    table = Table("Texts", ("Text",), tuple(row(text) for text in texts), "none")
    return replace(COMPOSED, sections=(Section("texts", "Texts", (table,)),), front=(), cards=())


def numbered(text: str) -> str:
    """The text as the PDF has it: letters that its fonts lack by their numbers, too."""
    return "".join(f"\\u{ord(one):04x}" if one in "漢字かな한" else one for one in bounded(text, MAX_CHARACTERS))


def extracted(document: Document) -> str:
    """All text of the PDF without white space: lines are broken wherever they have to be."""
    sheets = PdfReader(BytesIO(pdf_bytes(document))).pages
    return "".join("".join(sheet.extract_text().split()) for sheet in sheets)


class Cells(HTMLParser):
    """The text of each cell, and the names of all elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells, self.tags = list[str](), Counter[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if attrs and ("scope", "row") in attrs:
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


@settings(max_examples=examples(25))
@given(st.text(PLAIN | HIDDEN | LACKED, min_size=1, max_size=60))
@example("{nb}\x1b[2J\u202egnitset")
def test_the_pdf_shows_what_hides_by_its_number(text: str) -> None:
    """Extracted again, the escaped form is there; `{nb}` is no mark of the program that sets the page."""
    found = extracted(bare(text))
    assert "".join(numbered(text).split()) in found and found.endswith("1/1")
    assert not any(one in found for one in text if not one.isprintable())


@given(st.text(st.characters(exclude_categories=())))
@example("</th><script>alert(1)</script>{{ 7 * 7 }}")
def test_the_page_has_one_text_node_for_a_text(text: str) -> None:
    """No element, and no character that hides, comes from it."""
    source = page(bare(text))
    found = Cells(source)
    assert found.tags == Cells(page(bare("name"))).tags
    assert found.cells[0].split("\n")[0].strip() == bounded(text, MAX_CHARACTERS).strip(" \u00a0")
    assert all(one.isprintable() or one in "\n\u00a0" for one in source)


def renamed(name: str) -> Document:
    """The sections on identity and claims of a report whose job, site and tensors have this name, which is its title
    as well: that stands on every page.
    """

    def rename(tree: Any) -> None:
        identity = tree["identity"]
        identity |= {"job": name, "site": name, "sites": [name], "method": name}
        identity["adapter"] = [one | {"tensor": name} for one in identity["adapter"]]

    whole = compose(changed(rename))
    return replace(whole, title=name, front=(), sections=whole.sections[:2])


def test_the_size_of_a_pdf_grows_with_the_length_of_names_and_not_with_its_square() -> None:
    """Beyond the longest name that is shown there is no more of it."""
    short, once, fourfold = (len(_Setting(renamed("w" * length)).text()) for length in (1, 1_000, 4_000))
    assert once > short and fourfold - short <= 5 * (once - short)
    assert len(_Setting(renamed("w" * 100_000)).text()) <= 1.1 * fourfold


@pytest.mark.slow
def test_a_report_with_five_thousand_releases_has_all_of_them() -> None:
    """The page has a row for each release and for each digest; the PDF stays short and says how many it leaves out."""
    places = range(5_000)

    def release(tree: Any) -> None:
        last = tree["egress"]["releases"][-1]
        tree["egress"]["releases"] = [last | {"entry": place, "sha256": f"{place:064x}"} for place in places]

    document = compose(changed(release))
    linked, rows = (re.findall(rf'{start}digest-(0{{60}}[0-9a-f]{{4}})"', page(document)) for start in ("#", ' id="'))
    assert linked == rows == [f"{place:064x}" for place in places]
    sheets = PdfReader(BytesIO(pdf_bytes(document))).pages
    text = " ".join(" ".join(sheet.extract_text().split()) for sheet in sheets)
    assert len(sheets) <= 12 and "Every tensor that left. This file leaves out 5000 rows" in text


def test_a_title_names_a_job_and_a_site_shortly() -> None:
    """It stands on every page."""
    title = compose(REPORT.changed({"identity.job": "w" * 100_000, "identity.site": "w" * 100_000})).title
    assert len(title) < 2 * NAME + 20 and "characters …" in title
