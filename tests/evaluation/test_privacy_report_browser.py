"""The page of a privacy-budget report in a browser: on a desk, on a phone, in the dark, on paper."""

from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pytest
from browsers import CONTRASTS, UNNAMED, browsed, browser, opened
from playwright.sync_api import Browser, Page
from pypdf import PdfReader
from report_trees import changed

from medfedvqa.report.document import compose
from medfedvqa.report.page import page as drawn

__all__ = ["browser"]
pytestmark = browsed
A4 = 694
"""A sheet without its margins, in CSS pixels."""
CUT = """() => [...document.querySelectorAll('.scroll, td, th, dd, svg')]
    .filter(node => getComputedStyle(node).overflow !== 'visible' && node.scrollHeight > node.clientHeight + 1
        || node.getBoundingClientRect().right > innerWidth + 1)
    .map(node => node.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a report's page with a table longer than a screen, in which one job's name has no end."""

    def longer(tree: Any) -> None:
        tree["egress"]["releases"] *= 8
        tree["accounting"]["jobs"][-1]["job"] = "w" * 200

    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(drawn(compose(changed(longer))), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = opened(browser, viewport={"width": 1440, "height": 900})
    yield page
    page.context.close()


def test_the_page_loads_nothing_and_nothing_is_wider_than_the_screen(page: Page, address: str) -> None:
    """Only the file itself is asked for, without complaint, and wide tables scroll in boxes that Tab reaches."""
    asked, said = list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    for width in (320, 390, 768, 1120, 1440):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width, width
    assert page.locator(".scroll:not([tabindex='0'])").count() == 0
    assert asked == [address] and said == []


def test_the_first_screen_has_question_answer_and_figures(page: Page, address: str) -> None:
    """On a desk, before anything is scrolled; on a phone question and answer."""
    page.goto(address)
    for width, height, last in ((1366, 768, ".cards div:last-child"), (390, 844, ".cards div:first-child")):
        page.set_viewport_size({"width": width, "height": height})
        for what in ("h1", ".lead", last):
            box = page.locator(what).first.bounding_box()
            assert box and box["y"] + box["height"] <= height, (width, what)


def test_what_is_heard_has_names_and_order(page: Page, address: str) -> None:
    """Landmarks, headings in their ranks, named tables and pictures; the skip link is the first that Tab reaches."""
    page.goto(address)
    marks = ("body > header", "body > nav", "main", "body > footer", "h1", "html[lang=en]", "title")
    assert [page.locator(mark).count() for mark in marks] == [1] * len(marks)
    assert page.evaluate(UNNAMED) == []
    assert set(page.locator("th").evaluate_all("nodes => nodes.map(node => node.scope)")) == {"col", "row"}
    ranks = page.locator("h1, h2, h3").evaluate_all("nodes => nodes.map(node => Number(node.tagName[1]))")
    assert ranks[:2] == [1, 2] and all(later - rank <= 1 for rank, later in zip(ranks, ranks[1:], strict=False))
    assert page.get_by_role("img").count() == 6
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#main"


def test_a_table_becomes_cards_on_a_phone(page: Page, address: str) -> None:
    """Every cell of the open rules is on the screen, with its column's title before it."""
    page.goto(address)
    page.set_viewport_size({"width": 390, "height": 844})
    for cell in page.locator("#open td, #L td").all()[:20]:
        box = cell.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= 390
    title = "node => getComputedStyle(node, '::before').content"
    assert page.locator("#open td").first.evaluate(title) == '"What was found, and what closes it"'


def test_text_is_legible_by_day_and_by_night(browser: Browser, address: str) -> None:
    """Contrast is at least 4.5 (WCAG AA) for all text, also in pictures, and the dark scheme is dark."""
    papers = []
    for scheme in ("light", "dark"):
        page = opened(browser, color_scheme=scheme)
        page.goto(address)
        page.add_style_tag(content="svg text { color: var(--soft) } svg text.ink { color: var(--ink) }")
        assert min(page.evaluate(CONTRASTS)) >= 4.5, scheme
        papers.append(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        page.context.close()
    assert papers == ["rgb(247, 247, 244)", "rgb(20, 23, 26)"]


def test_it_prints_whole(page: Page, address: str) -> None:
    """Black on white on A4, with nothing cut off, also not the long tables, and what is only for a screen left out."""
    page.goto(address)
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": A4, "height": 1000})
    assert not page.locator("nav").is_visible() and page.locator("thead").first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.evaluate("document.scrollingElement.scrollWidth") <= A4
    assert page.evaluate(CUT) == []
    printed = PdfReader(BytesIO(page.pdf(prefer_css_page_size=True)))
    assert {tuple(round(float(edge)) for edge in sheet.mediabox[2:]) for sheet in printed.pages} == {(595, 842)}
    whole = "\n".join(sheet.extract_text() for sheet in printed.pages)
    assert all(part in whole for part in ("M · Never in a report", "Recital 26", "Digests in full"))
