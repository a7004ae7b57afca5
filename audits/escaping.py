r"""Escapes untrusted text for its output: terminal, HTML, PDF, Markdown, syslog, FHIR. Also makes HTML and plurals.

Somebody else chose the names and sentences in a log, a report, a kit or a job. An invisible character (a control
character, one that reverses the order of others, one without width, an unusual space) is written as `\u001b`, or as
`\U000e0001` beyond 16 bits. In a text that is too long, the number of characters left out replaces the middle.
A backslash stays as it is, so that escaping twice changes nothing; the log itself tells a backslash from an escape.
"""

import re
import unicodedata
from collections.abc import Iterable
from html import escape

NAME, SENTENCE = 120, 2_000
"""The most characters shown of a name and of a sentence that may come from others."""
FHIR_STRING = 1 << 20
"""The most characters of a string in FHIR (R4, 2.24.0.1)."""
SYSLOG_VALUE = 1 << 15
"""The most characters of a parameter in a syslog message."""
_MARK = 32
"""Characters reserved for the text that replaces the middle."""
_MOST_MARKS = 3
"""The most combining marks shown on one letter: no script needs more, and many would cover the neighbouring lines."""
_BLANK = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, range(0xFE00, 0xFE10)))
    + "".join(map(chr, range(0xE0100, 0xE01F0)))
)
"""Characters whose Unicode category is printable but that show nothing."""
_SPACES = (" ", "\u00a0")
"""The space, and the no-break space, which the program itself writes between figures."""
_MARKDOWN = re.compile(r"([\\`*\[\]<>&|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|://|(?<=www)\.|@)")
_MARKDOWN_BEGIN = re.compile(r"^(\d*)(?=[#+=.)-])")
_SYSLOG = re.compile(r'(["\\\]])')


def visible(text: str, allowed: str = "") -> str:
    """The whole text, with each invisible character written as its number. Characters in `allowed` stay as they are."""
    return text if text.isascii() and text.isprintable() else "".join(_pieces(text, allowed, runs=True))


def bounded(text: str, most: int, allowed: str = "", runs: bool = False) -> str:
    """Like `visible`, but at most `most` characters long: a longer text loses its middle.

    `runs`: whether several spaces in a row stay as they are. Otherwise only the first stays and the others are escaped,
    so that spaces cannot shift the following text into another column.
    """
    if len(text) <= most:
        if text.isascii() and text.isprintable() and (runs or "  " not in text):
            return text
        escaped = "".join(_pieces(text, allowed, runs))
        if len(escaped) <= most:
            return escaped
    room = max(most - _MARK, 0)
    head = _fitting(_pieces(text[:most], allowed, runs), room - room // 3)
    tail = _fitting(_pieces(text[len(head) :][-most:], allowed, runs)[::-1], room // 3)[::-1]
    return "".join((*head, f"[… {len(text) - len(head) - len(tail):,} characters …]", *tail))


def for_terminal(text: str, most: int = NAME) -> str:
    """The text as one line that cannot end early or steer a terminal. It is not escaped for any library's markup."""
    return bounded(text, most)


def for_log(text: str) -> str:
    """The text as a part of one line in a log file of the program; it cannot end the line."""
    return bounded(text, SENTENCE)


def for_html(text: str, most: int = SENTENCE) -> str:
    """One text node, or the value of an attribute in quotes."""
    return escape(bounded(text, most))


def for_pdf(text: str, most: int = SENTENCE) -> str:
    """Text for a PDF, without line breaks."""
    return bounded(text, most)


def for_markdown(text: str, most: int = SENTENCE) -> str:
    """Plain words for a paragraph, a list or a table's cell: what would be markup, a tag or a link is escaped."""
    return _MARKDOWN_BEGIN.sub(r"\1\\", _MARKDOWN.sub(r"\\\1", bounded(text, most)))


def for_syslog(text: str) -> str:
    """A parameter's value: without characters that end the line, then escaped by RFC 5424, 6.3.3."""
    return _SYSLOG.sub(r"\\\1", bounded(text, SYSLOG_VALUE, runs=True))


def for_fhir(text: str) -> str:
    """A FHIR string, in which line breaks and tabs stay and other control characters are escaped."""
    return bounded(text, FHIR_STRING, "\t\n\r", runs=True)


def _fitting(pieces: list[str], room: int) -> list[str]:
    """The first pieces that fit into `room` characters together."""
    for place, piece in enumerate(pieces):
        room -= len(piece)
        if room < 0:
            return pieces[:place]
    return pieces


def _pieces(text: str, allowed: str, runs: bool) -> list[str]:
    """The visible form of each character."""
    pieces, marks, before = list[str](), 0, ""
    for letter in text:
        marks = marks + 1 if unicodedata.combining(letter) or unicodedata.category(letter) in ("Mn", "Me") else 0
        if letter in _SPACES:
            escape = before in _SPACES and not runs
        else:
            escape = not letter.isprintable() or letter in _BLANK or marks > _MOST_MARKS or (marks > 0 and not pieces)
        pieces.append(number(letter) if escape and letter not in allowed else letter)
        before = letter
    return pieces


def number(letter: str) -> str:
    """The escape sequence for an invisible character."""
    return f"\\u{ord(letter):04x}" if ord(letter) < 1 << 16 else f"\\U{ord(letter):08x}"


class Html(str):
    """Markup made by `tag` and `join`, which escape text; it is not escaped again."""

    __slots__ = ()


Child = str | int | None
_VOID = frozenset(("link", "meta", "input", "img"))


def tag(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Html:
    """One element. Children and values that are not `Html` are escaped, children that are `None` are left out.

    Attribute names lose a last underscore (`class_`), and inner ones become hyphens. `True` gives an attribute without
    a value; `None` and `False` leave it out.
    """
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{join([value])}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{said}>")
    return Html(f"<{name}{said}>{join(children)}</{name}>")


def join(children: Iterable[Child], between: str = "") -> Html:
    """Concatenates children, escaped as by `tag`, with `between` as the separator."""
    shown = (child if isinstance(child, Html) else for_html(str(child)) for child in children if child is not None)
    return Html(for_html(between).join(shown))


def quantity(number: int, singular: str, plural: str = "") -> str:
    """A number with its noun, such as `1 entry` or `21 entries`. `plural`: by default `singular` with an s."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
