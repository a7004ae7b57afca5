"""The reader of a site's store, which `medfedvqa ingest` makes."""

import hashlib
from collections.abc import Mapping
from functools import partial
from io import BytesIO
from pathlib import Path

import torch

from medfedvqa.data.images import square
from medfedvqa.data.schema import Row, VQAData
from medfedvqa.errors import DataError
from medfedvqa.ingest.organs import in_order
from medfedvqa.ingest.store import PICTURES, Image, read_store


def read(root: Path) -> VQAData:
    """All rows, each a closed question. The patient is the pseudonym. Raises `DataError`."""
    _, images, store_rows = read_store(root)
    if not store_rows:
        raise DataError("the store has no questions: see its quarantine list, then run medfedvqa ingest again")
    rows = [
        Row(
            index=row.index,
            organ=row.organ,
            split=row.split,
            closed=True,
            question=row.question,
            answer=row.answer,
            patient=images[row.image].patient,
            image=root / PICTURES / f"{row.image}.dcm",
        )
        for row in store_rows
    ]
    digests = {root / PICTURES / f"{image.id}.dcm": image for image in images.values()}
    organs = in_order({row.organ for row in rows})
    return VQAData("store", organs, rows, partial(_load, digests), publishes_validation=True)


def check_reviewed(root: Path) -> None:
    """Raises `DataError` unless a person has accepted every picture of the store as it is."""
    _, images, _ = read_store(root)
    if any(image.flags for image in images.values()):
        raise DataError("marks in the store's pictures await a decision: run medfedvqa ingest review")
    if not all(image.reviewed for image in images.values()):
        raise DataError(
            "the store has pictures that nobody has accepted: run medfedvqa ingest review, then ingest again"
        )


def _load(images: Mapping[Path, Image], row: Row, size: int) -> torch.Tensor:
    """The row's picture as float32 [1, size, size] in 0..1. Raises `DataError` unless it fits the manifest."""
    from pydicom import dcmread

    try:
        content = row.image.read_bytes()
    except OSError:
        raise DataError(f"row {row.index}: its image file is missing") from None
    if hashlib.sha256(content).hexdigest() != images[row.image].sha256:
        raise DataError(f"row {row.index}: its image does not match the manifest: run medfedvqa ingest again")
    return square(dcmread(BytesIO(content)).pixel_array, size) / 255.0
