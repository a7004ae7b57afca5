"""The local pages in a browser: seen, used with the keyboard only, on a phone, in the dark, on paper."""

import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from browsers import CONTRASTS, UNNAMED, browsed, browser, opened
from logs import HOSTILE, fix_clocks, serve, write_logs
from playwright.sync_api import Browser, Page

PAGES = ("./", "entries", "entries?page=2", "entry?site=chest&seq=2", "tensors", "budgets", "verdicts", "nothing")

__all__ = ["browser"]
pytestmark = browsed

FOCUSED = """() => {
    const [node, style] = [document.activeElement, getComputedStyle(document.activeElement)];
    return [node.textContent.trim(), node.id, style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2];
}"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the pages on two logs."""
    run = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        fix_clocks(patch)
        patch.setattr("os.fsync", lambda file: None)
        write_logs(run, rounds=30)
    with serve(run) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = opened(browser, viewport={"width": 1280, "height": 800})
    yield page
    page.context.close()


def test_pages_load_nothing_from_elsewhere_and_without_complaint(page: Page, url: str) -> None:
    """Only this server is asked, no cookie is kept, and the browser finds nothing to object to."""
    asked, text = list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: text.append(message.text))
    page.on("pageerror", lambda error: text.append(str(error)))
    for path in PAGES[:-1]:
        answer = page.goto(url + path)
        assert answer and answer.status == 200
        assert page.evaluate("getComputedStyle(document.querySelector('header')).display") == "flex"
    assert {urlsplit(address).netloc for address in asked} == {urlsplit(url).netloc}
    assert text == [] and page.context.cookies() == []


def test_a_name_that_is_an_attack_is_read_and_not_run(page: Page, url: str) -> None:
    """The browser shows the job's name as it is in the log; a script that is planted into the page does not run."""
    page.goto(url + "entries?outcome=refused")
    assert page.title() == "Entries · Audit log"
    assert HOSTILE in (page.locator("tbody").text_content() or "")
    assert page.locator("img, script").count() == 0
    page.evaluate("""() => {
        const script = document.createElement('script');
        script.textContent = "document.title = 'taken'";
        document.body.append(script);
    }""")
    assert page.title() == "Entries · Audit log"


def test_the_keyboard_is_enough(page: Page, url: str) -> None:
    """Skip link, navigation, filter, paging and an entry, by Tab, letters and Enter; what has the focus shows it."""
    page.goto(url)
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED) == ["Skip to content", "", True]
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.goto(url)
    _tab_to(page, "Entries")
    page.keyboard.press("Enter")
    page.wait_for_url("**/entries")
    _tab_to(page, "site")
    page.keyboard.type("head")
    _tab_to(page, "charged")
    page.keyboard.press("Space")
    _tab_to(page, "Apply")
    page.keyboard.press("Enter")
    page.wait_for_url("**/entries?*charged=1*")
    assert "30 entries" in page.locator("caption").inner_text()
    assert set(page.locator("td[data-label=Site]").all_inner_texts()) == {"head"}
    assert page.locator("#site").input_value() == "head" and page.locator("#charged").is_checked()
    page.goto(url + "entries")
    _tab_to(page, "Next", most=90)
    page.keyboard.press("Enter")
    page.wait_for_url("**/entries?page=2")
    assert "51 to 100 of 132" in page.locator(".pager").inner_text()
    _tab_to(page, "Apply")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/entry?*")
    _tab_to(page, "The line as it stands in the log")
    page.keyboard.press("Enter")
    assert '"leaf_hash":' in page.locator("pre").inner_text()


def _tab_to(page: Page, what: str, most: int = 40) -> None:
    """Presses Tab until what has this text or id has the focus, and shows that it has."""
    for _ in range(most):
        page.keyboard.press("Tab")
        text, name, visible = page.evaluate(FOCUSED)
        if what in (text, name):
            assert visible
            return
    raise AssertionError(f"Tab does not come to {what}")


def test_pages_have_landmarks_headings_and_names(page: Page, url: str) -> None:
    """One header, navigation, main and heading of the first rank; every control, table and picture has a name."""
    marks = ("body > header", "body > header > nav", "main", "body > footer", "h1", "html[lang=en]", "title")
    for path in PAGES:
        page.goto(url + path)
        assert [page.locator(mark).count() for mark in marks] == [1] * len(marks), path
        assert page.evaluate(UNNAMED) == [], path
        assert set(page.locator("th").evaluate_all("nodes => nodes.map(node => node.scope)")) <= {"col", "row"}, path
        ranks = page.locator("h1, h2, h3").evaluate_all("nodes => nodes.map(node => Number(node.tagName[1]))")
        assert ranks == sorted(ranks) and set(ranks) in ({1}, {1, 2}), path
        names = page.locator("[id]").evaluate_all("nodes => nodes.map(node => node.id)")
        assert len(names) == len(set(names)), path


def test_text_is_legible_by_day_and_by_night(browser: Browser, url: str) -> None:
    """Contrast is at least 4.5 (WCAG AA) for all text, and the dark scheme is dark."""
    papers = []
    for scheme in ("light", "dark"):
        page = opened(browser, color_scheme=scheme)
        for path in ("./", "entries", "budgets", "verdicts"):
            page.goto(url + path)
            assert min(page.evaluate(CONTRASTS)) >= 4.5, (scheme, path)
        papers.append(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        page.context.close()
    assert papers == ["rgb(247, 247, 244)", "rgb(20, 23, 26)"]


def test_no_page_is_wider_than_the_screen(page: Page, url: str) -> None:
    """Nothing has to be scrolled sideways, from the smallest phone on."""
    for path in PAGES:
        page.goto(url + path)
        for width in (320, 390, 768, 1060, 1280):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.scrollingElement.scrollWidth") <= width, (path, width)


def test_rows_are_cards_on_a_phone_and_still_rows_for_who_hears_them(page: Page, url: str) -> None:
    """A card names its cells; roles stay those of a table."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(url + "entries")
    row = page.locator("tbody tr").first
    assert row.evaluate("node => getComputedStyle(node).display") == "block"
    assert row.evaluate("node => getComputedStyle(node.cells[1], '::before').content") == '"Time"'
    assert page.get_by_role("table").get_by_role("row").count() == 51
    assert page.get_by_role("columnheader").count() == 10


def test_it_prints(page: Page, url: str) -> None:
    """On paper there are the tables with their heads, black on white, without what can only be clicked."""
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": 700, "height": 1000})  # a sheet of A4 without its margins, in CSS pixels
    page.goto(url + "entries?page=2")
    shown = {
        name: page.locator(name).first.is_visible() for name in ("form", "header nav", "thead", "caption", ".place")
    }
    assert shown == {"form": False, "header nav": False, "thead": True, "caption": True, ".place": True}
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 700


def test_charges_are_drawn(page: Page, url: str) -> None:
    """The course of epsilon has a step for each charge, and words for who does not see it."""
    page.goto(url + "budgets?site=chest")
    (steps,) = page.locator("path.steps").evaluate_all("nodes => nodes.map(node => node.getAttribute('d'))")
    assert steps.startswith("M0 100.0V96.7H33.3") and steps.endswith("V0.0H1000.0") and steps.count("V") == 30
    text = page.get_by_role("img").get_attribute("aria-label")
    assert text == "Site chest: epsilon charge by charge: from 0.0000 before entry 2 to 15.0000 after entry 60"
