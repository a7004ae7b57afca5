"""The review of what was found in pictures: a sheet to look at, and the decisions of persons.

Sheet and decisions lie in the folder of finds beside the store, which stays on the site. The next ingestion reads the
pictures with new decisions again and applies them.
"""

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from audits.html import Html, join, tag
from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.find_list import FindId, RecordedFind, RecordedFinds, folder_of_finds, read_finds
from medfedvqa.ingest.store import Count, Keyed, StrictModel, read_manifest, read_store
from medfedvqa.ingest.text_finds import Decision

DECISIONS, SHEET = "decisions.jsonl", "review.html"
MOST_NAME = 80
Box = Annotated[list[Count], Field(min_length=4, max_length=4)]


class Verdict(StrEnum):
    """What a person decides about a find."""

    KEEP = "keep"
    BLANK = "blank"
    QUARANTINE = "quarantine"


class PersonDecision(StrictModel):
    """One decision."""

    image: Keyed
    find: FindId
    box: Box
    side: Count
    """The most pixels a side of the stored picture in which the box is."""
    verdict: Verdict = Field(strict=False)
    by: Annotated[str, Field(min_length=1, max_length=MOST_NAME)]
    time: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


def decide(store: Path, by: str, verdicts: Mapping[Verdict, Iterable[str]]) -> int:
    """Records a person's decisions about finds, by their ids, and returns how many.

    Raises `ConfigError` without a name or for an id that has two verdicts, `DataError` for an id that this store does
    not have; then nothing is recorded.
    """
    if not 1 <= len(by.strip()) <= MOST_NAME:
        raise ConfigError(f"a decision needs the name of who takes it, of at most {MOST_NAME} letters: give it by --by")
    named = [(find, verdict) for verdict, finds in verdicts.items() for find in finds]
    if len({find for find, _ in named}) != len(named):
        raise ConfigError("a find is named twice: give it one decision")
    folder = folder_of_finds(store)
    present = {find.id: (finds.image, find) for finds in reviewed_finds(store) for find in finds.finds}
    if any(find not in present for find, _ in named):
        raise DataError("this store has no find of that id: the review sheet of this store lists them")
    side = read_manifest(store).options.side
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    taken = [
        PersonDecision(
            image=present[find][0],
            find=find,
            box=present[find][1].box,
            side=side,
            verdict=verdict,
            by=by.strip(),
            time=moment,
        )
        for find, verdict in named
    ]
    content = "".join(decision.model_dump_json() + "\n" for decision in [*read_decisions(folder), *taken])
    write_whole(folder / DECISIONS, content.encode(), PRIVATE)
    return len(taken)


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


def decisions_by_image(folder: Path, side: int) -> dict[str, list[dict[str, Any]]]:
    """The newest decision about each find, as a worker applies it: box and verdict.

    Decisions about pictures of another `side` do not count, since their boxes mean other pixels.
    """
    newest: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for decision in read_decisions(folder):
        if decision.side == side:
            newest[decision.image][decision.find] = {"box": decision.box, "verdict": decision.verdict.value}
    return {image: [finds[find] for find in sorted(finds)] for image, finds in newest.items()}


def digest_of(decisions: list[dict[str, Any]]) -> str:
    """A digest by which a record tells whether these decisions were applied; empty without decisions."""
    return hashlib.sha256(json.dumps(decisions).encode()).hexdigest()[:16] if decisions else ""


def reviewed_finds(store: Path) -> list[RecordedFinds]:
    """The finds in the pictures of a store. Raises `DataError` if there is no store."""
    _, images, _ = read_store(store)
    return [finds for finds in read_finds(folder_of_finds(store)) if finds.image in images]


def write_sheet(store: Path) -> tuple[Path, int, int]:
    """Writes the sheet of all finds, open flags first. Returns its path, and the number of finds and of open flags."""
    finds, folder = reviewed_finds(store), folder_of_finds(store)
    decided = {decision.find: decision for decision in read_decisions(folder)}
    entries = [(picture.image, find) for picture in finds for find in picture.finds]
    entries.sort(key=lambda entry: (entry[1].decision != Decision.FLAGGED, entry[0], entry[1].id))
    flags = sum(find.decision == Decision.FLAGGED for _, find in entries)
    rows = [_row(image, find, decided.get(find.id)) for image, find in entries]
    if rows:
        write_whole(folder / SHEET, ("<!doctype html>\n" + _page(rows, flags)).encode(), PRIVATE)
    return folder / SHEET, len(entries), flags


def _page(rows: list[Html], flags: int) -> str:
    headings = tag("tr", *(tag("th", text) for text in ("find", "as it was", "read", "kind", "now", "decided by")))
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("title", "Review of finds"),
        tag("style", Html(_STYLE)),
    )
    body = tag(
        "body",
        tag("h1", "Review of finds in pictures"),
        tag(
            "p", "This sheet shows identifiers of patients. It stays on this site. ", tag("b", f"Open flags: {flags}.")
        ),
        tag(
            "p",
            "Decide: medfedvqa ingest review STORE --by NAME --keep ID --blank ID --quarantine ID, then ingest again.",
        ),
        tag("table", tag("thead", headings), tag("tbody", *rows)),
    )
    return tag("html", head, body, lang="en")


_STYLE = (
    "body{font:15px sans-serif;margin:2rem}table{border-collapse:collapse}th,td{border:1px solid #999;padding:.4rem;"
    "text-align:left}img{max-width:24rem;max-height:8rem}.flagged{background:#fff3c4}"
)


def _row(image: str, find: RecordedFind, decision: PersonDecision | None) -> Html:
    shown = tag("img", src=f"data:image/png;base64,{find.crop}", alt="the find and its surroundings")
    decided = f"{decision.verdict.value}, {decision.by}, {decision.time}" if decision else ""
    name = join([tag("code", find.id), tag("br"), tag("small", f"picture {image[:8]}")])
    cells = (name, shown, f"{find.reading} ({find.confidence:.2f})", find.kind.value, find.decision.value, decided)
    return tag("tr", *(tag("td", cell) for cell in cells), class_=find.decision.value)
