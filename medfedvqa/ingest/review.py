"""The decisions of persons about what was found in pictures.

They lie in the folder of finds beside the store, which stays on the site. The next ingestion reads the pictures with
new decisions again and applies them.
"""

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError
from pydicom import dcmread
from pydicom.errors import InvalidDicomError

from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.find_list import FindId, RecordedFind, RecordedFinds, find_id, folder_of_finds, read_finds
from medfedvqa.ingest.store import PICTURES, Count, Keyed, StrictModel, read_store
from medfedvqa.ingest.text_finds import Decision

DECISIONS = "decisions.jsonl"
NO_PICTURE = "this store has no picture of that id: the review sheet of this store names them"
NO_BOX = (0, 0, 0, 0)
"""The box of a decision about a whole picture."""
MOST_NAME = 80
Box = Annotated[list[Count], Field(min_length=4, max_length=4)]


class ReviewVerdict(StrEnum):
    """What a person decides about a find, or about a whole picture."""

    KEEP = "keep"
    BLANK = "blank"
    QUARANTINE = "quarantine"
    ACCEPT = "accept"
    """The picture as the sheet shows it, with all that was found in it."""


class PersonDecision(StrictModel):
    """One decision."""

    store: Keyed
    """The fingerprint of the store's key: a decision counts for this store alone."""
    image: Keyed
    find: FindId
    """The find; of an accepted picture, the id of the empty box."""
    box: Box
    side: Count
    """The most pixels a side of the stored picture in which the box is."""
    verdict: ReviewVerdict = Field(strict=False)
    finds: list[FindId] = []
    """All finds that were shown to the person who accepted the picture."""
    by: Annotated[str, Field(min_length=1, max_length=MOST_NAME)]
    time: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


def decide(
    store: Path,
    by: str,
    verdicts: Mapping[ReviewVerdict, Iterable[str]],
    added: Iterable[tuple[str, Sequence[int]]] = (),
    accepted: Iterable[str] = (),
) -> int:
    """Records a person's decisions and returns how many.

    `verdicts`: finds by their ids. `added`: further boxes to blank, each with the id of its picture, in pixels of the
    stored picture. `accepted`: pictures that are as they should be, by their ids, or `all`.
    Raises `ConfigError` without a name, for an id that has two verdicts and for a box outside of its picture,
    `DataError` for an id that this store does not have and for an accepted picture with an open flag; then nothing is
    recorded.
    """
    if not 1 <= len(by.strip()) <= MOST_NAME:
        raise ConfigError(f"a decision needs the name of who takes it, of at most {MOST_NAME} letters: give it by --by")
    manifest, images, _ = read_store(store)
    folder, moment = folder_of_finds(store), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    earlier = _of_store(read_decisions(folder), manifest.key)
    facts: dict[str, Any] = {"store": manifest.key, "side": manifest.options.side, "by": by.strip(), "time": moment}

    def decision(image: str, box: Sequence[int], verdict: ReviewVerdict, finds: Iterable[str] = ()) -> PersonDecision:
        name = find_id(image, (box[0], box[1], box[2], box[3]))
        return PersonDecision(image=image, find=name, box=list(box), verdict=verdict, finds=sorted(finds), **facts)

    recorded = {finds.image: finds.finds for finds in reviewed_finds(store)}
    taken = [decision(image, box, verdict) for image, box, verdict in _about_finds(recorded, verdicts)]
    for image, box in added:
        _check_box(store, images, image, box)
        taken.append(decision(image, box, ReviewVerdict.BLANK))
    for image in images if (names := list(accepted)) == ["all"] else names:
        if image not in images:
            raise DataError(NO_PICTURE)
        present = {find.id: find for find in recorded.get(image, [])}
        decided = {each.find for each in [*earlier, *taken] if each.image == image}
        if any(find.decision == Decision.FLAGGED and name not in decided for name, find in present.items()):
            raise DataError("a picture with an open flag cannot be accepted: decide about its flags first")
        taken.append(decision(image, NO_BOX, ReviewVerdict.ACCEPT, present))
    content = "".join(each.model_dump_json() + "\n" for each in [*earlier, *taken])
    write_whole(folder / DECISIONS, content.encode(), PRIVATE)
    return len(taken)


def _about_finds(
    recorded: Mapping[str, list[RecordedFind]], verdicts: Mapping[ReviewVerdict, Iterable[str]]
) -> list[tuple[str, list[int], ReviewVerdict]]:
    """Picture, box and verdict of each find that is named. Raises as `decide` does."""
    named = [(find, verdict) for verdict, finds in verdicts.items() for find in finds]
    if len({find for find, _ in named}) != len(named):
        raise ConfigError("a find is named twice: give it one decision")
    present = {find.id: (image, find.box) for image, finds in recorded.items() for find in finds}
    if any(find not in present for find, _ in named):
        raise DataError("this store has no find of that id: the review sheet of this store lists them")
    return [(*present[find], verdict) for find, verdict in named]


def _check_box(store: Path, images: Collection[str], image: str, box: Sequence[int]) -> None:
    """Raises `DataError` for a picture that the store does not have, `ConfigError` for a box outside of it."""
    if image not in images:
        raise DataError(NO_PICTURE)
    height, width = stored_picture(store, image).shape
    if len(box) != 4 or not (0 <= box[0] < box[2] <= width and 0 <= box[1] < box[3] <= height):
        raise ConfigError("a box is left, top, right, bottom in pixels of the stored picture, and lies within it")


def stored_picture(store: Path, image: str) -> np.ndarray:
    """The stored picture of this id, uint8 [height, width]. Raises `DataError`."""
    try:
        picture: np.ndarray = dcmread(store / PICTURES / f"{image}.dcm").pixel_array
    except (OSError, InvalidDicomError):
        raise DataError("a picture of the store is missing or damaged: run medfedvqa ingest again") from None
    return picture


def _of_store(decisions: list[PersonDecision], key: str) -> list[PersonDecision]:
    """The decisions. Raises `DataError` if one was taken about another store."""
    if any(decision.store != key for decision in decisions):
        raise DataError("the decisions beside the store are of another store: put this store's own back")
    return decisions


def read_decisions(folder: Path) -> list[PersonDecision]:
    """All decisions in the order in which they were taken. Raises `DataError`."""
    path = folder / DECISIONS
    if not path.exists():
        return []
    try:
        return [PersonDecision.model_validate_json(line) for line in path.read_bytes().splitlines()]
    except (OSError, ValidationError):
        raise DataError("the decisions beside the store are damaged: restore them from the backup") from None


def keep_decisions(folder: Path, images: Collection[str]) -> None:
    """Removes the decisions about all pictures but these."""
    kept = [decision for decision in read_decisions(folder) if decision.image in images]
    if (folder / DECISIONS).exists():
        content = "".join(decision.model_dump_json() + "\n" for decision in kept)
        write_whole(folder / DECISIONS, content.encode(), PRIVATE)


def decisions_by_image(folder: Path, side: int, key: str) -> dict[str, list[dict[str, Any]]]:
    """The newest decision about each find and each picture, as a worker applies it: box, verdict, accepted finds.

    Decisions about pictures of another `side` do not count, since their boxes mean other pixels. Raises `DataError` for
    decisions about a store with another key than that of this fingerprint.
    """
    newest: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for decision in _of_store(read_decisions(folder), key):
        if decision.side == side:
            facts = {"box": decision.box, "verdict": decision.verdict.value, "finds": decision.finds}
            newest[decision.image][decision.find] = facts
    return {image: [finds[find] for find in sorted(finds)] for image, finds in newest.items()}


def digest_of(decisions: list[dict[str, Any]]) -> str:
    """A digest by which a record tells whether these decisions were applied; empty without decisions."""
    return hashlib.sha256(json.dumps(decisions).encode()).hexdigest()[:16] if decisions else ""


def reviewed_finds(store: Path) -> list[RecordedFinds]:
    """The finds in the pictures of a store. Raises `DataError` if there is no store."""
    _, images, _ = read_store(store)
    return [finds for finds in read_finds(folder_of_finds(store)) if finds.image in images]
