"""Answers a question about a picture with the model in this folder:

    python answer.py picture.png "Is there a pneumothorax?"

It needs torch and safetensors, and Pillow to open a file. Research software, not a medical device: no answer may guide
the care of a patient.
"""

import html
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from medfedvqa.models.ngrams import hashed_ngrams

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[a-z]+|[0-9]|[^\sa-z0-9]+"
"""What counts as a word for CLIP's tokenizer, in printable ASCII in lower case."""


class ExportedModel:
    """The model in a folder that `medfedvqa export` wrote."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.answers: list[str] = json.loads((folder / "answers.json").read_text(encoding="utf-8"))
        merges = [line.split(" ") for line in (folder / "merges.txt").read_text(encoding="utf-8").splitlines()]
        self._numbers = {left + right: 512 + rank for rank, (left, right) in enumerate(merges)}
        self._ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}
        self._weights = load_file(folder / "model.safetensors")
        self._program = torch.export.load(folder / "program.pt2").module()

    @torch.no_grad()
    def probabilities(self, grey: torch.Tensor, question: str) -> torch.Tensor:
        """The probability of each answer, float32 [answers], for a grey picture [height, width] in 0..255."""
        question = " ".join(question.split())
        inputs = self.picture(grey), self.tokens(question), hashed_ngrams([question])
        logits: torch.Tensor = self._program(self._weights, *inputs)
        return logits[0].softmax(dim=0)

    def picture(self, grey: torch.Tensor) -> torch.Tensor:
        """The picture within a black square, float32 [1, 1, size, size] in 0..1."""
        size, pixels = self.config["image_size"], grey.float()[None, None]
        if grey.shape != (size, size):
            sides = [round(side * (size / max(grey.shape))) for side in grey.shape]
            pixels = F.interpolate(pixels, size=sides, mode="area")
            (above, left) = ((size - side) // 2 for side in sides)
            pixels = F.pad(pixels, (left, size - sides[1] - left, above, size - sides[0] - above))
        return pixels / 255.0

    def tokens(self, question: str) -> torch.Tensor:
        """The question's token ids, int64 [1, context].

        Raises `ValueError` for a text that CLIP's tokenizer would clean by tables that are not here.
        """
        plain = question.isascii() and question.isprintable() and html.unescape(question) == question
        if not plain or "<start_of_text>" in question or "<end_of_text>" in question:
            raise ValueError("write the question in plain ASCII, without HTML")
        facts = self.config["tokenizer"]
        ids = [self._id(part) for word in re.findall(WORDS, question.lower()) for part in self._parts(word)]
        ids = [facts["start"], *ids[: facts["context"] - 2], facts["end"]]
        return torch.tensor([ids + [0] * (facts["context"] - len(ids))])

    def _parts(self, word: str) -> list[str]:
        """A word in byte pairs: the pair of the lowest rank is merged until none is left."""
        parts = [*word[:-1], word[-1] + "</w>"]
        while len(parts) > 1:
            ranks = [self._ranks.get(pair, len(self._ranks)) for pair in zip(parts, parts[1:], strict=False)]
            if min(ranks) == len(self._ranks):
                break
            best, merged = ranks.index(min(ranks)), list[str]()
            left, right = parts[best : best + 2]
            while parts:
                double = parts[:2] == [left, right]
                merged.append(left + right if double else parts[0])
                parts = parts[2 if double else 1 :]
            parts = merged
        return parts

    def _id(self, part: str) -> int:
        """A part's token id. Ids are in order: 256 bytes, 256 bytes that end a word, then the merges."""
        body = part.removesuffix("</w>")
        if len(body) == 1:
            return ord(body) - 33 + (256 if part != body else 0)
        return self._numbers[part]


def grey_picture(path: Path, sees_colour: bool) -> torch.Tensor:
    """The levels of a picture's file, uint8 [height, width]; `sees_colour`: whether the model was trained with colour.

    Raises `ValueError` for a picture that training would read differently.
    """
    from PIL import Image

    with Image.open(path) as picture:
        if picture.mode.startswith(("I", "F")) or picture.has_transparency_data:
            raise ValueError("save the picture with 8 bits a channel and without transparency")
        red, green, blue = (band.tobytes() for band in picture.convert("RGB").split())
        if sees_colour and not red == green == blue:
            raise ValueError("this model was trained on colour pictures, but this program reads grey pictures only")
        content = picture.convert("L")
    return torch.frombuffer(bytearray(content.tobytes()), dtype=torch.uint8).view(content.height, content.width)


def main() -> None:
    """Prints the five most probable answers."""
    model = ExportedModel(Path(__file__).parent)
    grey = grey_picture(Path(sys.argv[1]), model.config["channels"] == 3)
    shares = model.probabilities(grey, sys.argv[2])
    best = shares.topk(min(5, len(shares)))
    for share, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        print(f"{share:7.1%}  {model.answers[place]}")
    print("Research software, not a medical device: no answer may guide the care of a patient.")


if __name__ == "__main__":
    main()
