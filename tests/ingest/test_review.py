"""The review: a sheet of finds, decisions of persons, and what the next ingestion makes of them."""

import html
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset

from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.find_list import folder_of_finds
from medfedvqa.ingest.review import Verdict, decide, reviewed_finds, write_sheet
from medfedvqa.ingest.store import read_store


def film() -> np.ndarray:
    """Tissue with a name and a scribble that the reader cannot read, uint8 [256, 256]."""
    noise = np.random.default_rng(3).normal(size=(256, 256)).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), 12)
    pixels, generator = np.clip(110 + 25 * smooth / smooth.std(), 0, 255).astype(np.uint8), np.random.default_rng(3)
    for left in range(80, 171, 13):
        strokes = generator.uniform(0, 1, (5, 2)) * (10, 18) + (left, 118)
        cv2.polylines(pixels, [strokes.astype(np.int32)], False, 255, 2)
    return cv2.putText(pixels, "ANNA <B>", (60, 210), cv2.FONT_HERSHEY_SIMPLEX, 0.7, 255, 2)


@pytest.fixture(scope="module")
def ingested(tmp_path_factory, make_place, make_dicom: Callable[..., Dataset]):
    """A place with one film in its store."""
    place = make_place(tmp_path_factory.mktemp("review"))
    place.add("1.dcm", make_dicom(film(), PatientName="SECRET^Anna"))
    place.ask("1.dcm")
    assert place.ingest(side=256).counts.flagged == 1
    return place


def grey(store: Path) -> np.ndarray:
    (path,) = (store / "images").iterdir()
    return pydicom.dcmread(path).pixel_array


def find_of(store: Path, decision: str):
    """The first find in the store with this decision."""
    return next(find for finds in reviewed_finds(store) for find in finds.finds if find.decision == decision)


def test_the_sheet_shows_every_find_and_loads_nothing(ingested) -> None:
    """Flags come first; what was read is escaped; the page has mode 0600 and a policy that forbids everything else."""
    sheet, finds, flags = write_sheet(ingested.out)
    page = sheet.read_text()
    assert sheet.stat().st_mode & 0o777 == 0o600 and finds >= 2 and flags >= 1
    assert page.count("data:image/png;base64,") == finds and "http" not in page.replace("http-equiv", "")
    assert "default-src 'none'" in html.unescape(page)
    assert "<script" not in page and "<B>" not in page and "ANNA" in page
    assert page.index('class="flagged"') < page.index('class="blanked"')


def test_decisions_are_applied_by_the_next_ingestion(ingested, make_place, tmp_path: Path) -> None:
    """A flagged mark is blanked and a blanked one comes back, as a person decided; then clean pixels are claimed."""
    place = ingested
    before, flagged, blanked = grey(place.out), find_of(place.out, "flagged"), find_of(place.out, "blanked")
    left, top, right, bottom = flagged.box
    assert (before[top:bottom, left:right] > 0).all()
    assert decide(place.out, "Dr. Who", {Verdict.BLANK: [flagged.id], Verdict.KEEP: [blanked.id]}) == 2
    assert place.ingest(side=256).counts.flagged == 0
    after = grey(place.out)
    assert (after[top:bottom, left:right] == 0).all()
    left, top, right, bottom = blanked.box
    assert (before[top:bottom, left:right] == 0).all()
    # The stored picture has the film's contrast stretched, and nothing else.
    assert np.corrcoef(after[top:bottom, left:right].ravel(), film()[top:bottom, left:right].ravel())[0, 1] > 0.999
    page = write_sheet(place.out)[0].read_text()
    assert "blank, Dr. Who, 20" in page and "keep, Dr. Who, 20" in page
    (image,) = read_store(place.out)[1].values()
    dataset = pydicom.dcmread(place.out / "images" / f"{image.id}.dcm")
    assert image.flags == 0 and dataset.BurnedInAnnotation == "NO"
    decide(place.out, "Dr. Who", {Verdict.QUARANTINE: [find_of(place.out, "blanked").id]})
    assert place.ingest(side=256).counts.quarantined == {"set_aside": 1}


def test_bad_decisions_are_refused_and_nothing_is_recorded(ingested, tmp_path: Path) -> None:
    """Without a name, for a find of another store, twice for one find, without a store."""
    store, decisions = ingested.out, folder_of_finds(ingested.out) / "decisions.jsonl"
    before = decisions.read_bytes() if decisions.exists() else None
    with pytest.raises(ConfigError, match="needs the name"):
        decide(store, " ", {Verdict.KEEP: ["0" * 16]})
    with pytest.raises(DataError, match="no find of that id"):
        decide(store, "Dr. Who", {Verdict.KEEP: ["0" * 16]})
    with pytest.raises(ConfigError, match="named twice"):
        decide(store, "Dr. Who", {Verdict.KEEP: ["0" * 16], Verdict.BLANK: ["0" * 16]})
    with pytest.raises(DataError, match="no manifest"):
        decide(tmp_path / "SECRET", "Dr. Who", {Verdict.KEEP: ["0" * 16]})
    assert (decisions.read_bytes() if decisions.exists() else None) == before
