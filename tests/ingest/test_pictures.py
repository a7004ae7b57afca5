"""Pictures that are not DICOM: through the same cleaning into the same store, with a patient whom the table names."""

import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
import pydicom
import pytest
from damaged_files import LIMITS, mutated, peak
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from medfedvqa.data import Split, load_site
from medfedvqa.errors import DataError
from medfedvqa.ingest.find_list import folder_of_finds
from medfedvqa.ingest.ledger_binding import default_ledger
from medfedvqa.ingest.pseudonyms import Pseudonyms, load_pseudonyms
from medfedvqa.ingest.questions import read_questions
from medfedvqa.ingest.resolve import PatientSources
from medfedvqa.ingest.store import read_store
from medfedvqa.ingest.worker_pool import FileTask, WorkerProcess

KEYS = Pseudonyms(bytes(32))
NAME = "hostile.png"
Table = list[tuple[str, ...]]


def grey(seed: int, side: int = 48) -> np.ndarray:
    """A smooth blob, uint8 [side, side]."""
    y, x = np.mgrid[0:side, 0:side] / side - np.random.default_rng(seed).uniform(0.4, 0.6, (2, 1, 1))
    return (250 * np.exp(-8 * (x**2 + y**2))).astype(np.uint8)


def encoded(levels: np.ndarray, kind: str, **options: object) -> bytes:
    """As a file of Pillow's."""
    buffer = BytesIO()
    Image.fromarray(levels).save(buffer, kind, **options)
    return buffer.getvalue()


def ask(place, lines: Table, headings: tuple[str, ...]) -> None:
    """A semicolon table of these lines; the first column names the picture."""
    text = "\n".join(";".join(line) for line in (headings, *lines))
    place.questions.write_text(text + "\n", encoding="utf-8")


def quarantine(place) -> dict[str, str]:
    entries = map(json.loads, (place.out / "quarantine.jsonl").read_text().splitlines())
    return {str(entry.get("file", entry.get("row"))): entry["reason"] for entry in entries}


@pytest.fixture(scope="module")
def ingested(tmp_path_factory, make_place, make_dicom: Callable):
    """Seven pictures and a DICOM image of four patients, with names, dates and numbers in the table alone."""
    place, note = make_place(tmp_path_factory.mktemp("pictures")), PngInfo()
    note.add_text("Comment", "SECRET Anna")
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "SECRET Anna"
    tall = np.concatenate([grey(1), np.zeros((16, 48), np.uint8)])
    place.add("sub/SECRET_1.png", encoded(grey(0), "PNG", pnginfo=note))
    place.add("turned.jpg", encoded(tall, "JPEG", exif=exif, quality=95))
    place.add("deep.png", encoded(16 * grey(2).astype(np.uint16), "PNG"))
    place.add("scan.tif", encoded(grey(3), "TIFF"))
    place.add("colour.png", encoded(np.dstack([grey(4), grey(5), grey(6)]), "PNG"))
    place.add("Größe.png".encode().decode(), encoded(grey(7), "PNG"))
    place.add("unasked.png", encoded(grey(8), "PNG"))
    place.add("x.dcm", make_dicom(PatientID="SECRET-1"))
    headings = ("Datei", "Frage", "Antwort", "Organ", "Patient", "Name", "Geburtsdatum", "Fallnummer")
    who = ("SECRET-1", "SECRET, Anna", "03.02.1970", "8871-S")
    ask(
        place,
        [
            ("sub\\SECRET_1.png", "Left?", "yes", "chest", *who),
            ("SECRET_1.png", "Is Mrs. Secret well?", "yes", "chest", "", "", "", ""),
            ("SECRET_1.png", "Is it 8871S?", "yes", "chest", "", "", "", ""),
            ("turned.jpg", "Right?", "no", "chest", "SECRET-2", "SECRET, Eva", "1970-02-04", ""),
            ("deep.png", "Right?", "no", "head", "33-0815", "", "", ""),
            ("scan.tif", "Is Mrs. Secret well?", "no", "head", "33-0815", "", "", ""),
            ("colour.png", "Up?", "no", "head", "SECRET-4", "SECRET, Uta", "", ""),
            ("Gro\u0308ße.png", "Up?", "yes", "", " SECRET-1 ", "", "", ""),
            ("x.dcm", "Up?", "yes", "", "SECRET-1", "", "", ""),
        ],
        headings,
    )
    place.counts = place.ingest().counts
    return place


def test_png_jpeg_and_tiff_are_stored_like_dicom(ingested) -> None:
    """Same pseudonyms as for the same number in a header; what no question is about is not kept."""
    counts = ingested.counts
    assert (counts.files, counts.stored, counts.unasked, counts.patients) == (8, 7, 1, 4) and not counts.quarantined
    _, images, rows = read_store(ingested.out)
    keys = load_pseudonyms(ingested.key)
    by_question = {(row.question, row.organ): images[row.image] for row in rows}
    assert by_question["Left?", "chest"].patient == keys.patient("SECRET-1")
    ups = [images[row.image].patient for row in rows if row.organ in ("chest", "others")]
    assert ups.count(keys.patient("SECRET-1")) == 3 and by_question["Up?", "others"].organ == "others"
    site = load_site("store", ingested.out, "head", Split("patient", fractions=(1, 0, 0)), answers=("yes", "no"))
    assert site.pictures.load(32).shape[1:] == (1, 32, 32)


def test_levels_of_eight_bits_stay_and_a_turned_picture_stands_upright(ingested) -> None:
    """Levels of 16 bits have no window, as in a header without one; colours become their luminance."""
    _, images, rows = read_store(ingested.out)
    stored = {row.question: pydicom.dcmread(ingested.out / "images" / f"{row.image}.dcm") for row in rows}
    assert (stored["Left?"].pixel_array == grey(0)).all() and stored["Left?"].LossyImageCompression == "00"
    turned = stored["Right?"] if stored["Right?"].pixel_array.shape != (48, 48) else None
    shapes = {pydicom.dcmread(path).pixel_array.shape for path in (ingested.out / "images").iterdir()}
    assert (48, 64) in shapes and turned is None


def test_questions_are_compared_with_what_the_table_says_of_the_patient(ingested) -> None:
    """The name and the case number of the table's own columns; without a name there is nothing to compare with."""
    assert ingested.counts.rows_left_out == {"identifier_in_text": 2}
    assert quarantine(ingested) == {"1": "identifier_in_text", "2": "identifier_in_text"}
    assert ingested.counts.nameless == 3
    assert "Is Mrs. Secret well?" in {row.question for row in read_store(ingested.out)[2]}


def test_what_the_table_says_of_patients_is_stored_nowhere(ingested) -> None:
    """Neither in the store, its finds and its ledger, nor as a comment or EXIF of a file; but for the one question."""
    places = (ingested.out, folder_of_finds(ingested.out), default_ledger(ingested.out))
    for path in (path for place in places for path in place.rglob("*") if path.is_file()):
        content = path.read_bytes().replace(b"Is Mrs. Secret well?", b"")
        for secret in (b"SECRET", b"Secret", b"Anna", b"19700203", b"1970-02-03", b"03.02.1970", b"8871-S", b"33-0815"):
            assert secret not in content, path.name


def test_a_name_that_the_table_gives_later_is_compared_with(place) -> None:
    """Only this picture is read again; two patients for one picture, or none, put it into quarantine."""
    for number in range(3):
        place.add(f"{number}.png", encoded(grey(number), "PNG"))
    question = "Is Mrs. Secret well?"
    ask(place, [(f"{n}.png", question, "yes", f"P-{n}") for n in range(3)], ("file", "question", "answer", "patient"))
    assert place.ingest().counts.rows == 3
    before = {path: path.stat().st_mtime_ns for path in (place.out / "images").iterdir()}
    lines = [
        ("0.png", question, "yes", "P-0", "SECRET"),
        ("1.png", question, "yes", "P-1", ""),
        ("1.png", "Left?", "no"),
    ]
    ask(place, [(*line, *(5 - len(line)) * ("",)) for line in lines], ("file", "question", "answer", "patient", "name"))
    counts = place.ingest().counts
    assert (counts.rows, counts.rows_left_out) == (2, {"identifier_in_text": 1})
    after = {path: path.stat().st_mtime_ns for path in (place.out / "images").iterdir()}
    assert sum(after[path] == before[path] for path in after) == 1 and len(after) == 2
    ask(place, [("0.png", "Up?", "yes", "P-0"), ("0.png", "Down?", "no", "P-9"), ("1.png", "Up?", "no", "")],
        ("file", "question", "answer", "patient"))  # fmt: skip
    with_two = place.ingest().counts
    assert with_two.rows == 0 and quarantine(place) == {
        "0.png": "several_patients", "1.png": "no_patient",
        "0": "image_quarantined", "1": "image_quarantined", "2": "image_quarantined",
    }  # fmt: skip


def test_a_header_and_a_table_that_name_two_patients_are_doubtful(place, make_dicom: Callable) -> None:
    """Case and spaces do not count; a header without a number takes the table's."""
    for name, number in (("same", "P-1"), ("other", "P-2"), ("none", None)):
        place.add(f"{name}.dcm", make_dicom(PatientID=number))
    ask(place, [(f"{name}.dcm", "Up?", "yes", "p - 1") for name in ("same", "other", "none")],
        ("file", "question", "answer", "patient"))  # fmt: skip
    counts = place.ingest().counts
    assert (counts.stored, counts.patients, counts.quarantined) == (2, 1, {"several_patients": 1})


@pytest.mark.parametrize(
    "name", ["../SECRET.png", "/etc/SECRET", "a/../../SECRET", "C:\\SECRET.png", "..\\SECRET", ".."]
)
def test_a_path_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    """Before a picture is read; the sentence does not repeat the path."""
    (tmp_path / "a.csv").write_text(f"file,question,answer\na.png,Left?,yes\n{name},Left?,yes\n")
    with pytest.raises(DataError, match="row 1: the field 'image' points outside of the folder") as caught:
        read_questions(tmp_path / "a.csv")
    assert "SECRET" not in str(caught.value)


def test_a_birth_date_that_is_none_is_refused(tmp_path: Path) -> None:
    """It could not be compared with, and nobody would notice."""
    (tmp_path / "a.csv").write_text("file,question,answer,birth_date\na.png,Left?,yes,SECRET\n")
    with pytest.raises(DataError, match="row 0: the field 'birth_date' is not a date") as caught:
        read_questions(tmp_path / "a.csv")
    assert "SECRET" not in str(caught.value)


@pytest.fixture(scope="module")
def worker(tmp_path_factory) -> Iterator[WorkerProcess]:
    """A worker with small limits, and a table that gives every picture a patient and a name."""
    images = tmp_path_factory.mktemp("images")
    sources = PatientSources({KEYS.digest("name", NAME): {"patient": ["P-1"], "name": ["Hand, Uta"]}})
    process = WorkerProcess(LIMITS, KEYS, images, images.parent, frozenset(), sources=sources)
    yield process
    process.close()


@pytest.fixture
def verdict(worker: WorkerProcess, tmp_path: Path) -> Callable[[bytes], str]:
    """What becomes of a picture: `stored`, or the reason."""

    def judge(content: bytes) -> str:
        path = tmp_path / NAME
        path.write_bytes(content)
        source = KEYS.digest("source", sha256(content).hexdigest())
        answer = worker.handle(FileTask(path, source, True, [KEYS.digest("name", NAME)]))
        return str(answer.get("reason") or answer["verdict"])

    return judge


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, *chunks: bytes) -> bytes:
    """A grey PNG that declares this size, and holds ten lines of 64 pixels: whoever decodes it finds it cut."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(65 * 10)))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + pixels + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(60_000, 60_000), (2**31 - 1, 17), (1025, 1024)])
def test_a_picture_bomb_is_refused_before_it_is_decoded(
    verdict: Callable, worker: WorkerProcess, width: int, height: int
) -> None:
    assert verdict(png(width, height)) == "too_large" and peak(worker) <= LIMITS.memory * 2**20


def test_a_bomb_in_a_comment_is_not_inflated(verdict: Callable, worker: WorkerProcess) -> None:
    """Half a gigabyte of text beside a small picture."""
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(2**29), 9))
    assert verdict(png(64, 64, text)) in ("undecodable", "too_large")
    assert peak(worker) <= LIMITS.memory * 2**20
    assert verdict(encoded(grey(0), "PNG")) == "stored"


def test_each_kind_of_picture_that_cannot_be_used_has_its_reason(verdict: Callable) -> None:
    buffer = BytesIO()
    Image.fromarray(grey(0)).save(buffer, "TIFF", save_all=True, append_images=[Image.fromarray(grey(1))])
    assert verdict(buffer.getvalue()) == "several_pages"
    assert verdict(encoded(grey(0).astype(np.float32), "TIFF")) == "unknown_colours"
    assert verdict(encoded(grey(0).astype(np.int32), "TIFF")) == "unknown_colours"
    assert verdict(encoded(grey(0)[:15], "PNG")) == "too_small"
    assert verdict(encoded(np.full((32, 32), 7, np.uint8), "JPEG")) == "blank"
    assert verdict(b"\x89PNG\r\n\x1a\nSECRET") == "undecodable"
    assert verdict(encoded(grey(0), "GIF")) == "not_dicom"


def test_a_dicom_file_whose_preamble_looks_like_tiff_is_dicom(verdict: Callable, make_dicom, encode) -> None:
    """The standard allows it. Its header says another patient than the table, which only a reader of it can notice."""
    content = encode(make_dicom())
    assert content[:4] == bytes(4) and verdict(b"II*\0" + content[4:]) == "several_patients"


def test_a_name_of_the_table_alone_is_blanked_where_a_marker_would_stay(
    verdict: Callable, worker: WorkerProcess, tmp_path: Path
) -> None:
    """`HAND` stays on a picture as a part of the body, but not on that of a patient called Hand."""
    levels = cv2.putText(cv2.resize(grey(0), (256, 256)), "HAND", (60, 210), cv2.FONT_HERSHEY_SIMPLEX, 1, 255, 2)
    content, stays = encoded(levels, "PNG"), list[bool]()
    for sources in (PatientSources({KEYS.digest("name", NAME): {"patient": ["P-1"]}}), None):
        process = WorkerProcess(LIMITS, KEYS, tmp_path, tmp_path, frozenset(), sources=sources) if sources else worker
        (tmp_path / NAME).write_bytes(content)
        task = FileTask(
            tmp_path / NAME, KEYS.digest("source", sha256(content).hexdigest()), True, [KEYS.digest("name", NAME)]
        )
        answer = process.handle(task)
        stays.append(not answer["image"]["boxes"])
        if sources:
            process.close()
    assert stays == [True, False]


@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_damaged_pictures_have_clear_verdicts(verdict: Callable, worker: WorkerProcess, rounds: int) -> None:
    """Seeded damage to each format; afterwards a sound picture is read as before."""
    generator, verdicts = random.Random(rounds), set[str]()
    for kind in ("PNG", "JPEG", "TIFF"):
        content = bytes(132) + encoded(grey(0), kind)
        verdicts |= {verdict(mutated(content, generator)[132:]) for _ in range(rounds)}
    assert verdicts <= {
        "stored", "undecodable", "not_dicom", "unreadable", "too_large", "too_small", "blank", "unknown_colours",
        "several_pages", "mostly_text",
    }  # fmt: skip
    assert verdict(encoded(grey(0), "JPEG")) == "stored" and peak(worker) <= LIMITS.memory * 2**20
