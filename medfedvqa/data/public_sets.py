"""The public set of a job: phantom pictures that no site holds, or a folder of one's own with pictures, captions and
closed questions about them.

    pairs.csv        picture,caption             a line for each picture, in the order in which they are used
    questions.csv    picture,question,answer     only for what is asked; CreamFL needs none

Server and sites each have the folder. The environment variable MEDFEDVQA_PUBLIC names it, at a site also `public_set`
in `site.yml`. A job names the set by a digest of all that is in it, so that all parties train on the same.
"""

import csv
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from audits.bounded_files import MAX_DOCUMENT, read_bounded
from medfedvqa.bounds import MOST_CHARACTERS, MOST_PAIRS, PUBLIC_FOLDER
from medfedvqa.bounds import PUBLIC_TABLE as PAIRS
from medfedvqa.data.images import load_image, square
from medfedvqa.data.phantom import ENLARGED, ORGANS, QUESTIONS, Body, Mass, Scene, draw
from medfedvqa.errors import ConfigError, DataError

PUBLIC_SEED = 20230501
"""The seed of the public set. Sites draw from the job's seed and their names instead."""
TEST_SEED = 20230502
"""The seed of the public pictures on which a server's model is tested. None of them is in the public set."""


@dataclass(frozen=True)
class PublicQuestions:
    """Closed questions about public pictures, in pairs of the same words with opposite answers."""

    pictures: tuple[int, ...]
    """The number of each row's picture."""
    questions: tuple[str, ...]
    answers: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.questions)


class PublicPairs(Protocol):
    """Pictures and captions, pair by pair, and closed questions about the pictures."""

    @property
    def captions(self) -> tuple[str, ...]:
        """The caption of each picture."""

    @property
    def questions(self) -> PublicQuestions:
        """The questions about the pictures."""

    def __len__(self) -> int:
        """The number of pairs."""

    def pictures(self, size: int) -> torch.Tensor:
        """All pictures, grey, float32 [pairs, 1, size, size] in 0..1."""


@dataclass(frozen=True)
class DrawnPairs:
    """See `PublicPairs`."""

    scenes: tuple[Scene, ...]

    def __len__(self) -> int:
        return len(self.scenes)

    @property
    def captions(self) -> tuple[str, ...]:
        """The findings of each picture in words. Pictures with the same findings have the same caption."""
        return tuple(_caption(scene) for scene in self.scenes)

    @property
    def questions(self) -> PublicQuestions:
        """The questions that come in opposite pairs: words alone are right half of the time, as in the phantom set."""
        rows = [row for anatomy in ORGANS for kind in QUESTIONS for row in self._opposites(anatomy, kind)]
        pictures, questions, answers = zip(*rows, strict=True) if rows else ((), (), ())
        return PublicQuestions(pictures, questions, answers)

    def pictures(self, size: int) -> torch.Tensor:
        """All pictures, grey, float32 [pairs, 1, size, size] in 0..1."""
        return torch.stack([square(draw(scene), size) for scene in self.scenes]).float()

    def _opposites(self, anatomy: str, kind: str) -> Iterator[tuple[int, str, str]]:
        """Rows of picture, question and answer. Of each two, one has the first answer and the other the second."""
        question = QUESTIONS[kind]
        scenes = [(number, scene) for number, scene in enumerate(self.scenes) if scene.anatomy == anatomy]
        sides = [[number for number, scene in scenes if question.truth(scene) is truth] for truth in (True, False)]
        for place, pair in enumerate(zip(*sides, strict=False)):
            words = question.wordings[place % len(question.wordings)]
            words = words.format(anatomy=anatomy, organ=ENLARGED[anatomy])
            yield from ((number, words, answer) for number, answer in zip(pair, question.answers, strict=True))


def drawn_pairs(count: int, seed: int = PUBLIC_SEED) -> DrawnPairs:
    """The first `count` pairs: anatomies in turn, three in four with a mass, findings as often as their opposites."""
    generator = np.random.default_rng(seed)
    return DrawnPairs(tuple(_scene(ORGANS[number % len(ORGANS)], generator) for number in range(count)))


def _scene(anatomy: str, generator: np.random.Generator) -> Scene:
    body, (enlarged, *finding) = Body.random(generator), (generator.random(5) < 0.5).tolist()
    mass = Mass(*finding) if generator.random() < 0.75 else None
    return Scene(anatomy, body, enlarged, mass, seed=int(generator.integers(2**32)))


def _caption(scene: Scene) -> str:
    words = f"{scene.anatomy}, {'enlarged' if scene.enlarged else 'normal'} {ENLARGED[scene.anatomy]}, "
    if scene.mass is None:
        return words + "no mass"
    number = "two" if scene.mass.two else "one"
    size, tone = "large" if scene.mass.large else "small", "bright" if scene.mass.bright else "dark"
    return words + f"{number} {size} {tone} mass on the {'left' if scene.mass.left else 'right'} side"


QUESTIONS_FILE = "questions.csv"


@dataclass(frozen=True)
class FolderPairs:
    """Pictures and captions of a folder, pair by pair; see `PublicPairs`."""

    paths: tuple[Path, ...]
    captions: tuple[str, ...]
    questions: PublicQuestions

    def __len__(self) -> int:
        return len(self.paths)

    def pictures(self, size: int) -> torch.Tensor:
        """All pictures, grey, float32 [pairs, 1, size, size] in 0..1. Raises `DataError`, which gives a pair's
        number.
        """
        return torch.stack([load_image(path, size, number) for number, path in enumerate(self.paths)])

    def part(self, first: int, count: int) -> "FolderPairs":
        """`count` pairs from the pair `first` on, with the questions about them. Raises `ConfigError` without them."""
        if first + count > len(self):
            raise ConfigError(f"the public set has {len(self)} pictures, of which the job needs {first + count}")
        asked = self.questions
        kept = [row for row, picture in enumerate(asked.pictures) if first <= picture < first + count]
        questions = PublicQuestions(
            tuple(asked.pictures[row] - first for row in kept),
            tuple(asked.questions[row] for row in kept),
            tuple(asked.answers[row] for row in kept),
        )
        return FolderPairs(self.paths[first : first + count], self.captions[first : first + count], questions)


def public_pairs(count: int, digest: str | None = None) -> PublicPairs:
    """The first `count` pairs of the drawn set, or of the set with this digest. Raises what `own_pairs` raises."""
    return drawn_pairs(count) if digest is None else own_pairs(digest).part(0, count)


def held_out_pairs(count: int, digest: str | None = None, learned: int = 0) -> PublicPairs:
    """`count` pairs that are not among the first `learned` ones, for tests."""
    return drawn_pairs(count, TEST_SEED) if digest is None else own_pairs(digest).part(learned, count)


def own_pairs(digest: str) -> FolderPairs:
    """The set with this digest. Raises `ConfigError` if its folder is not known here, `DataError` for its faults."""
    folder = os.environ.get(PUBLIC_FOLDER)
    if not folder:
        where = f"${PUBLIC_FOLDER}, or at a site as public_set in site.yml"
        raise ConfigError(f"the job learns from a public set that this machine lacks: name its folder in {where}")
    found, pairs = read_public(Path(folder))
    if found != digest:
        raise ConfigError("the public set on this machine is not the job's: `medfedvqa data check` prints its digest")
    return pairs


@lru_cache(maxsize=2)
def read_public(folder: Path) -> tuple[str, FolderPairs]:
    """A folder's digest and pairs. Raises `DataError`, which names a line by its number."""
    pairs = list(_rows(folder / PAIRS, ("picture", "caption")))
    numbers = {name: number for number, (name, _) in enumerate(pairs)}
    if len(numbers) < len(pairs):
        raise DataError(f"{PAIRS} names a picture twice: give each picture one line")
    asked = (
        list(_rows(folder / QUESTIONS_FILE, ("picture", "question", "answer")))
        if (folder / QUESTIONS_FILE).exists()
        else []
    )
    if not {name for name, *_ in asked} <= numbers.keys():
        raise DataError(f"{QUESTIONS_FILE} asks about a picture that {PAIRS} does not have")
    paths = tuple(_picture(folder, name, line) for line, name in enumerate(numbers, 2))
    content = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    questions = [(numbers[name], question, answer) for name, question, answer in asked]
    facts = json.dumps([content, [caption for _, caption in pairs], questions]).encode()
    columns = zip(*questions, strict=True) if questions else ((), (), ())
    return f"sha256:{hashlib.sha256(facts).hexdigest()}", FolderPairs(
        paths, tuple(caption for _, caption in pairs), PublicQuestions(*map(tuple, columns))
    )


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[list[str]]:
    if not path.is_file():
        raise DataError(f"the public set has no {path.name}: give it one with the columns {', '.join(columns)}")
    try:
        lines = read_bounded(path, MAX_DOCUMENT).decode("utf-8-sig").splitlines()
    except (OSError, ValueError):
        raise DataError(f"{path.name} of the public set cannot be read as UTF-8 text") from None
    for line, row in enumerate(islice(csv.DictReader(lines), MOST_PAIRS), 2):
        values = [(row.get(column) or "").strip() for column in columns]
        if not all(values) or any(len(value) > MOST_CHARACTERS for value in values):
            needed = f"{', '.join(columns)}, each of 1 to {MOST_CHARACTERS} characters"
            raise DataError(f"{path.name}, line {line}: this line needs {needed}")
        yield values


def _picture(folder: Path, name: str, line: int) -> Path:
    path = folder / name
    if not path.is_relative_to(folder) or ".." in Path(name).parts or not path.is_file():
        raise DataError(f"{PAIRS}, line {line}: the folder lacks this picture")
    return path
