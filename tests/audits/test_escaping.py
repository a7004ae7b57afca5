"""Texts of others, escaped for each medium: whatever characters they have, they stay text, and none of it hides."""

import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from audits.escaping import (
    FHIR_STRING,
    NAME,
    bounded,
    for_fhir,
    for_html,
    for_log,
    for_markdown,
    for_pdf,
    for_syslog,
    for_terminal,
    number,
    quantity,
    tag,
    visible,
)

ANY = st.text(st.characters(exclude_categories=()))
"""All of Unicode, lone surrogates included."""
HOSTILE = st.text(
    st.sampled_from("\x00\x07\x08\t\n\r\x1b\x7f\x9b\u061c\u200b\u200e\u2028\u202e\u2066\ud800\ue000 []<>&\"'|`*_a")
)
ATTACKS = (
    "\x1b[2J\x1b]0;taken\x07",
    "\x9b2J",
    "a\r\n  integrity: shown",
    "\u202eNEKORB",
    "\ufeff\u200b\u2060",
    "\ud800",
    "a" + "\u0300" * 40,
    "a" + " " * 80 + "shown",
    "\u3164\u2800\u115f",
)


def shows_itself(letter: str) -> bool:
    """Whether a reader sees that this character is there."""
    return letter in (" ", "\u00a0") or unicodedata.category(letter)[0] not in "CZ"


class Nodes(HTMLParser):
    """What a parser makes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.starts, self.text, self.attributes = list[str](), "", list[tuple[str, str | None]]()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.starts.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.starts.append("comment")

    handle_decl = handle_pi = unknown_decl = handle_comment


@given(ANY | HOSTILE)
@example("a" * 1000 + "\x1b" * 1000)
def test_a_line_of_text_has_no_character_that_does_not_show_itself(text: str) -> None:
    """Nor one that ends the line or moves what follows; it can be encoded, is no longer than a name may be, and
    escaping it again changes nothing. A text without such characters stays as it is."""
    for escaped in (for_terminal(text), for_log(text), for_pdf(text)):
        assert all(map(shows_itself, escaped)) and len(escaped.splitlines()) <= 1
        assert escaped.encode() is not None and "  " not in escaped
        assert bounded(escaped, 2_000) == escaped
    assert len(for_terminal(text)) <= NAME and for_terminal(for_terminal(text)) == for_terminal(text)
    if text.isascii() and text.isprintable() and "  " not in text and len(text) <= NAME:
        assert for_terminal(text) == text


@pytest.mark.parametrize("text", ATTACKS)
def test_attacks_are_shown_by_their_numbers(text: str) -> None:
    """A reader sees which characters there are."""
    escaped = for_terminal(text)
    assert all(map(shows_itself, escaped)) and "\\u" in escaped


def test_what_is_shown_is_what_the_documentation_says() -> None:
    """Numbers of four digits, or eight; three marks on a letter; one space; a long text without its middle."""
    assert for_terminal("\x1b[2J\u202e\U000e0001") == r"\u001b[2J\u202e\U000e0001"
    assert for_terminal("e\u0301\u0301\u0301\u0301") == "e\u0301\u0301\u0301\\u0301"
    assert for_terminal("a   b") == r"a \u0020\u0020b" and visible("a   b") == "a   b"
    assert for_terminal("Hôpital, 東京, משה") == "Hôpital, 東京, משה"
    cut = for_terminal("b" * 500 + "e" * 500)
    assert cut.startswith("bbbb") and cut.endswith("eeee") and " characters …]" in cut and len(cut) <= NAME
    left_out = 1000 - cut.split("[")[0].count("b") - cut.split("]")[1].count("e")
    assert f"[… {left_out:,} characters …]" in cut


@given(ANY | HOSTILE)
@example("</p><script>&amp;\"'")
def test_html_parses_to_one_text_node(text: str) -> None:
    """As an element's content and as an attribute's value, and nothing in the page's source is hidden."""
    page = tag("p", text, title=text)
    nodes = Nodes(page)
    assert nodes.starts == ["p"] and nodes.attributes == [("title", bounded(text, 2_000))]
    assert nodes.text == bounded(text, 2_000) and all(map(shows_itself, page)) and for_html(text) in page


@given(ANY | HOSTILE)
@example("# a [b](http://c) <i>d</i> `e` *f* _g_ | h ~~i~~ https://j www.k l@m")
@example("1. a")
@example("- a")
@example("\xa0")
def test_markdown_parses_to_words_only(text: str) -> None:
    """In a table's cell and as a paragraph: no heading, list, link, tag, code or further cell comes from it."""
    words = bounded(text, 2_000).strip()
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    for page, kinds in ((for_markdown(text), {"paragraph"}), (f"| a |\n|---|\n| {for_markdown(text)} |\n", {"table"})):
        tokens = reader.parse(page)
        inline = [token for token in tokens if token.type == "inline"]
        assert words == "" or inline[-1].content
        assert {token.type.split("_")[0] for token in tokens} <= kinds | {"inline", "thead", "tbody", "tr", "th", "td"}
        assert sum(token.type == "td_open" for token in tokens) == (kinds == {"table"})
        assert {child.type for token in inline for child in token.children or ()} <= {"text", "text_special"}
        shown = "".join(child.content for child in inline[-1].children or ()) if words else ""
        assert shown.strip() == words


@given(ANY | HOSTILE)
def test_fhir_and_syslog_hold_no_character_that_they_forbid(text: str) -> None:
    """FHIR (R4, 2.24.0.1) takes tabs and line ends of the control characters; a parameter of syslog is one line."""
    assert all(shows_itself(letter) or letter in "\t\n\r" for letter in for_fhir(text))
    assert all(map(shows_itself, for_syslog(text))) and for_fhir(text).encode() is not None


def test_no_text_becomes_longer_than_its_medium_takes() -> None:
    """Escapes are longer than what they stand for, and count."""
    for letter in ("\x1b", "\U000e0001", "a", "é"):
        assert len(for_terminal(letter * 10_000, 50)) <= 50
        assert len(for_fhir(letter * (FHIR_STRING + 1))) <= FHIR_STRING


def test_a_number_agrees_with_its_noun() -> None:
    """By the noun's own plural, if it has one."""
    assert [quantity(number, "entry", "entries") for number in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]
    assert [quantity(number, "byte") for number in (1, 21)] == ["1 byte", "21 bytes"]


def test_an_invisible_character_has_four_digits_up_to_the_end_of_the_first_plane() -> None:
    """And eight beyond it."""
    assert (number("\uffff"), number("\U00010000")) == ("\\uffff", "\\U00010000")
