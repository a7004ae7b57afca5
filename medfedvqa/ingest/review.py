"""The decisions of persons about what was found in pictures, and the sheet on which they see it.

They lie in the folder of finds beside the store, which stays on the site. The next ingestion reads the pictures with
new decisions again and applies them.

It lies in the folder of finds beside the store and shows identifiers: it stays on the site. It needs no network.
"""

import base64
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
from pydantic import Field, ValidationError
from pydicom import dcmread
from pydicom.errors import InvalidDicomError

from audits.escaping import Html, join, tag
from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.device_masks import BlankedBoxes, proposals
from medfedvqa.ingest.find_list import (
    Decision,
    FindId,
    FindKind,
    RecordedFind,
    RecordedFinds,
    encoded,
    find_id,
    folder_of_finds,
    read_finds,
)
from medfedvqa.ingest.store import FILE_DIGITS, PICTURES, Count, Image, Keyed, StrictModel, read_store

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
    frame: Count | None = None
    """The number of the picture's frame, to which alone the decision applies; None in those of earlier versions."""
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

    `verdicts`: finds by their ids; each holds for all equal finds in frames of its file, and is recorded for each of
    them. `added`: further boxes to blank, each with the id of its picture, in pixels of the stored picture.
    `accepted`: pictures that are as they should be, by their ids, or `all`.
    Raises `ConfigError` without a name, for an id that has two verdicts and for a box outside of its picture,
    `DataError` for an id that this store does not have and for an accepted picture with an open flag; then nothing is
    recorded.
    """
    if not 1 <= len(by.strip()) <= MOST_NAME:
        raise ConfigError(f"a decision needs the name of its author, at most {MOST_NAME} letters: give it by --by")
    manifest, images, _ = read_store(store)
    folder, moment = folder_of_finds(store), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    earlier = _of_store(read_decisions(folder), manifest.key)
    facts: dict[str, Any] = {"store": manifest.key, "side": manifest.options.side, "by": by.strip(), "time": moment}

    def decision(image: str, box: Sequence[int], verdict: ReviewVerdict, finds: Iterable[str] = ()) -> PersonDecision:
        frame, name = images[image].frame, find_id(image, (box[0], box[1], box[2], box[3]))
        return PersonDecision(
            image=image, frame=frame, find=name, box=list(box), verdict=verdict, finds=sorted(finds), **facts
        )

    present = reviewed_finds(store)
    recorded = {finds.image: finds.finds for finds in present}
    taken = [decision(image, box, verdict) for image, box, verdict in _about_finds(present, verdicts)]
    for image, box in added:
        _check_box(store, images, image, box)
        taken.append(decision(image, box, ReviewVerdict.BLANK))
    for image in images if (names := list(accepted)) == ["all"] else names:
        if image not in images:
            raise DataError(NO_PICTURE)
        shown = {find.id: find for find in recorded.get(image, [])}
        decided = {each.find for each in [*earlier, *taken] if each.image == image}
        if any(find.decision == Decision.FLAGGED and name not in decided for name, find in shown.items()):
            raise DataError("a picture with an open flag cannot be accepted: decide about its flags first")
        taken.append(decision(image, NO_BOX, ReviewVerdict.ACCEPT, shown))
    content = "".join(each.model_dump_json() + "\n" for each in [*earlier, *taken])
    write_whole(folder / DECISIONS, content.encode(), PRIVATE)
    return len(taken)


def _about_finds(
    recorded: Iterable[RecordedFinds], verdicts: Mapping[ReviewVerdict, Iterable[str]]
) -> list[tuple[str, list[int], ReviewVerdict]]:
    """Picture, box and verdict of each find that is named, or equals it. Raises as `decide` does."""
    named, equal = [(find, verdict) for verdict, finds in verdicts.items() for find in finds], _equal_finds(recorded)
    if any(find not in equal for find, _ in named):
        raise DataError("this store has no mark with that id: its review sheet lists them")
    if len({id(equal[find]) for find, _ in named}) != len(named):
        raise ConfigError("a mark is named twice: give one decision for it")
    return [(image, find.box, verdict) for name, verdict in named for image, find in equal[name]]


def _equal_finds(recorded: Iterable[RecordedFinds]) -> dict[str, list[tuple[str, RecordedFind]]]:
    """For the id of each find the finds, with their pictures, that equal it in the frames of its file, itself too.

    Equal finds have the same box, pixels, reading and decision: a person who sees one of them has seen all.
    """
    groups = defaultdict[object, list[tuple[str, RecordedFind]]](list)
    of_find: dict[str, list[tuple[str, RecordedFind]]] = {}
    for finds in recorded:
        for find in finds.finds:
            looks = find.model_dump_json(exclude={"id", "confidence"})
            group = of_find[find.id] = groups[finds.image[:FILE_DIGITS], looks]
            group.append((finds.image, find))
    return of_find


def _check_box(store: Path, images: Collection[str], image: str, box: Sequence[int]) -> None:
    """Raises `DataError` for a picture that the store does not have, `ConfigError` for a box outside of it."""
    if image not in images:
        raise DataError(NO_PICTURE)
    height, width = stored_picture(store, image).shape
    if len(box) != 4 or not (0 <= box[0] < box[2] <= width and 0 <= box[1] < box[3] <= height):
        raise ConfigError("a box must be left, top, right, bottom in pixels, within the stored picture")


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
        raise DataError("the decisions beside the store belong to another store: restore this store's decisions")
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
    """The newest decision about each find and each picture, as a worker applies it: frame, box, verdict, finds.

    Decisions about pictures of another `side` do not count, since their boxes mean other pixels. Raises `DataError` for
    decisions about a store with another key than that of this fingerprint.
    """
    newest: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for decision in _of_store(read_decisions(folder), key):
        if decision.side == side:
            facts = {"frame", "box", "verdict", "finds"}
            newest[decision.image][decision.find] = decision.model_dump(mode="json", include=facts)
    return {image: [finds[find] for find in sorted(finds)] for image, finds in newest.items()}


def digest_of(decisions: list[dict[str, Any]]) -> str:
    """A digest by which a record tells whether these decisions were applied; empty without decisions."""
    return hashlib.sha256(json.dumps(decisions).encode()).hexdigest()[:16] if decisions else ""


def reviewed_finds(store: Path) -> list[RecordedFinds]:
    """The finds in the pictures of a store. Raises `DataError` if there is no store."""
    _, images, _ = read_store(store)
    return [finds for finds in read_finds(folder_of_finds(store)) if finds.image in images]


SHEET = "review.html"
PER_PAGE = 200
"""Pictures on a page of the sheet; further pages are `review-2.html` and so on."""
COLOURS = {Decision.BLANKED: (60, 60, 230), Decision.FLAGGED: (0, 200, 255), Decision.KEPT: (90, 180, 60)}
"""The colours of the outlines of finds, as blue, green, red."""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE = (
    "body{font:15px sans-serif;margin:2rem;color:#222}table{border-collapse:collapse;margin:.6rem 0}"
    "th,td{border:1px solid #999;padding:.3rem .5rem;text-align:left}td img{max-width:24rem;max-height:8rem}"
    "figure{display:inline-block;margin:0 1rem .5rem 0}figcaption{font-size:13px}section{border-top:2px solid #ccc}"
    ".flagged{background:#fff3c4}code{font-size:13px}"
)


def write_sheet(store: Path) -> tuple[Path, int, int]:
    """Writes the sheet, pictures with open flags first, then those with finds, then the others.

    Returns the path of its first page, and the number of finds and of open flags. Raises `DataError`.
    """
    _, images, _ = read_store(store)
    folder, recorded = folder_of_finds(store), {finds.image: finds for finds in reviewed_finds(store)}
    decided = {(decision.image, decision.find): decision for decision in read_decisions(folder)}
    order = sorted(
        images.values(),
        key=lambda image: (not image.flags, image.id not in recorded, image.id[:FILE_DIGITS], image.frame),
    )
    pages = [order[start : start + PER_PAGE] for start in range(0, len(order), PER_PAGE)] or [[]]
    flags, finds = sum(image.flags for image in order), sum(len(each.finds) for each in recorded.values())
    for old in folder.glob("review*.html"):
        old.unlink()
    equal = _equal_finds(recorded[image.id] for image in order if image.id in recorded)
    for number, page in enumerate(pages, 1):
        sections = _proposals(store, recorded.values()) if number == 1 else []
        sections += [_section(store, image, recorded.get(image.id), decided, equal) for image in page]
        text = _page(sections, f"Finds: {finds}. Pictures: {len(order)}. Page {number} of {len(pages)}.", flags)
        write_whole(folder / _page_name(number), f"<!doctype html>\n{text}".encode(), PRIVATE)
    return folder / SHEET, finds, flags


def _page_name(number: int) -> str:
    return SHEET if number == 1 else f"review-{number}.html"


def _page(sections: Sequence[Html], summary: str, flags: int) -> Html:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", "Review of pictures"),
        tag("style", Html(_STYLE)),
    )
    guide = (
        "A find: --keep FIND, --blank FIND, --quarantine FIND. More to blank: --add PICTURE:LEFT,TOP,RIGHT,BOTTOM, "
        "in pixels of the stored picture. A picture that is as it should be: --accept PICTURE, or --accept all. "
        "All of them after medfedvqa ingest review STORE --by NAME; then ingest again."
    )
    body = tag(
        "body",
        tag("h1", "Review of pictures"),
        tag(
            "p", "This sheet shows identifiers of patients. It stays on this site. ", tag("b", f"Open flags: {flags}.")
        ),
        tag("p", summary),
        tag("p", guide),
        *sections,
    )
    return tag("html", head, body, lang="en")


def _proposals(store: Path, recorded: Iterable[RecordedFinds]) -> list[Html]:
    """Masks for boxes that were blanked again and again in pictures of one device; nothing without any."""
    pictures = (_boxes_in_original(finds, stored_picture(store, finds.image).shape) for finds in recorded)
    items = [tag("li", f"in {count} pictures", tag("pre", script)) for count, script in proposals(pictures)]
    return (
        [tag("section", tag("h2", "Masks that recurring boxes suggest, for --masks"), tag("ul", *items))]
        if items
        else []
    )


def _boxes_in_original(finds: RecordedFinds, stored: tuple[int, ...]) -> BlankedBoxes:
    rows, columns = finds.size
    x, y = columns / stored[1], rows / stored[0]
    blanked = [find.box for find in finds.finds if find.decision == Decision.BLANKED and find.kind != FindKind.REGION]
    boxes = [(int(box[0] * x), int(box[1] * y), round(box[2] * x), round(box[3] * y)) for box in blanked]
    return BlankedBoxes((finds.device[0], finds.device[1]), (rows, columns), tuple(boxes))


def _section(
    store: Path,
    image: Image,
    recorded: RecordedFinds | None,
    decided: Mapping[tuple[str, str], PersonDecision],
    equal: Mapping[str, Sequence[tuple[str, RecordedFind]]],
) -> Html:
    """A picture and its finds, but for those that an earlier section shows in another frame of its file."""
    after = stored_picture(store, image.id)
    height, width = after.shape
    status = "reviewed" if image.reviewed else f"open flags: {image.flags}" if image.flags else "not reviewed"
    figures = [_figure("as it is stored", encoded(after, ".jpg"), "jpeg", width)]
    table = None
    if recorded is not None:
        figures.insert(0, _figure("before", _outlined(recorded), "jpeg", width))
        names = ("find", "as it was", "read", "kind", "now", "decided by")
        rows = [
            _row(find, decided.get((image.id, find.id)), len(equal[find.id]))
            for find in _in_order(recorded.finds)
            if equal[find.id][0][1].id == find.id
        ]
        head = tag("thead", tag("tr", *(tag("th", name) for name in names)))
        table = tag("table", head, tag("tbody", *rows)) if rows else None
    title = tag("h2", "picture ", tag("code", image.id))
    frame = f", frame {image.frame + 1} of {image.frames}" if image.frames > 1 else ""
    return tag("section", title, tag("p", f"{width} x {height} pixels, {status}{frame}"), *figures, table)


def _in_order(finds: Sequence[RecordedFind]) -> Iterator[RecordedFind]:
    """Open flags first."""
    yield from sorted(finds, key=lambda find: (find.decision != Decision.FLAGGED, find.id))


def _figure(caption: str, content: str, kind: str, width: int) -> Html:
    return tag("figure", tag("img", src=_inline(kind, content), alt=caption, width=width), tag("figcaption", caption))


def _inline(kind: str, content: str) -> Html:
    """The address of an inline picture. It is markup, because a page cuts long values of others short."""
    return Html(f"data:image/{kind};base64,{content}")


def _outlined(recorded: RecordedFinds) -> str:
    """The picture before cleaning, with an outline around each find, as JPEG in base64."""
    picture = cv2.imdecode(np.frombuffer(base64.b64decode(recorded.before), np.uint8), cv2.IMREAD_COLOR)
    if picture is None:
        raise DataError("the list of finds beside the store is damaged: run medfedvqa ingest again")
    for find in recorded.finds:
        left, top, right, bottom = find.box
        cv2.rectangle(picture, (left, top), (right - 1, bottom - 1), COLOURS[find.decision], 1)
    return encoded(picture, ".jpg")


def _row(find: RecordedFind, decision: PersonDecision | None, frames: int) -> Html:
    crop = tag("img", src=_inline("png", find.crop), alt="the find and its surroundings")
    decided = f"{decision.verdict.value}, {decision.by}, {decision.time}" if decision else ""
    box = ", ".join(map(str, find.box))
    place = f"box {box}, the same in {frames} frames" if frames > 1 else f"box {box}"
    name = join([tag("code", find.id), tag("br"), tag("small", place)])
    cells = (name, crop, f"{find.reading} ({find.confidence:.2f})", find.kind.value, find.decision.value, decided)
    return tag("tr", *(tag("td", cell) for cell in cells), class_=find.decision.value)
