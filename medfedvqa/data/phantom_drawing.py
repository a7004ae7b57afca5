"""The phantom set's pictures: plain grey organs, drawn from a description of the findings.

Coordinates are in -1..1, x to the right and y down.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

PIXELS = 128
EDGE = 0.03
"""The width of an outline's soft rim, about two pixels."""
SMALL, LARGE = 0.20, 0.31
"""Half-axes of a mass: 26 and 40 pixels across."""
DARK, BRIGHT = 0.02, 0.98
RIM = 0.08
"""Every mass has a bright rim, five pixels wide. A dark mass is dark within."""
TEXTURE = 0.03
NOISE = 0.02

_AXIS = (np.arange(PIXELS) + 0.5) * 2 / PIXELS - 1
_COARSE = np.linspace(-1, 1, 9)
_SMOOTH = np.clip(1 - np.abs(_AXIS[:, None] - _COARSE) / (_COARSE[1] - _COARSE[0]), 0, 1)
"""Linear interpolation from 9 places to 128, [128, 9]."""


@dataclass(frozen=True)
class Mass:
    """One mass, or two, one above the other. `left` is the picture's left."""

    left: bool
    large: bool
    bright: bool
    two: bool


@dataclass(frozen=True)
class Body:
    """A patient's build, the same in all of the patient's pictures."""

    width: float
    height: float
    shift: float
    gain: float

    @classmethod
    def random(cls, generator: np.random.Generator) -> "Body":
        width, height = generator.uniform(0.95, 1.05, 2)
        return cls(width, height, shift=generator.uniform(-0.03, 0.03), gain=generator.uniform(0.94, 1.0))


@dataclass(frozen=True)
class Scene:
    """The content of one picture. `seed` decides everything else in it."""

    anatomy: str
    body: Body
    enlarged: bool
    """Whether the heart, the bladder or the ventricles are enlarged."""
    mass: Mass | None
    seed: int


class _Canvas:
    def __init__(self, body: Body) -> None:
        self.grey = np.zeros((PIXELS, PIXELS))
        self._x = (_AXIS - body.shift) / body.width
        self._y = _AXIS[:, None] / body.height

    def ellipse(self, x: float, y: float, width: float, height: float, grey: float) -> None:
        """Draws a filled ellipse around x, y with these half-axes, over the earlier drawing."""
        radius = np.sqrt(((self._x - x) / width) ** 2 + ((self._y - y) / height) ** 2)
        cover = np.clip(0.5 + (1 - radius) * min(width, height) / EDGE, 0, 1)
        self.grey += cover * (grey - self.grey)


def draw(scene: Scene) -> np.ndarray:
    """The picture, float64 [128, 128] in 0..1."""
    generator = np.random.default_rng(scene.seed)
    canvas = _Canvas(scene.body)
    ANATOMY[scene.anatomy](canvas, scene.enlarged)
    if scene.mass:
        _draw_mass(canvas, scene.mass, generator)
    texture = TEXTURE * _SMOOTH @ generator.standard_normal((len(_COARSE), len(_COARSE))) @ _SMOOTH.T
    noise = NOISE * generator.standard_normal(canvas.grey.shape)
    picture: np.ndarray = scene.body.gain * canvas.grey + texture * (canvas.grey > 0) + noise
    return picture.clip(0, 1)


def _draw_mass(canvas: _Canvas, mass: Mass, generator: np.random.Generator) -> None:
    x = generator.uniform(0.40, 0.46) * (-1 if mass.left else 1)
    for y in (-0.38, 0.38) if mass.two else (generator.uniform(-0.3, 0.3),):
        width, height = (LARGE if mass.large else SMALL) * generator.uniform(0.95, 1.05, 2)
        canvas.ellipse(x, y, width, height, BRIGHT)
        if not mass.bright:
            canvas.ellipse(x, y, width - RIM, height - RIM, DARK)


def _chest(canvas: _Canvas, enlarged: bool) -> None:
    canvas.ellipse(0, 0, 0.92, 0.95, 0.60)
    for side in (-1, 1):
        canvas.ellipse(0.44 * side, -0.05, 0.34, 0.74, 0.36)
    half = (0.36, 0.42) if enlarged else (0.15, 0.20)
    canvas.ellipse(0.05, 0.30, *half, 0.72)


def _abdomen(canvas: _Canvas, enlarged: bool) -> None:
    canvas.ellipse(0, 0, 0.95, 0.90, 0.45)
    canvas.ellipse(-0.42, -0.32, 0.42, 0.34, 0.56)
    for side in (-1, 1):
        canvas.ellipse(0.46 * side, 0.30, 0.15, 0.22, 0.60)
    canvas.ellipse(0, -0.22, 0.09, 0.55, 0.72)
    half = (0.36, 0.34) if enlarged else (0.13, 0.11)
    canvas.ellipse(0, 0.50, *half, 0.24)


def _head(canvas: _Canvas, enlarged: bool) -> None:
    canvas.ellipse(0, 0, 0.90, 0.95, 0.76)
    canvas.ellipse(0, 0, 0.82, 0.87, 0.48)
    x, width, height = (0.17, 0.16, 0.48) if enlarged else (0.08, 0.05, 0.20)
    for side in (-1, 1):
        canvas.ellipse(x * side, 0, width, height, 0.24)


ANATOMY: dict[str, Callable[[_Canvas, bool], None]] = {"chest": _chest, "abdomen": _abdomen, "head": _head}
