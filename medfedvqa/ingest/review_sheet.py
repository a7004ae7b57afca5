"""The sheet of a review: every picture of a store before and after cleaning, and every find with its crop.

It lies in the folder of finds beside the store and shows identifiers: it stays on the site. It needs no network.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np

from audits.escaping import Html, join, tag
from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.errors import DataError
from medfedvqa.ingest.device_masks import BlankedBoxes, proposals
from medfedvqa.ingest.find_list import RecordedFind, RecordedFinds, encoded, folder_of_finds
from medfedvqa.ingest.review import PersonDecision, read_decisions, reviewed_finds, stored_picture
from medfedvqa.ingest.store import Image, read_store
from medfedvqa.ingest.text_finds import Decision, FindKind

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
    order = sorted(images.values(), key=lambda image: (not image.flags, image.id not in recorded, image.id))
    pages = [order[start : start + PER_PAGE] for start in range(0, len(order), PER_PAGE)] or [[]]
    flags, finds = sum(image.flags for image in order), sum(len(each.finds) for each in recorded.values())
    for old in folder.glob("review*.html"):
        old.unlink()
    for number, page in enumerate(pages, 1):
        sections = _proposals(store, recorded.values()) if number == 1 else []
        sections += [_section(store, image, recorded.get(image.id), decided) for image in page]
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
) -> Html:
    after = stored_picture(store, image.id)
    height, width = after.shape
    status = "reviewed" if image.reviewed else f"open flags: {image.flags}" if image.flags else "not reviewed"
    figures = [_figure("as it is stored", encoded(after, ".jpg"), "jpeg", width)]
    table = None
    if recorded is not None:
        figures.insert(0, _figure("before", _outlined(recorded), "jpeg", width))
        names = ("find", "as it was", "read", "kind", "now", "decided by")
        rows = [_row(find, decided.get((image.id, find.id))) for find in _in_order(recorded.finds)]
        table = tag("table", tag("thead", tag("tr", *(tag("th", name) for name in names))), tag("tbody", *rows))
    title = tag("h2", "picture ", tag("code", image.id))
    return tag("section", title, tag("p", f"{width} x {height} pixels, {status}"), *figures, table)


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


def _row(find: RecordedFind, decision: PersonDecision | None) -> Html:
    crop = tag("img", src=_inline("png", find.crop), alt="the find and its surroundings")
    decided = f"{decision.verdict.value}, {decision.by}, {decision.time}" if decision else ""
    box = ", ".join(map(str, find.box))
    name = join([tag("code", find.id), tag("br"), tag("small", f"box {box}")])
    cells = (name, crop, f"{find.reading} ({find.confidence:.2f})", find.kind.value, find.decision.value, decided)
    return tag("tr", *(tag("td", cell) for cell in cells), class_=find.decision.value)
