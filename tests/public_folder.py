"""A public set of one's own, as a test writes it."""

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


def digest_of(folder: Path) -> str:
    """The digest of what the folder holds now."""
    read_public.cache_clear()
    return read_public(folder)[0]
