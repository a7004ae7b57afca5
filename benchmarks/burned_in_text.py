"""Measures, side by side, which burned-in identifiers stay in pictures, and how much anatomy is lost to blanking.

*Identifiers*: names, dates and numbers of an invented header are drawn on pictures of SLAKE, in several fonts, heights,
contrasts, with and without plates, upright and turned, over anatomy and in corners. A text is *removed* if at least
95 % of its pixels are blanked or the picture is in quarantine, *flagged* if half of them lie in finds that wait for
review, and else *left*. Heights are of capitals, in pixels of the picture; contrasts are in grey levels of 255.

*Anatomy*: pictures as they are. A picture has *lost anatomy* if the centre of a blanked box lies in its central 60 %.
Words that pictures really hold are blanked there, too: `--show` prints what was read. Everything follows from the seed.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cv2
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from pydicom.dataset import Dataset

from medfedvqa.ingest.burned_in_text import Array, CleanPicture, TextFinder, fitted
from medfedvqa.ingest.identifier_forms import header_forms
from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.refusal_reasons import Quarantined
from medfedvqa.ingest.text_finds import Decision

TEXTS = (
    "DOE^JANE", "MRN 77123456", "DOB 1931-05-07", "Doe, Jane", "07.05.1931", "ID 77123456", "Großmann Eva",
    "Acc 2013071486", "Klinikum Wolkenstein", "SMITH JOHN 54Y", "+49 30 1234567", "Dr. Hoffmann",
)  # fmt: skip
FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSerif", "STIXGeneral", "cmss10")
HEIGHTS, CONTRASTS, SIZES = (5, 8, 12, 20, 40), (20, 30, 60, 120, 255), (512, 1024, 1536)
TURNS = (0, 0, 0, 90, 270)
"""The angles of texts, in degrees."""
CENTRE = 0.2


def header() -> Dataset:
    """The header of the invented patient."""
    dataset = Dataset()
    dataset.SpecificCharacterSet = "ISO_IR 192"
    dataset.PatientName, dataset.PatientID, dataset.PatientBirthDate = "DOE^JANE", "77123456", "19310507"
    dataset.ReferringPhysicianName, dataset.AccessionNumber = "Hoffmann^Eva", "2013071486"
    dataset.InstitutionName, dataset.PatientTelephoneNumbers = "Klinikum Wolkenstein", "+49 30 1234567"
    return dataset


def letters(text: str, font: str, height: int, turn: int) -> Array:
    """The coverage of a text's pixels, float32 [height, width] in 0..1."""
    path = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf")
    capital = -ImageFont.truetype(path, 200).getbbox("H", anchor="ls")[1]
    typeface = ImageFont.truetype(path, max(4.0, 200 * height / capital))
    left, top, right, bottom = typeface.getbbox(text, anchor="ls")
    mask = Image.new("L", (int(right - left) + 6, int(bottom - top) + 6))
    ImageDraw.Draw(mask).text((3 - left, 3 - top), text, font=typeface, fill=255, anchor="ls")
    return np.rot90(np.asarray(mask, np.float32) / 255, turn // 90)


def drawn(grey: Array, cover: Array, contrast: int, plate: bool, generator: np.random.Generator) -> tuple[Array, Array]:
    """A copy of the picture with a text at a random place, on a grey plate or not, and the mask of its pixels."""
    height, width = cover.shape
    left = int(generator.integers(0, grey.shape[1] - width))
    top = int(generator.integers(0, grey.shape[0] - height))
    place = np.s_[top : top + height, left : left + width]
    ground = np.full(cover.shape, float(generator.integers(0, 200))) if plate else grey[place].astype(float)
    mean = float(ground.mean())
    shade = min(255.0, mean + contrast) if mean + contrast <= 255 or mean < 128 else max(0.0, mean - contrast)
    picture, mask = grey.copy(), np.zeros(grey.shape, dtype=bool)
    picture[place] = np.clip(ground * (1 - cover) + shade * cover, 0, 255).astype(np.uint8)
    mask[place] = cover > 0.5
    return picture, mask


def outcome(cleaned: CleanPicture, mask: Array) -> str:
    """What became of the text with this mask, in pixels of the searched picture: removed, flagged or left."""
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
    return "flagged" if shares[Decision.BLANKED] + shares[Decision.FLAGGED] >= 0.5 else "left"


def identifiers(finder: TextFinder, paths: list[Path], number: int, generator: np.random.Generator) -> list[dict]:
    """One line for each drawn text: its height, contrast, and what became of it."""
    known, lines = header_forms(header()), list[dict]()
    while len(lines) < number:
        index = len(lines)
        grey = cv2.imread(str(paths[int(generator.integers(len(paths)))]), cv2.IMREAD_GRAYSCALE)
        size = int(generator.choice(SIZES))
        factor = size / max(grey.shape)
        grey = cv2.resize(grey, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)
        height, contrast = HEIGHTS[index % len(HEIGHTS)], CONTRASTS[index // len(HEIGHTS) % len(CONTRASTS)]
        cover = letters(
            TEXTS[int(generator.integers(len(TEXTS)))],
            str(generator.choice(FONTS)),
            height,
            int(generator.choice(TURNS)),
        )
        if cover.shape[0] >= grey.shape[0] or cover.shape[1] >= grey.shape[1]:
            continue
        picture, mask = drawn(grey, cover, contrast, bool(generator.integers(2)), generator)
        try:
            result = outcome(finder.clean(picture, Options.side, known.__contains__), mask)
        except Quarantined:
            result = "removed"
        lines.append({"height": height, "contrast": contrast, "size": size, "outcome": result})
    return lines


def anatomy(finder: TextFinder, pictures: Iterator[Array], show: bool) -> dict[str, float]:
    """How many pictures lost anatomy, which share of all pixels was blanked, and how many finds wait for review."""
    totals, shares = Counter[str](), list[float]()
    started = time.process_time()
    for picture in pictures:
        totals["pictures"] += 1
        try:
            cleaned = finder.clean(picture, Options.side)
        except Quarantined:
            totals["quarantined"] += 1
            continue
        shares.append(cleaned.share)
        totals["flags"] += cleaned.flags
        central = [
            find for find in cleaned.finds if find.decision == Decision.BLANKED and _is_central(find.box, cleaned)
        ]
        totals["lost"] += bool(central)
        if show:
            print([(find.reading.text, find.box) for find in central] or "", end="", flush=True)
    return {**totals, "share": float(np.mean(shares)), "seconds": (time.process_time() - started) / totals["pictures"]}


def _is_central(box: tuple[int, int, int, int], cleaned: CleanPicture) -> bool:
    height, width = cleaned.grey.shape
    x, y = (box[0] + box[2]) / 2 / width, (box[1] + box[3]) / 2 / height
    return min(x, 1 - x, y, 1 - y) > CENTRE


def main() -> None:
    """Measure both, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slake", type=Path, help="SLAKE's folder: texts are drawn on its pictures")
    parser.add_argument("--texts", type=int, default=2000, help="texts to draw")
    parser.add_argument("--pictures", type=Path, action="append", help="a folder of JPEG files; default: SLAKE's")
    parser.add_argument("--images", type=int, default=280, help="pictures of each folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print what was read in central boxes: patient data")
    parser.add_argument("--json", type=Path, help="write every line there")
    arguments = parser.parse_args()
    finder, generator = TextFinder(), np.random.default_rng(arguments.seed)
    for folder in arguments.pictures or [arguments.slake]:
        paths = sorted(folder.rglob("*.jpg"))
        paths = [path for path in paths if path.name != "mask.jpg"]
        chosen = generator.choice(len(paths), min(arguments.images, len(paths)), replace=False)
        greys = (fitted(cv2.imread(str(paths[one]), cv2.IMREAD_GRAYSCALE), 3000) for one in chosen)
        found = anatomy(finder, greys, arguments.show)
        print(
            f"{folder.name}: {found['pictures']} pictures, {found.get('lost', 0)} lost anatomy, {found['share']:.3%} "
            f"of the pixels blanked, {100 * found.get('flags', 0) / found['pictures']:.0f} flags per 100 pictures, "
            f"{found.get('quarantined', 0)} in quarantine, {found['seconds']:.2f} s of processor time each",
            flush=True,
        )
    sources = sorted((arguments.slake / "imgs").glob("*/source.jpg"))
    lines = identifiers(finder, sources, arguments.texts, generator)
    print("identifiers removed + flagged of all, by height of capitals and contrast:")
    for height in HEIGHTS:
        cells = []
        for contrast in CONTRASTS:
            results = Counter(
                line["outcome"] for line in lines if (line["height"], line["contrast"]) == (height, contrast)
            )
            cells.append(f"{results['removed']}+{results['flagged']} of {results.total()}")
        print(f"{height:3} pixels: " + "   ".join(f"{c}: {cell}" for c, cell in zip(CONTRASTS, cells, strict=True)))
    target = [line["outcome"] for line in lines if line["height"] >= 8 and line["contrast"] >= 30]
    if target:
        shares = Counter(target)
        print(
            f"at 8 pixels and 30 levels or more: {shares['removed']} removed, {shares['flagged']} flagged, "
            f"{shares['left']} left of {len(target)}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(lines))


if __name__ == "__main__":
    main()
