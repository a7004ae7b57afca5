"""The review: a sheet of finds, decisions of persons, and what the next ingestion makes of them."""

import base64
import html
import re
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset
from small_dicom import scribbled_film

from medfedvqa.errors import ConfigError, DataError
from medfedvqa.ingest.find_list import folder_of_finds
from medfedvqa.ingest.review import ReviewVerdict, decide, reviewed_finds, write_sheet
from medfedvqa.ingest.store import read_store

PLAIN = {"WindowCenter": "152.5", "WindowWidth": "205", "VOILUTFunction": "LINEAR_EXACT"}
"""Shows a film almost as it is."""


def film() -> np.ndarray:
    """Tissue with a name and a scribble that the reader cannot read, uint8 [256, 256]."""
    return cv2.putText(scribbled_film(), "ANNA <B>", (60, 210), cv2.FONT_HERSHEY_SIMPLEX, 0.7, 255, 2)


@pytest.fixture(scope="module")
def ingested(tmp_path_factory, make_place, make_dicom: Callable[..., Dataset]):
    """A place with one film in its store."""
    place = make_place(tmp_path_factory.mktemp("review"))
    place.add("1.dcm", make_dicom(film(), **PLAIN, PatientName="SECRET^Anna"))
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
    assert page.count("data:image/png;base64,") == finds and page.count("data:image/jpeg;base64,") == 2
    assert "http" not in page.replace("http-equiv", "")
    assert "default-src 'none'" in html.unescape(page)
    assert "<script" not in page and "<B>" not in page and "ANNA" in page
    assert page.index('class="flagged"') < page.index('class="blanked"')


def image_of(store: Path) -> str:
    """The id of the store's only picture."""
    (image,) = read_store(store)[1]
    return image


def method(store: Path) -> list[str]:
    """What the picture's header says was done to it."""
    (path,) = (store / "images").iterdir()
    return list(pydicom.dcmread(path)[0x0012, 0x0063].value)


def test_a_person_blanks_more_and_accepts_the_picture(place, make_dicom: Callable[..., Dataset]) -> None:
    """An added box is black after the next ingestion, and comes back once a person keeps it.

    A picture is reviewed when somebody accepted it with all that is found in it; header, store and sheet say so.
    """
    place.add("1.dcm", make_dicom(film(), **PLAIN, PatientName="SECRET^Anna"))
    place.ask("1.dcm")
    place.ingest(side=256)
    image, flagged = image_of(place.out), find_of(place.out, "flagged")
    assert method(place.out)[-1] == "Pixels cleaned by machine, marks wait for review"
    with pytest.raises(DataError, match="open flag cannot be accepted"):
        decide(place.out, "Dr. Who", {}, accepted=["all"])
    box = (10, 20, 60, 40)
    assert decide(place.out, "Dr. Who", {ReviewVerdict.KEEP: [flagged.id]}, [(image, box)], ["all"]) == 3
    place.ingest(side=256)
    decide(place.out, "Dr. Who", {}, accepted=["all"])  # the added box may have moved another find by a pixel
    counts = place.ingest(side=256).counts
    assert (grey(place.out)[20:40, 10:60] == 0).all() and counts.reviewed == 1
    assert read_store(place.out)[1][image].reviewed
    assert method(place.out)[-1] == "Pixels cleaned by machine, reviewed by a person"
    page = write_sheet(place.out)[0].read_text()
    assert "256 x 256 pixels, reviewed" in page and "before" in page and "as it is stored" in page
    added = next(find for finds in reviewed_finds(place.out) for find in finds.finds if find.box == list(box))
    decide(place.out, "Dr. Who", {ReviewVerdict.KEEP: [added.id]})
    place.ingest(side=256)
    assert (grey(place.out)[20:40, 10:60] > 0).any()


def test_what_is_found_after_the_review_takes_the_review_back(place, make_dicom: Callable[..., Dataset]) -> None:
    """The person saw the picture without a find that a later ingestion reports."""
    place.add("1.dcm", make_dicom(film(), **PLAIN, PatientName="SECRET^Anna"))
    place.ask("1.dcm")
    place.ingest(side=256)
    decide(place.out, "Dr. Who", {ReviewVerdict.KEEP: [find_of(place.out, "flagged").id]}, accepted=["all"])
    path = folder_of_finds(place.out) / "decisions.jsonl"
    path.write_text(re.sub(r'"finds":\[[^]]+\]', '"finds":[]', path.read_text()))
    assert place.ingest(side=256).counts.reviewed == 0


def test_decisions_about_another_store_are_refused(ingested, place, make_dicom: Callable[..., Dataset]) -> None:
    """Neither the next ingestion nor a further decision takes them."""
    place.add("1.dcm", make_dicom(film(), **PLAIN))
    place.ask("1.dcm")
    place.ingest(side=256)
    decide(place.out, "Dr. Who", {}, [(image_of(place.out), (0, 0, 9, 9))])
    path = folder_of_finds(place.out) / "decisions.jsonl"
    content = path.read_text()
    path.write_text(re.sub(r'"store":"[0-9a-f]{32}"', f'"store":"{32 * "0"}"', content))
    with pytest.raises(DataError, match="belong to another store"):
        place.ingest(side=256)
    with pytest.raises(DataError, match="belong to another store"):
        decide(place.out, "Dr. Who", {}, [(image_of(place.out), (0, 0, 9, 9))])


@pytest.mark.parametrize("box", [(0, 0, 257, 9), (9, 9, 9, 20), (30, 9, 20, 20)], ids=["outside", "empty", "reversed"])
def test_a_box_outside_of_its_picture_is_refused(ingested, box: tuple[int, int, int, int]) -> None:
    """Whoever gives it has mistaken the picture or its size."""
    with pytest.raises(ConfigError, match="within the stored picture"):
        decide(ingested.out, "Dr. Who", {}, [(image_of(ingested.out), box)])
    with pytest.raises(DataError, match="no picture of that id"):
        decide(ingested.out, "Dr. Who", {}, [("0" * 32, (0, 0, 9, 9))])


def test_every_picture_of_the_sheet_is_whole(ingested) -> None:
    """The page escapes and shortens the words of others; pictures are longer than any, and come out as they are."""
    page = write_sheet(ingested.out)[0].read_text()
    pictures = re.findall(r'src="data:image/(?:png|jpeg);base64,([A-Za-z0-9+/=]+)"', page)
    assert len(pictures) == page.count("<img") >= 4 and max(map(len, pictures)) > 4000
    shapes = [cv2.imdecode(np.frombuffer(base64.b64decode(each), np.uint8), 0).shape for each in pictures]
    assert shapes[:2] == [(256, 256), (256, 256)]


def test_bad_decisions_are_refused_and_nothing_is_recorded(ingested, tmp_path: Path) -> None:
    """Without a name, for a find of another store, twice for one find, without a store."""
    store, decisions = ingested.out, folder_of_finds(ingested.out) / "decisions.jsonl"
    before = decisions.read_bytes() if decisions.exists() else None
    with pytest.raises(ConfigError, match="needs the name"):
        decide(store, " ", {ReviewVerdict.KEEP: ["0" * 16]})
    with pytest.raises(DataError, match="no mark with that id"):
        decide(store, "Dr. Who", {ReviewVerdict.KEEP: ["0" * 16]})
    with pytest.raises(ConfigError, match="named twice"):
        decide(
            store, "Dr. Who", dict.fromkeys((ReviewVerdict.KEEP, ReviewVerdict.BLANK), [find_of(store, "blanked").id])
        )
    with pytest.raises(DataError, match="no manifest"):
        decide(tmp_path / "SECRET", "Dr. Who", {ReviewVerdict.KEEP: ["0" * 16]})
    assert (decisions.read_bytes() if decisions.exists() else None) == before


def test_decisions_are_applied_by_the_next_ingestion(ingested, make_place, tmp_path: Path) -> None:
    """A flagged mark is blanked and a blanked one comes back, as a person decided; then clean pixels are claimed."""
    place = ingested
    before, flagged, blanked = grey(place.out), find_of(place.out, "flagged"), find_of(place.out, "blanked")
    left, top, right, bottom = flagged.box
    assert (before[top:bottom, left:right] > 0).all()
    assert decide(place.out, "Dr. Who", {ReviewVerdict.BLANK: [flagged.id], ReviewVerdict.KEEP: [blanked.id]}) == 2
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
    decide(place.out, "Dr. Who", {ReviewVerdict.QUARANTINE: [find_of(place.out, "blanked").id]})
    assert place.ingest(side=256).counts.quarantined == {"set_aside": 1}
