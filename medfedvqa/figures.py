"""Colours and style of all figures, and their conversion to files or parts of pages.

matplotlib is imported with the first figure.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from audits.escaping import for_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, safe for colour-blind readers, without the yellow that is hardly visible on white paper."""
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK = COLOURS
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#8C8C8C"
INK, SOFT, RULE, RED = "#1a1f24", "#565e68", "#d8dad4", "#a11c16"
"""Colours of a page: text, lesser text, lines, and limits."""
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "figure.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "savefig.dpi": 200,
    "text.parse_math": False,
}
PAGE_STYLE: dict[Any, Any] = STYLE | {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), SOFT),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), RULE),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
    "axes.spines.left": False,
    "axes.spines.bottom": False,
}
"""The style of a figure that stands on a page, whose colours it takes."""
_VARIABLES = {
    **{INK: "ink", SOFT: "soft", RULE: "line", RED: "bad"},
    **{BLUE.lower(): "first", VERMILION.lower(): "second", SKY.lower(): "third"},
    **{PURPLE.lower(): "fourth", GREEN.lower(): "fifth"},
}
"""The variable of the page's style sheet for each colour."""
_NOT_INLINE = re.compile(r'<style.*?</style>|font-family: [^;"]*;?| id="(?!m[0-9a-f]{10}")[^"]*"', re.DOTALL)
"""Styles and fonts of an SVG, which a page sets itself, and ids that nothing refers to."""

_NIGHT = b"<style>@media (prefers-color-scheme: dark) { #figure_1 { filter: invert(0.92) hue-rotate(180deg) } }</style>"


@contextmanager
def styled(style: dict[Any, Any] = STYLE) -> Iterator[None]:
    """Context manager and decorator: figures made inside have this style; the user's settings are restored."""
    import matplotlib

    with matplotlib.rc_context(style):
        yield


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches, that belongs to no window and no global list."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def settle(figure: "Figure") -> None:
    """Fixes the figure's layout, without clipping, because a report's page allows no reference to a clip path.

    Lines outside of the axes are drawn but take no room from them.
    """
    from matplotlib.lines import Line2D

    for artist in figure.findobj():
        artist.set_clip_on(False)
        artist.set_in_layout(artist.get_in_layout() and not isinstance(artist, Line2D))
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def encoded(figure: "Figure", kind: Literal["png", "svg"], fonttype: str = "path", salt: str = "medfedvqa") -> bytes:
    """The figure's file, the same bytes each time. Text in an SVG is drawn (`path`) or stays text (`none`)."""
    content = io.BytesIO()
    about = {"Software": None} if kind == "png" else dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with styled(STYLE | {"svg.hashsalt": salt, "svg.fonttype": fonttype}):
        figure.savefig(content, format=kind, metadata=about)
    return content.getvalue()


def svg_file(figure: "Figure") -> bytes:
    """The figure as a standalone SVG. On a dark screen its lightness is inverted and its hues stay."""
    return encoded(figure, "svg").replace(b"</defs>", _NIGHT + b"</defs>", 1)


def inline_svg(figure: "Figure", label: str) -> str:
    """A settled figure as an element of a page, in the page's colours and fonts; `label` is for screen readers."""
    svg = encoded(figure, "svg", "none", label).decode().partition("<svg")[2]
    box = re.search(r'viewBox="[^"]*"', svg)
    shapes = _NOT_INLINE.sub("", svg.partition(">")[2])
    for colour, name in _VARIABLES.items():
        shapes = shapes.replace(colour, f"var(--{name})")
    return f'<svg {box[0] if box else ""} role="img" aria-label="{for_html(label)}">{shapes}'
