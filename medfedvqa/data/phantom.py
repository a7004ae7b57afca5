"""The phantom set: pictures that the project draws itself, and closed questions that need them.

Questions come in pairs: the same words about two pictures with opposite answers (the balancing of VQA v2; Goyal et al.,
CVPR 2017). So words alone are right half of the time, at every site and in every part of the published split.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch

from medfedvqa.data.images import square
from medfedvqa.data.phantom_drawing import Body, Mass, Scene, draw
from medfedvqa.data.schema import Row, VQAData
from medfedvqa.errors import DataError

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
        generator = np.random.default_rng([seed, *name.encode()])
        site = _site(name, generator)
        patients = np.array([f"{name}-{number:02d}" for number in generator.permutation(site.patients)])
        ends = np.cumsum([round(share * site.patients) for share in PARTS.values()])
        for part, members in zip(PARTS, np.split(patients, ends[:-1]), strict=True):
            part_scenes = _scenes(site, members.tolist(), generator)
            scenes |= part_scenes
            for image, question, answer, kind in _questions(site, part_scenes, generator):
                rows.append(Row(len(rows), name, part, True, question, answer, image.parent.name, image, kind))
    return VQAData("phantom", tuple(names), rows, partial(_load, scenes), publishes_validation=True)


def _load(scenes: Mapping[Path, Scene], row: Row, size: int) -> torch.Tensor:
    return _drawn(scenes[row.image], size).clone()


@lru_cache(maxsize=1024)
def _drawn(scene: Scene, size: int) -> torch.Tensor:
    """Cached, since a process's sites and jobs ask for the same pictures again; at 128 pixels they take 64 MiB."""
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
