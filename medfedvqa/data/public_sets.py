"""The public set of a job: drawn, or a folder of one's own with pictures, captions and closed questions about them.

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

import torch

from audits.bounded_files import MAX_DOCUMENT, read_bounded
from medfedvqa.bounds import MOST_CHARACTERS, MOST_PAIRS, PUBLIC_FOLDER
from medfedvqa.bounds import PUBLIC_TABLE as PAIRS
from medfedvqa.data.images import load_image
from medfedvqa.data.public import PublicPairs, PublicQuestions, drawn_pairs, drawn_test_pairs
from medfedvqa.errors import ConfigError, DataError

QUESTIONS = "questions.csv"


@dataclass(frozen=True)
class FolderPairs:
    """Pictures and captions of a folder, pair by pair; see `PublicPairs`."""

    paths: tuple[Path, ...]
    captions: tuple[str, ...]
    questions: PublicQuestions

    def __len__(self) -> int:
        return len(self.paths)

    def pictures(self, size: int) -> torch.Tensor:
        """All pictures, grey, float32 [pairs, 1, size, size] in 0..1. Raises `DataError` with the number of one."""
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
    return drawn_test_pairs(count) if digest is None else own_pairs(digest).part(learned, count)


def own_pairs(digest: str) -> FolderPairs:
    """The set with this digest. Raises `ConfigError` if its folder is not known here, `DataError` for its faults."""
    folder = os.environ.get(PUBLIC_FOLDER)
    if not folder:
        where = f"${PUBLIC_FOLDER}, or at a site as public_set in site.yml"
        raise ConfigError(f"the job learns from a public set that is not here: name its folder in {where}")
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
    asked = list(_rows(folder / QUESTIONS, ("picture", "question", "answer"))) if (folder / QUESTIONS).exists() else []
    if not {name for name, *_ in asked} <= numbers.keys():
        raise DataError(f"{QUESTIONS} asks about a picture that {PAIRS} does not have")
    paths = tuple(_picture(folder, name, line) for line, name in enumerate(numbers, 2))
    content = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    questions = [(numbers[name], question, answer) for name, question, answer in asked]
    facts = json.dumps([content, [caption for _, caption in pairs], questions]).encode()
    columns = zip(*questions, strict=True) if questions else ((), (), ())
    return f"sha256:{hashlib.sha256(facts).hexdigest()}", FolderPairs(
        paths, tuple(caption for _, caption in pairs), PublicQuestions(*map(tuple, columns))
    )


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[list[str]]:
    try:
        lines = read_bounded(path, MAX_DOCUMENT).decode("utf-8-sig").splitlines()
    except (OSError, ValueError):
        raise DataError(f"{path.name} of the public set cannot be read as UTF-8 text") from None
    for line, row in enumerate(islice(csv.DictReader(lines), MOST_PAIRS), 2):
        values = [(row.get(column) or "").strip() for column in columns]
        if not all(values) or any(len(value) > MOST_CHARACTERS for value in values):
            needed = f"{', '.join(columns)}, each of 1 to {MOST_CHARACTERS} characters"
            raise DataError(f"{path.name}, line {line}: it needs {needed}")
        yield values


def _picture(folder: Path, name: str, line: int) -> Path:
    path = folder / name
    if not path.is_relative_to(folder) or ".." in Path(name).parts or not path.is_file():
        raise DataError(f"{PAIRS}, line {line}: there is no such picture in the folder")
    return path
