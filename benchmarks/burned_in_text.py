"""Measures how much burned-in text the detector misses, by the height of capitals, and how much it blanks needlessly.

Invented names and dates are drawn on SLAKE's images at random places, white or in a grey that stands out by 60 of 255
levels. A text counts as found if at least 95 % of its pixels are blanked; heights are in pixels of the stored picture.
"""

import argparse
from pathlib import Path

import cv2
import numpy as np

from medfedvqa.ingest.burned_in_text import TextFinder, fitted
from medfedvqa.ingest.image_options import Options
from medfedvqa.ingest.refusal_reasons import Quarantined

TEXTS = ("DOE^JANE 1970-02-03", "Meyer, Anna", "ID 4711-0815", "J.D. *03.02.1970")
CAPITAL = 22
"""The height in pixels of a capital in OpenCV's plain font at scale 1."""


def with_text(
    grey: np.ndarray, text: str, height: float, stands_out: int, generator: np.random.Generator
) -> np.ndarray:
    """A copy of the picture with the text at a random place; `height` is in pixels of this picture."""
    scale = height / CAPITAL
    width, tall = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, 1)[0]
    left = int(generator.integers(0, max(1, grey.shape[1] - width)))
    bottom = int(generator.integers(tall + 1, grey.shape[0] - 2))
    around = int(grey[bottom - tall : bottom, left : left + width].mean())
    shade = 255 if stands_out == 255 else (around + stands_out if around + stands_out < 256 else around - stands_out)
    return cv2.putText(
        grey.copy(), text, (left, bottom), cv2.FONT_HERSHEY_SIMPLEX, scale, shade, max(1, round(scale * 2))
    )


def main() -> None:
    """Measure both, and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("slake", type=Path, help="SLAKE's folder")
    parser.add_argument("--images", type=int, default=24)
    arguments = parser.parse_args()
    side, finder, generator = Options().side, TextFinder(), np.random.default_rng(0)
    paths = sorted((arguments.slake / "imgs").glob("*/source.jpg"))
    paths = [paths[number] for number in generator.choice(len(paths), arguments.images, replace=False)]
    pictures = [fitted(cv2.imread(str(path), cv2.IMREAD_GRAYSCALE), 2 * side) for path in paths]
    shares = [finder.clean(picture, side).share for picture in pictures]
    print(f"{len(pictures)} images as they are: {sum(map(bool, shares))} with finds, {np.mean(shares):.2%} blanked")
    for stands_out, name in ((255, "white"), (60, "grey")):
        for height in (5, 8, 14):
            detected = 0
            for number, picture in enumerate(pictures):
                factor = max(1.0, max(picture.shape) / side)
                text = with_text(picture, TEXTS[number % len(TEXTS)], height * factor, stands_out, generator)
                letters = fitted((np.abs(text.astype(int) - picture) > 20).astype(np.uint8) * 255, side) > 127
                try:
                    cleaned = finder.clean(text, side).grey
                except Quarantined:
                    detected += 1
                    continue
                detected += not letters.any() or (cleaned[letters] == 0).mean() >= 0.95
            print(f"{name}, capitals of {height} pixels: {detected} of {len(pictures)} found", flush=True)


if __name__ == "__main__":
    main()
