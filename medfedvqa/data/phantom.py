"""The phantom set: pictures that the project draws itself, and closed questions that need them.

Questions come in pairs: the same words about two pictures with opposite answers (the balancing of VQA v2; Goyal et al.,
CVPR 2017). So words alone are right half of the time, at every site and in every part of the published split.

Coordinates are in -1..1, x to the right and y down.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch

from medfedvqa.data.images import square
from medfedvqa.data.schema import Row, VQAData
from medfedvqa.errors import DataError

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


PARTS = {"train": 0.65, "validate": 0.10, "test": 0.25}
"""The shares of a site's patients in the published split."""


@dataclass(frozen=True)
class PhantomQuestion:
    """One kind of question: its two answers, its wordings, and which answer is true of a scene.

    `truth` tells whether the first answer is right; None means that the question does not fit the picture.
    """

    answers: tuple[str, str]
    wordings: tuple[str, str, str]
    truth: Callable[[Scene], bool | None]


@dataclass(frozen=True)
class PhantomSite:
    """The findings of a site's patients and the questions about them. Sites differ in both."""

    anatomy: str
    patients: int
    mass: float
    """The share of pictures with a mass. The next four fields are shares of these pictures."""
    left: float
    large: float
    bright: float
    two: float
    questions: Mapping[str, int]
    """The number of questions of each kind about a picture that it fits, each in other words."""


ENLARGED = {"chest": "heart", "abdomen": "bladder", "head": "ventricles"}
QUESTIONS = {
    "mass": PhantomQuestion(
        ("yes", "no"),
        ("Is there a mass?", "Does the picture show a mass?", "Can a mass be seen in the {anatomy}?"),
        lambda scene: scene.mass is not None,
    ),
    "enlarged": PhantomQuestion(
        ("yes", "no"),
        (
            "Is there enlargement of the {organ}?",
            "Can enlargement of the {organ} be seen?",
            "Is the size of the {organ} above normal?",
        ),
        lambda scene: scene.enlarged,
    ),
    "on left": PhantomQuestion(
        ("yes", "no"),
        (
            "Is the mass on the left side of the picture?",
            "Does the mass lie in the left half of the picture?",
            "Is the left half of the picture the one with the mass?",
        ),
        lambda scene: scene.mass.left if scene.mass else None,
    ),
    "side": PhantomQuestion(
        ("left", "right"),
        (
            "On which side of the picture is the mass, left or right?",
            "Which half of the picture holds the mass, left or right?",
            "Is the mass on the left or on the right of the picture?",
        ),
        lambda scene: scene.mass.left if scene.mass else None,
    ),
    "size": PhantomQuestion(
        ("large", "small"),
        ("Is the mass large or small?", "How big is the mass, large or small?", "What is the size of the mass?"),
        lambda scene: scene.mass.large if scene.mass else None,
    ),
    "tone": PhantomQuestion(
        ("bright", "dark"),
        (
            "Is the mass bright or dark within?",
            "Is the centre of the mass bright or dark?",
            "How does the inside of the mass appear?",
        ),
        lambda scene: scene.mass.bright if scene.mass else None,
    ),
    "count": PhantomQuestion(
        ("two", "one"),
        ("Is there one mass or are there two?", "How many masses are there?", "Does one see one mass or two masses?"),
        lambda scene: scene.mass.two if scene.mass else None,
    ),
}
SITES = {
    "chest": PhantomSite(
        "chest", patients=80, mass=0.6, left=0.5, large=0.5, bright=0.85, two=0,
        questions={"mass": 1, "enlarged": 1, "on left": 1, "side": 1, "size": 2},
    ),
    "abdomen": PhantomSite(
        "abdomen", patients=72, mass=0.7, left=0.5, large=0.3, bright=0.5, two=0,
        questions={"mass": 1, "enlarged": 1, "side": 2, "tone": 2},
    ),
    "head": PhantomSite(
        "head", patients=64, mass=0.55, left=0.5, large=0.7, bright=0.3, two=0.5,
        questions={"mass": 2, "enlarged": 1, "on left": 1, "count": 2},
    ),
}  # fmt: skip
ORGANS = tuple(SITES)
PATIENTS_OF_MANY = 12
"""Patients at each of many simulated sites; few, so that a hundred sites fit on a laptop."""


def organs(sites: int) -> tuple[str, ...]:
    """The names of this number of sites: the three organs, or for more sites `site-001` and so on."""
    return ORGANS[:sites] if sites <= len(ORGANS) else tuple(f"site-{number:03d}" for number in range(1, sites + 1))


def read(names: Sequence[str] = ORGANS, seed: int = 0) -> VQAData:
    """The sites of these names, drawn from `seed`: each is the same whichever others are read with it.

    Raises `DataError` for an unknown name.
    """
    scenes: dict[Path, Scene] = {}
    rows: list[Row] = []
    for name in names:
        site_scenes, site_rows = _site_of(name, seed)
        scenes |= site_scenes
        first = len(rows)
        rows += [replace(row, index=first + row.index) for row in site_rows] if first else site_rows
    return VQAData("phantom", tuple(names), rows, partial(_load, scenes), publishes_validation=True)


@lru_cache(maxsize=32)
def _site_of(name: str, seed: int) -> tuple[Mapping[Path, Scene], tuple[Row, ...]]:
    """One site's scenes and rows. Cached, since a process's jobs ask for the same sites again."""
    scenes: dict[Path, Scene] = {}
    rows: list[Row] = []
    generator = np.random.default_rng([seed, *name.encode()])
    site = _site(name, generator)
    patients = np.array([f"{name}-{number:02d}" for number in generator.permutation(site.patients)])
    ends = np.cumsum([round(share * site.patients) for share in PARTS.values()])
    for part, members in zip(PARTS, np.split(patients, ends[:-1]), strict=True):
        part_scenes = _scenes(site, members.tolist(), generator)
        scenes |= part_scenes
        for image, question, answer, kind in _questions(site, part_scenes, generator):
            rows.append(Row(len(rows), name, part, True, question, answer, image.parent.name, image, kind))
    return scenes, tuple(rows)


def _load(scenes: Mapping[Path, Scene], row: Row, size: int) -> torch.Tensor:
    return _drawn(scenes[row.image], size).clone()


@lru_cache(maxsize=1024)
def _drawn(scene: Scene, size: int) -> torch.Tensor:
    """The scene as a picture, float32 [1, size, size].

    It is cached, since a process's sites and jobs ask for the same pictures again; at 128 pixels they take 64 MiB.
    """
    return square(draw(scene), size)


def _site(name: str, generator: np.random.Generator) -> PhantomSite:
    if name in SITES:
        return SITES[name]
    number = re.fullmatch(r"site-([0-9]{3,})", name)
    if not number:
        raise DataError(f"unknown organ; phantom has {', '.join(ORGANS)}, or site-001 and so on")
    mass, left, large, bright, two = generator.uniform(0.4, 0.7, 5).tolist()
    about_mass = generator.choice(["on left", "side", "size", "tone", "count"], 2, replace=False)
    questions = dict.fromkeys(("mass", "enlarged", *about_mass.tolist()), 1)
    anatomy = ORGANS[int(number[1]) % len(ORGANS)]
    return PhantomSite(anatomy, PATIENTS_OF_MANY, mass, left, large, bright, two, questions)


def _scenes(site: PhantomSite, patients: Sequence[str], generator: np.random.Generator) -> dict[Path, Scene]:
    """Two or three pictures for each patient. All show the patient's build; findings differ by picture."""
    images = [Path(patient, str(number)) for patient in patients for number in range(generator.integers(2, 4))]
    bodies = {patient: Body.random(generator) for patient in patients}

    def flags(share: float, count: int) -> list[bool]:
        chosen: list[bool] = generator.permutation(np.arange(count) < round(share * count)).tolist()
        return chosen

    enlarged, present = flags(0.5, len(images)), flags(site.mass, len(images))
    findings = (flags(share, sum(present)) for share in (site.left, site.large, site.bright, site.two))
    masses = (Mass(*finding) for finding in zip(*findings, strict=True))
    return {
        image: Scene(
            anatomy=site.anatomy,
            body=bodies[image.parent.name],
            enlarged=large,
            mass=next(masses) if has_mass else None,
            seed=int(generator.integers(2**32)),
        )
        for image, large, has_mass in zip(images, enlarged, present, strict=True)
    }


def _questions(
    site: PhantomSite, scenes: Mapping[Path, Scene], generator: np.random.Generator
) -> list[tuple[Path, str, str, str]]:
    """Tuples of image, question, answer and type, picture by picture."""
    rows: list[tuple[Path, str, str, str]] = []
    for kind, times in site.questions.items():
        question = QUESTIONS[kind]
        for number, pair in enumerate(_opposites(question, scenes, generator)):
            for time in range(times):
                words = question.wordings[(number + time) % len(question.wordings)]
                words = words.format(anatomy=site.anatomy, organ=ENLARGED[site.anatomy])
                rows.extend((image, words, answer, kind) for image, answer in zip(pair, question.answers, strict=True))
    order = {image: position for position, image in enumerate(scenes)}
    return sorted(rows, key=lambda row: order[row[0]])


def _opposites(
    question: PhantomQuestion, scenes: Mapping[Path, Scene], generator: np.random.Generator
) -> Iterator[tuple[Path, Path]]:
    """Random pairs of pictures. The first answer is right for the first picture and wrong for the second."""
    true, false = ([image for image, scene in scenes.items() if question.truth(scene) is t] for t in (True, False))
    for i, j in zip(generator.permutation(len(true)), generator.permutation(len(false)), strict=False):
        yield true[i], false[j]
