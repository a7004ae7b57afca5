"""Data sets as the tests of this package need them: the published ones, and small ones on disk."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from medfedvqa.data import VQAData, read

RawRow = dict[str, Any]


@pytest.fixture(scope="session")
def vqa_rad(data_folder: Path) -> VQAData:
    """VQA-RAD as published."""
    return read("vqa-rad", data_folder / "vqa-rad")


@pytest.fixture(scope="session")
def slake(data_folder: Path) -> VQAData:
    """SLAKE's English rows as published."""
    return read("slake", data_folder / "slake")


@pytest.fixture
def raw_row() -> Callable[..., RawRow]:
    """A sound row in VQA-RAD's layout; keywords change its fields."""

    def make(**changes: object) -> RawRow:
        return {
            "image_organ": "CHEST",
            "phrase_type": "freeform",
            "answer_type": "CLOSED",
            "question": "Is this a SECRET question?",
            "answer": "SECRET yes",
            "image_case_url": "https://case/SECRET-1",
            "image_name": "SECRET-1.jpg",
            **changes,
        }

    return make


@pytest.fixture
def publish(tmp_path: Path) -> Callable[..., Path]:
    """Writes rows and grey JPEGs in VQA-RAD's layout and returns the root."""

    def write(rows: object, images: Sequence[str] = ("SECRET-1.jpg",)) -> Path:
        root = tmp_path / "SECRET-folder"
        (root / "VQA_RAD Image Folder").mkdir(parents=True)
        (root / "VQA_RAD Dataset Public.json").write_text(json.dumps(rows), encoding="utf-8")
        pixels = np.arange(64 * 48, dtype=np.uint8).reshape(64, 48)
        for name in images:
            Image.fromarray(pixels).save(root / "VQA_RAD Image Folder" / name)
        return root

    return write


@pytest.fixture
def publish_slake(tmp_path: Path) -> Callable[[Mapping[str, list[RawRow]]], Path]:
    """Writes the three files of SLAKE's layout, without images, and returns the root."""

    def write(splits: Mapping[str, list[RawRow]]) -> Path:
        for split in ("train", "validate", "test"):
            (tmp_path / f"{split}.json").write_text(json.dumps(splits.get(split, [])), encoding="utf-8")
        return tmp_path

    return write
