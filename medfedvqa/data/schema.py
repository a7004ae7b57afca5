"""The result of every reader: a data set and its rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from medfedvqa.errors import DataError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Row:
    """One question about one image. Its repr never shows the text, the patient or the path."""

    index: int
    """The position in the published files in order, from 0. Messages identify a row only by it."""
    organ: str
    split: str
    """`train`, `validate` or `test`, as published."""
    closed: bool
    question: str = field(repr=False)
    answer: str = field(repr=False)
    """Never empty where `closed`."""
    patient: str = field(repr=False)
    """The privacy unit: VQA-RAD's case, SLAKE's image, the phantom's patient."""
    image: Path = field(repr=False)
    """The picture's file, or the picture's name in a set that draws its pictures."""
    question_type: str = field(default="", repr=False)
    """What the question asks for, as published; empty where the set does not say."""
    modality: str = field(default="", repr=False)
    """How the picture was taken, as published; empty where the set does not say."""
    captioned: bool = False
    """Whether the row is a pair of picture and caption. Then question and answer both are the caption."""

    def __post_init__(self) -> None:
        if not self.patient.strip():
            raise DataError(f"row {self.index} names no patient: privacy is kept by patient, so every row needs one")


def load_file(row: Row, size: int) -> "torch.Tensor":
    """The row's picture from its file, as float32 [1, size, size] in 0..1. Raises `DataError`."""
    from medfedvqa.data.images import load_image  # with torch, which a check of tables does not need

    return load_image(row.image, size, row.index)


def load_coloured_file(row: Row, size: int) -> "torch.Tensor":
    """Like `load_file`, but [3, size, size] for a file that has colour."""
    from medfedvqa.data.images import load_image

    return load_image(row.image, size, row.index, colour=True)


@dataclass(frozen=True)
class VQAData:
    """A data set: rows in published order, organs in the order of its sites."""

    name: str
    organs: tuple[str, ...]
    rows: Sequence[Row] = field(repr=False)
    load: "Callable[[Row, int], torch.Tensor]" = field(default=load_file, repr=False)
    """A row's picture at a size in pixels, as float32 [1, size, size] in 0..1."""
    load_coloured: "Callable[[Row, int], torch.Tensor] | None" = field(default=None, repr=False)
    """Like `load`, but [3, size, size] for a picture that has colour. None: pictures have the colour of their files if
    `load` is the default, and else none."""
    publishes_validation: bool | frozenset[str] = False
    """Whether the set publishes validation rows, or for which organs. It is a fact about the set that no single
    patient's rows decide."""
    features: tuple[str, ...] = ()
    """The names of a table's features, in the order in which `load` gives them; none where rows are about pictures."""

    def validates(self, organ: str) -> bool:
        """Whether validation rows of this organ are published."""
        published = self.publishes_validation
        return published if isinstance(published, bool) else organ in published

    @property
    def coloured(self) -> "Callable[[Row, int], torch.Tensor]":
        """The function that loads a row's picture with its colour, if there is any."""
        return self.load_coloured or (load_coloured_file if self.load is load_file else self.load)
