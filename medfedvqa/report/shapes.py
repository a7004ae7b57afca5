"""Pictures as a few shapes on a sheet, which the page sets as SVG and the PDF draws."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["ink", "soft", "line", "limit", "first", "second", "third", "fourth", "fifth"]
"""What a shape stands for; page and PDF have a colour for each."""
SERIES: tuple[Role, ...] = ("first", "second", "third", "fourth", "fifth")
"""Told apart by colour-blind readers, and by their lightness where there is no colour."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A line through points."""

    points: tuple[Point, ...]
    role: Role
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True)
class Box:
    """A filled rectangle, from its upper left corner."""

    x: float
    y: float
    width: float
    height: float
    role: Role


@dataclass(frozen=True)
class Mark:
    """A filled shape around its middle."""

    x: float
    y: float
    role: Role
    shape: Literal["circle", "square", "diamond"] = "circle"


@dataclass(frozen=True)
class Words:
    """Text on a base line that begins, is centred or ends at x."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    role: Role = "soft"


@dataclass(frozen=True)
class Drawing:
    """A picture of `width` by `height` units, y downwards; `said` is for who does not see it."""

    title: str
    said: str
    width: float
    height: float
    shapes: tuple[Line | Box | Mark | Words, ...]


def corners(mark: Mark, size: float = 5.0) -> tuple[Point, ...]:
    """The corners of a square or diamond."""
    x, y = mark.x, mark.y
    if mark.shape == "square":
        return ((x - size, y - size), (x + size, y - size), (x + size, y + size), (x - size, y + size))
    reach = 1.35 * size
    return ((x, y - reach), (x + reach, y), (x, y + reach), (x - reach, y))
