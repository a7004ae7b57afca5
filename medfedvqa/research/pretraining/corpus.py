"""The pictures, captions and questions that the bundled backbone learns from."""

import io
import json
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from medfedvqa.data import slake, vqa_rad
from medfedvqa.data.images import load_image, square
from medfedvqa.data.published_files import read_rows
from medfedvqa.data.schema import Row
from medfedvqa.errors import DataError
from medfedvqa.public_answers import fold

OPEN_SETS = ("kermany_cxr", "brain_tumor_mr", "iqoth_chest_ct", "mhh_covid_cxr", "mednist")
SHARE_ALIKE = ("mednist",)
LABELS = ("organ", "modality", "plane", "finding")
BENCHMARKS = {"slake": slake.read, "vqa-rad": vqa_rad.read}
PIXELS = 160
"""Side of the stored pictures: a quarter more than the second edition's input, so that crops stay sharp."""


@dataclass(frozen=True)
class Picture:
    """One picture's texts. Pictures with the same `meaning` are not negatives of each other."""

    source: str
    meaning: tuple[object, ...]
    captions: tuple[str, ...]
    questions: tuple[tuple[str, str], ...]
    labels: dict[str, str]


@dataclass(frozen=True)
class Corpus:
    """Pictures and their pixels, uint8 [pictures, side, side], in the same order."""

    pictures: Sequence[Picture]
    pixels: torch.Tensor


def is_for_probes(index: int) -> bool:
    """Whether training leaves out the picture of this index: one open picture in twenty."""
    return index % 20 == 0


def load(root: Path, benchmark: str | None, share_alike: bool = True, side: int = PIXELS) -> Corpus:
    """The open sets under `root/open` and, if named, one benchmark, `side` pixels wide. Raises `DataError`."""
    sets = [name for name in OPEN_SETS if share_alike or name not in SHARE_ALIKE]
    pairs = [pair for name in sets for pair in _open_set(root / "open" / f"{name}.zip", name, side)]
    if benchmark:
        pairs.extend(_benchmark(root / benchmark, benchmark, side))
    return Corpus([picture for picture, _ in pairs], torch.stack([pixels for _, pixels in pairs]))


def _open_set(path: Path, name: str, side: int) -> Iterator[tuple[Picture, torch.Tensor]]:
    if not path.is_file():
        raise DataError(f"'{path.name}' is missing under the folder 'open'")
    with zipfile.ZipFile(path) as archive:
        for line in archive.read("captions.jsonl").decode().splitlines():
            entry = json.loads(line)
            labels = {key: entry[key] for key in LABELS if entry[key]}
            with Image.open(io.BytesIO(archive.read(entry["file"]))) as picture:
                pixels = square(np.asarray(picture.convert("L")), side)
            words = Picture(
                source=name,
                meaning=tuple(labels.get(key) for key in LABELS),
                captions=(entry["caption"],),
                questions=tuple(_label_questions(labels)),
                labels=labels,
            )
            yield words, pixels[0].round().to(torch.uint8)


def _label_questions(labels: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Questions that the publishers' labels answer. Half of them are closed, with yes and no in balance."""
    organ, modality = labels["organ"], labels["modality"]
    yield "what imaging modality was used", modality
    yield "which part of the body is shown", organ
    others = {"CT": ("X-ray", "MRI"), "X-ray": ("CT", "MRI"), "MRI": ("CT", "X-ray")}[modality]
    for name, answer in ((modality, "yes"), (others[len(organ) % 2], "no")):
        yield f"is this a {name} image", answer
    elsewhere = "abdomen" if organ in ("chest", "head", "brain") else "chest"
    for name, answer in ((organ, "yes"), (elsewhere, "no")):
        yield f"is this an image of the {name}", answer
    if plane := labels.get("plane"):
        yield "in what plane was the image taken", plane
        yield f"is this the {plane} plane", "yes"
        yield f"is this the {'coronal' if plane != 'coronal' else 'axial'} plane", "no"
    if finding := labels.get("finding"):
        yield from _finding_questions(finding, organ)


def _finding_questions(finding: str, organ: str) -> Iterator[tuple[str, str]]:
    healthy = finding.startswith("normal")
    yield "what is the main finding", finding
    yield "is the image normal", "yes" if healthy else "no"
    yield f"is there any abnormality in the {organ}", "no" if healthy else "yes"
    if organ == "brain":
        yield "is there a mass in the brain", "yes"
        for tumour in ("glioma", "meningioma", "pituitary tumour"):
            yield f"is this a {tumour}", "yes" if tumour == finding else "no"
    elif "lung" in finding:
        yield "is there a nodule or mass in the lung", "no" if healthy else "yes"
        yield "is there evidence of malignancy", "yes" if finding == "lung cancer" else "no"
    else:
        yield "is there evidence of pneumonia", "no" if healthy else "yes"
        yield "are the lungs clear", "yes" if healthy else "no"
        yield "is there consolidation or opacity in the lungs", "no" if healthy else "yes"


def _benchmark(root: Path, name: str, side: int) -> Iterator[tuple[Picture, torch.Tensor]]:
    """A benchmark's pictures: captions from its annotations, and all its questions and answers."""
    by_image: defaultdict[Path, list[Row]] = defaultdict(list)
    for row in BENCHMARKS[name](root).rows:
        by_image[row.image].append(row)
    modality = _slake_modalities(root) if name == "slake" else {}
    for image, rows in by_image.items():
        kind = modality.get(f"{image.parent.name}/{image.name}", "radiology image")
        questions = tuple((fold(row.question), fold(row.answer)) for row in rows)
        words = Picture(
            source=name,
            meaning=(name, image.name, image.parent.name),
            captions=(f"{kind} of the {rows[0].organ}",),
            questions=questions,
            labels={},
        )
        pixels = load_image(image, side, rows[0].index)[0]
        yield words, (pixels * 255).round().to(torch.uint8)


def _slake_modalities(root: Path) -> dict[str, str]:
    files = (root / f"{split}.json" for split in slake.SPLITS)
    return {row["img_name"]: f"{row['modality']} image" for file in files for row in read_rows(file)}
