"""A public set of one's own, and a site's pictures with captions, as a test writes them."""

from pathlib import Path

import numpy as np
from PIL import Image

from medfedvqa.data.public_sets import read_public


def write(folder: Path, count: int, questions: bool = True, seed: int = 0, pair: str = "", question: str = "") -> Path:
    """Grey pictures of noise, each with a caption and a question. `pair`, `question`: a last line of each table."""
    (folder / "pictures").mkdir(parents=True)
    pairs, asked = ["picture,caption"], ["picture,question,answer"]
    for number, level in enumerate(np.random.default_rng(seed).integers(0, 256, (count, 40, 32), dtype=np.uint8)):
        Image.fromarray(level).save(folder / "pictures" / f"{number}.png")
        pairs.append(f'pictures/{number}.png,"a film, the {number}th"')
        asked.append(f"pictures/{number}.png,Is there a mass?,{'yes' if number % 2 else 'no'}")
    (folder / "pairs.csv").write_text("\n".join([*pairs, pair]))
    if questions:
        (folder / "questions.csv").write_text("\n".join([*asked, question]))
    return folder


def write_captions(folder: Path, count: int, site: str = "ward") -> Path:
    """Grey pictures, `count` of each brightness, each with a caption that says it; a quarter is for testing."""
    folder.mkdir(parents=True)
    lines = ["picture,patient,site,caption,split"]
    for number in range(4 * count):
        Image.new("L", (16, 16), 20 + 60 * (number % 4) + number // 4).save(folder / f"{number}.png")
        words = ("black", "dark grey", "light grey", "white")[number % 4]
        lines.append(f"{number}.png,p{number},{site},a {words} film,{'test' if number // 4 % 4 == 3 else 'train'}")
    (folder / "captions.csv").write_text("\n".join(lines))
    return folder


def digest_of(folder: Path) -> str:
    """The digest of what the folder holds now."""
    read_public.cache_clear()
    return read_public(folder)[0]
