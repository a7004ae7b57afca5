"""Pictures in folders of classes, without questions: FedDAT's Table 1 on DomainNet (X. Peng et al., ICCV 2019), or own.

A site is a folder, a class a folder in it: `SITE/CLASS/FILE`. Every row has one question, and its answer is the class.
Where DomainNet's lists `SITE_train.txt` and `SITE_test.txt` lie beside the site's folder, they say the parts. Else a
quarter of the pictures, by the digest of site, class and file name, is for testing.
"""

import hashlib
import re
from pathlib import Path

from audits.bounded_files import read_bounded
from medfedvqa.bounds import ORGAN_NAME
from medfedvqa.data.published_files import MAX_ROWS
from medfedvqa.data.schema import Row, VQAData
from medfedvqa.errors import DataError

QUESTION = "What does the picture show?"
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff"})
TESTED = 0.25
"""The share of pictures for testing where no list says it, on average."""


def read(root: Path) -> VQAData:
    """All pictures. The privacy unit is the picture. Raises `DataError`."""
    folders = _folders(root)
    if not folders:
        raise DataError("the data root has no folder of a site: pictures are in SITE/CLASS/FILE")
    rows: list[Row] = []
    for folder in folders:
        if not re.fullmatch(ORGAN_NAME, folder.name):
            raise DataError(
                "a site's folder is named by lower-case letters, digits and hyphens, at most 32: rename the others"
            )
        pictures = _pictures(folder)
        parts = _listed(folder, pictures)
        for name, picture in pictures.items():
            split = _part(name) if parts is None else parts.get(name)
            if split is not None:
                answer = picture.parent.name.replace("_", " ")
                rows.append(Row(len(rows), folder.name, split, True, QUESTION, answer, name, picture))
    return VQAData("image-classes", tuple(folder.name for folder in folders), rows)


def classes(root: Path) -> tuple[str, ...]:
    """The classes of all sites, as answers. Raises `DataError` as `read` does."""
    return tuple(sorted({row.answer.lower() for row in read(root).rows}))


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _pictures(site: Path) -> dict[str, Path]:
    """The site's pictures by SITE/CLASS/FILE. Raises `DataError` for a class without any."""
    found = {}
    for folder in _folders(site):
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
        if not files:
            raise DataError(f"a class of the site '{site.name}' has no picture: remove its folder, or fill it")
        found.update({f"{site.name}/{folder.name}/{path.name}": path for path in files})
    return found


def _listed(site: Path, pictures: dict[str, Path]) -> dict[str, str] | None:
    """The part of each listed picture; None without lists. Raises `DataError` for a list of other pictures."""
    files = {part: site.with_name(f"{site.name}_{part}.txt") for part in ("train", "test")}
    if not any(file.exists() for file in files.values()):
        return None
    parts: dict[str, str] = {}
    for part, file in files.items():
        for number, line in enumerate(_lines(file), 1):
            name = line.rpartition(" ")[0]
            if name not in pictures or name in parts:
                raise DataError(f"line {number} of '{file.name}' names no picture of the site, or one a second time")
            parts[name] = part
    return parts


def _lines(file: Path) -> list[str]:
    try:
        return read_bounded(file, MAX_ROWS).decode().splitlines()
    except (OSError, ValueError):
        raise DataError(f"'{file.name}' is missing or cannot be read: both lists of a site belong together") from None


def _part(name: str) -> str:
    """A picture's part, which depends on no other picture."""
    place = int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:6]) / 2**48
    return "test" if place < TESTED else "train"
