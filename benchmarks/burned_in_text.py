"""Measures, side by side, which burned-in identifiers stay in pictures, and how much anatomy is lost to blanking.

*Identifiers left*: lines about invented patients are drawn on films of 512 to 3,000 pixels, which are pictures of the
data folder, enlarged and with grain: letters of 4 to 60 pixels, 12 contrasts, with and without plates, seven typefaces,
six angles, eight languages, in corners and over anatomy, a line for every 128 pixels of a film's side. A line is
*removed* if at least 95 % of its pixels are blanked, *set aside* if its film is in quarantine, *flagged* if half of its
pixels lie in blanked boxes and in finds that wait for a person, a tenth at least in the latter, and else *left*.
Heights are of capitals, in pixels of the film; contrasts are the difference from the mean grey of the ground, of 255
levels. Every second patient's header holds what the line says.

*Anatomy lost*: all pictures of VQA-RAD and SLAKE as they are. A picture has *lost anatomy* if the centre of a blanked
box lies in its central 60 %, unless letters really stand there: `CENTRAL_LETTERS` names these pictures, which a person
looked at. `--show` prints what was read in the other ones.

Everything follows from the seed and a line's number. Results go to `--out` one by one; a run that was ended continues.
"""

import argparse
import functools
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from pydicom.dataset import Dataset

from medfedvqa.ingest.burned_in_text import Array, CleanPicture, TextFinder
from medfedvqa.ingest.find_list import Decision, is_central
from medfedvqa.ingest.identifier_forms import header_forms
from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.refusal_reasons import Quarantined

SIZES = (512, 768, 1024, 1536, 2048, 3000)
HEIGHTS = (4, 6, 8, 10, 12, 16, 24, 40, 60)
CONTRASTS = (10, 15, 20, 25, 30, 40, 60, 80, 120, 160, 200, 255)
FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSerif", "STIXGeneral", "cmss10")
ALL_LETTERS = FONTS[:4]
"""The typefaces that have the letters of all languages below."""
STROKES = "Hershey"
"""The typeface of strokes that OpenCV draws, as plotters and old devices do. It has ASCII alone."""
TURNS = (0, 0, 0, 0, 90, 270, 180, 5, -10)
"""The angles of lines, in degrees."""
GRAIN = (0.0, 2.0, 4.0)
"""Standard deviations of a film's grain, in grey levels."""
SPACING = 128
"""Pixels of a film's longer side for each line that is drawn on it."""
MOST_LINES, USUAL_LINES = 24, 11
"""The most lines on a film, and about as many as are on one on average."""
LEGIBLE_HEIGHT = 3
"""Pixels of a capital below which nobody can read it: a letter has three strokes, one above another."""
NAMES = {
    "English": ("SMITH^JOHN", "Walker^Emily", "DOE^JANE", "Robinson^Mary"),
    "German": ("Großmann^Eva", "MÜLLER^JÖRG", "Hoffmann^Uwe", "Schäfer^Grete"),
    "French": ("Lefèvre^Amélie", "GARÇON^RENÉ", "Dubois^Chloé"),
    "Polish": ("Wójcik^Łukasz", "KOWALSKA^ANNA", "Zielińska^Ewa"),
    "Spanish": ("Núñez^José", "GARCÍA^LUCÍA", "Ibáñez^Pilar"),
    "Turkish": ("Yılmaz^Gülşen", "ÖZTÜRK^İPEK", "Doğan^Çağla"),
    "Russian": ("ИВАНОВА^АННА", "Соколов^Пётр"),
    "Greek": ("ΠΑΠΑΔΟΠΟΥΛΟΣ^ΝΙΚΟΣ", "Γεωργίου^Ελένη"),
}
FORMS = (
    "{last}^{first}", "{last}, {first}", "{first} {last}", "MRN {id}", "ID {id}", "DOB {iso}", "{dotted}",
    "Acc {accession}", "{last} {first} {iso}", "{place}", "+49 30 {phone}", "Dr. {doctor}",
)  # fmt: skip
PLACES = ("Klinikum Wolkenstein", "St. Elsewhere Hospital", "Hôpital Beaulieu", "Praxis Dr. Adler")
CENTRAL_LETTERS: frozenset[str] = frozenset()
"""Pictures of the data folder with letters in their central 60 %, by folder and file as `name` has them."""


@dataclass(frozen=True)
class DrawnLine:
    """A line to draw."""

    text: str
    language: str
    known: bool
    """Whether the patient's header holds what it says."""
    height: int
    """Of its capitals, in pixels."""
    contrast: int
    """Grey levels between letters and ground."""
    plate: bool
    corner: bool
    font: str
    turn: int

    @classmethod
    def drawn_by(cls, index: int, generator: np.random.Generator) -> tuple["DrawnLine", Dataset]:
        """The line of this number, and its patient's header. All pairs of height and contrast take turns."""
        language = str(generator.choice(list(NAMES)))
        last, first = str(generator.choice(NAMES[language])).split("^")
        header, facts = _patient(last, first, generator)
        height, contrast = (
            HEIGHTS[index % len(HEIGHTS)],
            CONTRASTS[index // len(HEIGHTS) % len(CONTRASTS)],
        )
        text = str(generator.choice(FORMS)).format(**facts)
        fonts = FONTS + (STROKES,) if text.isascii() else FONTS if language in ("English", "German") else ALL_LETTERS
        known, plate, corner = (bool(generator.integers(2)) for _ in range(3))
        font, turn = str(generator.choice(fonts)), int(generator.choice(TURNS))
        return cls(text, language, known, height, contrast, plate, corner, font, turn), header


def _patient(last: str, first: str, generator: np.random.Generator) -> tuple[Dataset, dict[str, str]]:
    """A header of an invented patient, and the lines that may be written of it."""
    digits = [str(generator.integers(10**7, 10**8)) for _ in range(3)]
    year, month, day = int(generator.integers(1920, 2020)), *map(int, generator.integers(1, 13, 2))
    doctor, place = str(generator.choice(["Hoffmann", "Keller", "Novak"])), str(generator.choice(PLACES))
    dataset = Dataset()
    dataset.SpecificCharacterSet = "ISO_IR 192"
    dataset.PatientName, dataset.PatientID, dataset.AccessionNumber = f"{last}^{first}", digits[0], f"20{digits[1]}"
    dataset.PatientBirthDate, dataset.PatientTelephoneNumbers = f"{year}{month:02}{day:02}", f"+49 30 {digits[2]}"
    dataset.ReferringPhysicianName, dataset.InstitutionName = doctor, place
    return dataset, {
        "last": last, "first": first, "id": digits[0], "iso": f"{year}-{month:02}-{day:02}",
        "dotted": f"{day:02}.{month:02}.{year}", "accession": f"20{digits[1]}", "place": place, "phone": digits[2],
        "doctor": doctor,
    }  # fmt: skip


def letters(line: DrawnLine) -> Array:
    """The coverage of a line's pixels, float32 [height, width] in 0..1, turned."""
    mask = _strokes(line) if line.font == STROKES else _outlines(line)
    return np.asarray(Image.fromarray(mask).rotate(line.turn, Image.Resampling.BICUBIC, True), np.float32) / 255


def _strokes(line: DrawnLine) -> Array:
    scale, thickness = line.height / 21, max(1, round(line.height / 10))
    (width, height), below = cv2.getTextSize(line.text, cv2.FONT_HERSHEY_SIMPLEX, scale, thickness)
    mask = np.zeros((height + below + 6, width + 6), np.uint8)
    return cv2.putText(mask, line.text, (3, height + 3), cv2.FONT_HERSHEY_SIMPLEX, scale, 255, thickness, cv2.LINE_AA)


def _outlines(line: DrawnLine) -> Array:
    path = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{line.font}.ttf")
    capital = -ImageFont.truetype(path, 200).getbbox("H", anchor="ls")[1]
    typeface = ImageFont.truetype(path, 200 * line.height / capital)
    left, top, right, bottom = typeface.getbbox(line.text, anchor="ls")
    mask = Image.new("L", (int(right - left) + 6, int(bottom - top) + 6))
    ImageDraw.Draw(mask).text((3 - left, 3 - top), line.text, font=typeface, fill=255, anchor="ls")
    return np.asarray(mask)


def film(path: Path, generator: np.random.Generator) -> Array:
    """The picture of this path, enlarged or reduced to one of `SIZES`, with grain, uint8 [height, width]."""
    grey, size = _grey(path), int(generator.choice(SIZES))
    factor = size / max(grey.shape)
    grey = cv2.resize(grey, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC if factor > 1 else cv2.INTER_AREA)
    grain = generator.normal(size=grey.shape) * float(generator.choice(GRAIN))
    return np.clip(grey + grain, 0, 255).astype(np.uint8)


def place_of(line: DrawnLine, cover: Array, taken: Array, generator: np.random.Generator) -> tuple[slice, slice] | None:
    """A free place: in a corner's ninth of the film, or anywhere else; None if there is none."""
    (height, width), (rows, columns) = cover.shape, taken.shape
    for _ in range(50):
        if height + 4 >= rows or width + 4 >= columns:
            return None
        top, left = int(generator.integers(2, rows - height - 2)), int(generator.integers(2, columns - width - 2))
        if line.corner:
            top, left = (
                int(generator.integers(2, max(3, rows // 9))),
                int(generator.integers(2, max(3, columns // 9))),
            )
            top = rows - height - top if generator.integers(2) else top
            left = columns - width - left if generator.integers(2) else left
        where = np.s_[top : top + height, left : left + width]
        if min(top, left) >= 0 and taken[where].shape == cover.shape and not taken[where].any():
            return where
    return None


def draw(
    picture: Array, line: DrawnLine, cover: Array, where: tuple[slice, slice], generator: np.random.Generator
) -> float:
    """Draws the line and its plate into the picture; returns the contrast that the grey levels left room for."""
    bright = bool(generator.integers(2))
    if line.plate:
        room = 255 - line.contrast
        picture[where] = int(generator.integers(room + 1)) + (0 if bright else line.contrast)
    mean = float(picture[where].mean())
    up, down = min(255.0, mean + line.contrast), max(0.0, mean - line.contrast)
    shade = up if (up - mean, bright) >= (mean - down, True) else down
    picture[where] = np.clip(picture[where] * (1 - cover) + shade * cover, 0, 255).astype(np.uint8)
    return abs(shade - mean)


def outcome(cleaned: CleanPicture, mask: Array) -> str:
    """What became of the line with this mask of the film's pixels: removed, flagged or left."""
    shares = {}
    for decision in (Decision.BLANKED, Decision.FLAGGED):
        area = np.zeros(cleaned.grey.shape, np.uint8)
        for find in cleaned.finds:
            if find.decision == decision:
                left, top, right, bottom = find.box
                area[top:bottom, left:right] = 1
        large = cv2.resize(area, mask.shape[::-1], interpolation=cv2.INTER_NEAREST)
        shares[decision] = float(large[mask].mean())
    if shares[Decision.BLANKED] >= 0.95:
        return "removed"
    return "flagged" if shares[Decision.FLAGGED] >= 0.1 and sum(shares.values()) >= 0.5 else "left"


Drawn = tuple[DrawnLine, float, Array]
"""A line, the contrast that it reached, and its pixels in the film, bool."""


def drawn_film(number: int, paths: list[Path], seed: int) -> tuple[Array, Array, list[Drawn], set[str]]:
    """A film without and with its lines, uint8; the lines; and the forms of identifiers in the patients' headers."""
    generator = np.random.default_rng([seed, number])
    plain = film(paths[int(generator.integers(len(paths)))], generator)
    picture, taken, lines, forms = plain.copy(), np.zeros(plain.shape, bool), list[Drawn](), set[str]()
    first = number * MOST_LINES
    for index in range(first, first + max(picture.shape) // SPACING):
        line, header = DrawnLine.drawn_by(index, generator)
        cover = letters(line)
        where = place_of(line, cover, taken, generator)
        if where is None:
            continue  # a line that is longer than its film
        reached = draw(picture, line, cover, where, generator)
        taken[where], mask = True, np.zeros(picture.shape, bool)
        mask[where] = cover > 0.5
        lines.append((line, reached, mask))
        forms |= header_forms(header) if line.known else set()
    return plain, picture, lines, forms


def one_film(number: int, paths: list[Path], seed: int) -> list[dict[str, Any]]:
    """The lines of one film, each with its facts and what became of it."""
    _, picture, lines, forms = drawn_film(number, paths, seed)
    started = time.process_time()
    try:
        cleaned = _finder().clean(picture, Options.side, forms.__contains__)
        outcomes = [outcome(cleaned, mask) for *_, mask in lines]
    except Quarantined:
        outcomes = ["set aside"] * len(lines)
    scale = min(1.0, Options.side / max(picture.shape))
    facts = {"film": number, "size": max(picture.shape), "seconds": time.process_time() - started}
    return [
        vars(line) | facts | {"reached": reached, "outcome": result, "stored": line.height * scale}
        for (line, reached, _), result in zip(lines, outcomes, strict=True)
    ]


def one_picture(number: int, paths: list[Path], show: bool) -> list[dict[str, Any]]:
    """What became of a picture as it is: one line."""
    path = paths[number]
    started = time.process_time()
    result: dict[str, Any] = {"name": name(path), "quarantined": False, "central": 0, "share": 0.0, "flags": 0}
    header, _ = _patient("Walker", "Emily", np.random.default_rng(number))
    try:
        cleaned = _finder().clean(_grey(path), Options.side, header_forms(header).__contains__)
    except Quarantined:
        result["quarantined"] = True
    else:
        central = [
            find for find in cleaned.finds if find.decision == Decision.BLANKED and is_central(find.box, cleaned.grey)
        ]
        result |= {"central": len(central), "share": cleaned.share, "flags": cleaned.flags}
        if show and central:
            print(name(path), [(find.reading, find.reading.text, find.box) for find in central], flush=True)
    return [result | {"seconds": time.process_time() - started}]


def picture_sets(data: Path) -> dict[str, list[Path]]:
    """The pictures of the data folder, by data set."""
    sets = {
        "VQA-RAD": sorted((data / "vqa-rad").glob("*/*.jpg")),
        "SLAKE": sorted((data / "slake" / "imgs").glob("*/source.jpg")),
    }
    if not all(sets.values()):
        raise SystemExit("the data folder lacks the pictures of vqa-rad or slake")
    return sets


def name(path: Path) -> str:
    """The name of a picture in its data set: its folder's name for SLAKE, its file's for VQA-RAD."""
    return path.parent.name if path.name == "source.jpg" else path.stem


def _grey(path: Path) -> Array:
    grey = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if grey is None:
        raise SystemExit("a picture of the data folder cannot be decoded")
    return grey


@functools.cache
def _finder() -> TextFinder:
    cv2.setNumThreads(1)
    return TextFinder()


Work = Callable[[int], list[dict[str, Any]]]


def measured(work: Work, numbers: Iterable[int], workers: int, journal: Path | None, kind: str) -> Iterator[dict]:
    """The lines of all numbers: those of the journal first, then new ones, which are written to it at once."""
    done, chosen = _journal(journal, kind), list(numbers)
    for number in chosen:
        yield from done.get(number, [])
    missing = [number for number in chosen if number not in done]
    # An executor ends with an error where its processes cannot start; `Pool` would start them again and again.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_numbered, work, number) for number in missing]):
            number, lines = future.result()
            if journal:
                with journal.open("a") as file:
                    file.write(json.dumps([kind, number, lines]) + "\n")
            yield from lines


def _numbered(work: Work, number: int) -> tuple[int, list[dict[str, Any]]]:
    return number, work(number)


def _journal(path: Path | None, kind: str) -> dict[int, list[dict[str, Any]]]:
    if path is None or not path.exists():
        return {}
    entries = (json.loads(line) for line in path.read_text().splitlines())
    return {number: lines for entry_kind, number, lines in entries if entry_kind == kind}


def print_identifiers(lines: list[dict[str, Any]]) -> None:
    """The figures of the drawn lines: against the two targets, by height and contrast, and by everything else."""
    plain = [line for line in lines if line["height"] >= 8 and line["reached"] >= 30]
    small = [line for line in lines if not (line["height"] >= 8 and line["reached"] >= 30)]
    print(f"lines: {len(lines)} on {len({line['film'] for line in lines})} films")
    for title, part in (("8 pixels and 30 levels or more", plain), ("lower or fainter", small)):
        counts = Counter(line["outcome"] for line in part)
        tiny = sum(line["outcome"] == "left" and line["stored"] < LEGIBLE_HEIGHT for line in part)
        print(
            f"  {title}: {dict(counts)} of {len(part)}, {_share(part):.2%} not left; of those left {tiny} have letters "
            f"of less than {LEGIBLE_HEIGHT} pixels in the stored picture"
        )
    print("not left, of all, by height (rows) and contrast (columns):")
    for height in HEIGHTS:
        cells = []
        for contrast in CONTRASTS:
            cell = [line for line in lines if (line["height"], line["contrast"]) == (height, contrast)]
            cells.append(f"{contrast}: {sum(line['outcome'] != 'left' for line in cell)}/{len(cell)}")
        print(f"{height:3} pixels  " + "  ".join(cells))
    print("not left, at 8 pixels and 30 levels or more, by:")
    for key in ("size", "corner", "plate", "font", "turn", "language", "known"):
        groups = sorted({line[key] for line in plain})
        parts = {group: [line for line in plain if line[key] == group] for group in groups}
        print(f"  {key}: " + ", ".join(f"{group} {_share(part):.1%} of {len(part)}" for group, part in parts.items()))
    films = {line["film"]: line for line in lines}.values()
    for size in SIZES:
        seconds = [line["seconds"] for line in films if line["size"] == size]
        if seconds:
            print(f"  films of {size} pixels: {1 / np.mean(seconds):.2f} a second and process")


def _share(lines: list[dict[str, Any]]) -> float:
    return sum(line["outcome"] != "left" for line in lines) / max(1, len(lines))


def print_anatomy(title: str, pictures: list[dict[str, Any]]) -> None:
    """How many pictures lost anatomy, which share of all pixels was blanked, and how many finds wait for review."""
    plain = [picture for picture in pictures if picture["name"] not in CENTRAL_LETTERS]
    lost = sum(picture["central"] > 0 for picture in plain)
    seconds = sum(picture["seconds"] for picture in pictures)
    flagged = sum(picture["flags"] > 0 for picture in pictures)
    print(
        f"{title}: {len(plain)} pictures without letters in the centre, {lost} lost anatomy ({lost / len(plain):.2%}); "
        f"of all {len(pictures)}: {np.mean([picture['share'] for picture in pictures]):.3%} of the pixels blanked, "
        f"{100 * sum(picture['flags'] for picture in pictures) / len(pictures):.1f} flags per 100 pictures, "
        f"{flagged} pictures with one, {sum(picture['quarantined'] for picture in pictures)} in quarantine, "
        f"{len(pictures) / seconds:.2f} pictures a second and process"
    )


def main() -> None:
    """Measure both, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the data folder, with vqa-rad and slake")
    parser.add_argument("--texts", type=int, default=2000, help="lines to draw, about")
    parser.add_argument("--images", type=int, default=10**6, help="pictures of each data set, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="write every result there, and continue what is there")
    parser.add_argument("--show", action="store_true", help="print what was read in central boxes: patient data")
    arguments = parser.parse_args()
    sets = picture_sets(arguments.data)
    run = functools.partial(measured, workers=arguments.workers, journal=arguments.out)
    for title, paths in sets.items():
        order = np.random.default_rng(arguments.seed).permutation(len(paths))[: arguments.images].tolist()
        work = functools.partial(one_picture, paths=paths, show=arguments.show)
        if order:
            print_anatomy(title, list(run(work, order, kind=title)))
    films = range(-(-arguments.texts // USUAL_LINES))
    work = functools.partial(one_film, paths=[path for paths in sets.values() for path in paths], seed=arguments.seed)
    print_identifiers(list(run(work, films, kind=f"films of seed {arguments.seed}")))


if __name__ == "__main__":
    main()
