"""The folder layouts of data sets, each with the files that identify it. Loads no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

from medfedvqa.data.schema import Row, VQAData


@dataclass(frozen=True)
class SetLayout:
    """One layout of a set."""

    reader: str
    """The name by which `--data` asks for it."""
    title: str
    marks: tuple[str, ...]
    """Patterns of files: a folder that has one of each has this form."""
    place: str
    """The module and the name of the function that reads the set, which are imported when it is read."""
    rows: str = "questions"
    """What a row is, for a sentence."""

    def fits(self, folder: Path) -> bool:
        """Whether a folder has this form."""
        return all(any(folder.glob(mark)) for mark in self.marks)

    def read(self, folder: Path) -> VQAData:
        """The set. Raises `DataError`."""
        data: VQAData = resolve_name(self.place)(folder)
        return data


_VQA_RAD, _PARQUET = "medfedvqa.data.published_files:read_vqa_rad", "medfedvqa.data.other_sets:read_parquet"
_VQA_MED, _COCO_VQA = "medfedvqa.data.other_sets:read_vqa_med", "medfedvqa.data.other_sets:read_coco_vqa"
_CAPTIONS, _FEATURES = "medfedvqa.data.labelled:read_captions", "medfedvqa.data.labelled:read_features"

LAYOUTS = (
    SetLayout("vqa-rad", "VQA-RAD as published", ("VQA_RAD Dataset Public.json",), _VQA_RAD),
    SetLayout("vqa-rad", "VQA-RAD in two files", ("trainset.json", "testset.json"), _VQA_RAD),  # MEVF's, M2I2's
    SetLayout("slake", "SLAKE as published", ("train.json",), "medfedvqa.data.published_files:read_slake"),
    SetLayout(
        "path-vqa", "PathVQA as published", ("qas/train/train_qa.pkl",), "medfedvqa.data.other_sets:read_path_vqa"
    ),
    SetLayout("vqa-med", "VQA-Med 2019 as published", ("*/All_QA_Pairs_train.txt",), _VQA_MED),
    SetLayout("coco-vqa", "VQA v2 on COCO", ("v2_OpenEnded_mscoco_train2014_questions.json",), _COCO_VQA),
    SetLayout("parquet", "parquet files with pictures in them", ("*.parquet",), _PARQUET),
    SetLayout("parquet", "parquet files with pictures in them", ("data/*.parquet",), _PARQUET),
    SetLayout("captions", "pictures with captions", ("captions.csv",), _CAPTIONS, "captions"),
    SetLayout("table", "patients as rows of features", ("table.csv",), _FEATURES, "labels"),
)


def of_reader(reader: str) -> tuple[SetLayout, ...]:
    """The forms that a reader reads; none for a reader of other data than public sets."""
    return tuple(layout for layout in LAYOUTS if layout.reader == reader)


def marks(layout: SetLayout) -> str:
    """The files that a form has, for a sentence."""
    return ", ".join(f"'{mark}'" for mark in layout.marks)


def expected(reader: str) -> str:
    """The files that the folder of a reader's set must hold, for a sentence."""
    return " or ".join(f"'{layout.marks[0]}'" for layout in of_reader(reader))


def fitting(folder: Path) -> list[SetLayout]:
    """The forms that a folder has, one for each reader."""
    return list({layout.reader: layout for layout in reversed(LAYOUTS) if layout.fits(folder)}.values())[::-1]


def hint(folder: Path) -> str:
    """The end of a sentence on what a folder holds instead of the wanted set; empty if nothing is recognised."""
    for place in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        if found := fitting(place):
            where = "it" if place == folder else f"its folder '{place.name}'"
            return f"; {where} holds {' and '.join(f'{each.title} (--data {each.reader})' for each in found)}"
    if packed := archives(folder):
        return f"; {', '.join(packed)} in it is packed: unpack it first"
    if (folder / "images.jsonl").is_file():
        return "; it looks like a store, which `medfedvqa ingest` has checked: name it as --data of `medfedvqa run`"
    return ""


def archives(folder: Path) -> list[str]:
    """The packed files in a folder."""
    endings = (".zip", ".tar", ".tar.gz", ".tgz", ".7z", ".rar")
    return sorted(path.name for path in folder.iterdir() if path.is_file() and path.name.lower().endswith(endings))


def absent(rows: Sequence[Row]) -> Iterator[Row]:
    """The first row of each picture whose file is missing or empty."""
    firsts = {row.image: row for row in reversed(rows)}
    for image, row in sorted(firsts.items(), key=lambda item: item[1].index):
        if not image.is_file() or image.stat().st_size == 0:
            yield row
