"""Picture regions to blank for each device model, in the syntax of the script of the RSNA CTP pixel anonymiser.

    { Manufacturer.equals("ACME") * ManufacturerModelName.equals("Echo") * Rows.equals("768") * Columns.equals("1024") }
    (0, 0, 1024, 60)

A section is a signature in braces and regions in parentheses: left, top, width, height in pixels of the original. A
signature joins conditions by `*` (and): other expressions of CTP's language are refused. `ELEMENTS` lists the elements
that a condition may name, `OPERATIONS` its operations. Text outside of braces and parentheses is a comment. The first
signature that matches a picture applies. Every signature must name rows and columns, so that a region outside of the
picture is refused before any picture is read.

An ultrasound header states the region of the image: everything around it is blanked without a script.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pydicom.dataset import Dataset

from audits.bounded_files import MAX_TEXT, read_bounded
from medfedvqa.errors import ConfigError

ELEMENTS = ("Manufacturer", "ManufacturerModelName", "Modality", "Rows", "Columns")
DEMANDED = frozenset({"Manufacturer", "ManufacturerModelName", "Rows", "Columns"})
OPERATIONS: Mapping[str, Callable[[str, str], bool]] = MappingProxyType(
    {
        "equals": lambda value, wanted: value == wanted,
        "equalsIgnoreCase": lambda value, wanted: value.casefold() == wanted.casefold(),
        "contains": lambda value, wanted: wanted in value,
        "containsIgnoreCase": lambda value, wanted: wanted.casefold() in value.casefold(),
    }
)
ENOUGH = 20
"""A mask is proposed for a box that is blanked in at least this number of a device's pictures."""
ALIKE = 0.7
"""Two boxes are the same if their intersection is at least this share of their union."""
LEAST_REGION = 0.1
"""Regions that an ultrasound device declares are ignored if they cover less than this share of the picture."""
MOST = 300
"""The most pictures of one device and size that are compared."""
Region = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels of the original."""
_CORNERS = ("RegionLocationMinX0", "RegionLocationMinY0", "RegionLocationMaxX1", "RegionLocationMaxY1")
_SECTION = re.compile(r"\{([^{}]*)\}((?:[^{}()]*\([^{}()]*\))*)")
_CONDITION = re.compile(r'\s*(\w+)\.(\w+)\(\s*"([^"]*)"\s*\)\s*')
_REGION = re.compile(r"\(\s*(\d{1,5})\s*,\s*(\d{1,5})\s*,\s*(\d{1,5})\s*,\s*(\d{1,5})\s*\)")


@dataclass(frozen=True)
class DeviceMask:
    """The regions to blank in pictures of one device and size."""

    conditions: tuple[tuple[str, str, str], ...]
    """Element, operation and value."""
    regions: tuple[Region, ...]

    def fits(self, dataset: Dataset) -> bool:
        """Whether the picture is of this device and size."""
        return all(
            OPERATIONS[operation](str(dataset.get(element, "")).strip(), value)
            for element, operation, value in self.conditions
        )


def read_masks(path: Path) -> str:
    """The text of a file of masks. Raises `ConfigError` if it cannot be read or `parsed` refuses it."""
    try:
        text = read_bounded(path, MAX_TEXT).decode()
    except (OSError, ValueError):
        raise ConfigError("the file of masks cannot be read: check --masks") from None
    if not parsed(text):
        raise ConfigError("the file of masks has no section, which is a signature in braces and regions in parentheses")
    return text


def parsed(text: str) -> tuple[DeviceMask, ...]:
    """The masks of a script. Raises `ConfigError`, which names a section by its number, for what is not understood."""
    masks = tuple(
        _section(match[1], match[2], f"masks, section {number}")
        for number, match in enumerate(_SECTION.finditer(text), 1)
    )
    if re.search(r"[{}()]", _SECTION.sub("", text)):
        raise ConfigError("the file of masks has a brace or a parenthesis outside of a section")
    return masks


def _section(signature: str, regions: str, where: str) -> DeviceMask:
    matches = [_CONDITION.fullmatch(part) for part in signature.split("*")]
    conditions = tuple((match[1], match[2], match[3]) for match in matches if match)
    if len(conditions) < len(matches) or any(
        element not in ELEMENTS or operation not in OPERATIONS for element, operation, _ in conditions
    ):
        raise ConfigError(
            f'{where}: a signature joins conditions such as Rows.equals("768") by *; '
            f"the elements are {', '.join(ELEMENTS)}"
        )
    exact = {element: value for element, operation, value in conditions if operation == "equals"}
    sizes = [exact.get(name, "") for name in ("Rows", "Columns")]
    if not {element for element, *_ in conditions} >= DEMANDED or not all(re.fullmatch(r"\d{1,5}", n) for n in sizes):
        raise ConfigError(f"{where}: a signature must name Manufacturer, ManufacturerModelName, exact Rows and Columns")
    rows, columns = map(int, sizes)
    if not regions or _REGION.sub("", regions).count("("):
        raise ConfigError(f"{where}: give at least one region as (left, top, width, height) in pixels")
    boxes = []
    for left, top, width, height in (map(int, match.groups()) for match in _REGION.finditer(regions)):
        if not width or not height or left + width > columns or top + height > rows:
            raise ConfigError(f"{where}: a region is empty or outside of the picture")
        boxes.append((left, top, left + width, top + height))
    return DeviceMask(conditions, tuple(boxes))


def regions_of(dataset: Dataset, masks: Iterable[DeviceMask]) -> tuple[Region, ...]:
    """The regions of the first mask that fits the picture; none if none does."""
    return next((mask.regions for mask in masks if mask.fits(dataset)), ())


def around_ultrasound(dataset: Dataset) -> tuple[Region, ...]:
    """Up to four regions, of banners and menus, around what an ultrasound device declares as image (PS3.3 C.8.5.5).

    Empty if the header declares no such region, one that is empty or lies outside of the picture, or too small ones.
    """
    rows, columns = int(dataset.Rows), int(dataset.Columns)
    named = [[item.get(keyword) for keyword in _CORNERS] for item in dataset.get("SequenceOfUltrasoundRegions") or ()]
    if not named or not all(isinstance(number, int) for corners in named for number in corners):
        return ()
    images = [(left, top, right + 1, bottom + 1) for left, top, right, bottom in named]
    if not all(0 <= box[0] < box[2] <= columns and 0 <= box[1] < box[3] <= rows for box in images):
        return ()
    left, top, right, bottom = image = _union(images)
    if area(image) < LEAST_REGION * rows * columns:
        return ()
    around = ((0, 0, columns, top), (0, bottom, columns, rows), (0, top, left, bottom), (right, top, columns, bottom))
    return tuple(box for box in around if area(box))


@dataclass(frozen=True)
class BlankedBoxes:
    """The boxes that were blanked in one picture without a mask."""

    device: tuple[str, str]
    """Manufacturer and model."""
    size: tuple[int, int]
    """Rows and columns of the original."""
    boxes: tuple[Region, ...]
    """In pixels of the original."""


def proposals(pictures: Iterable[BlankedBoxes]) -> list[tuple[int, str]]:
    """Masks for boxes that recur in pictures of one device and size: the number of pictures, and the section.

    Only the first `MOST` pictures of a device and size count.
    """
    groups: dict[tuple[tuple[str, str], tuple[int, int]], list[tuple[Region, ...]]] = defaultdict(list)
    for picture in pictures:
        group = groups[picture.device, picture.size]
        if all(picture.device) and not any('"' in name for name in picture.device) and len(group) < MOST:
            group.append(picture.boxes)
    return [
        (len(cluster.pictures), _written(device, size, _union(cluster.boxes)))
        for (device, size), members in sorted(groups.items())
        for cluster in _clusters(members)
        if len(cluster.pictures) >= ENOUGH
    ]


@dataclass
class _Cluster:
    """Boxes that are alike, and the pictures that have them."""

    boxes: list[Region]
    pictures: set[int]


def _clusters(members: Iterable[tuple[Region, ...]]) -> list[_Cluster]:
    clusters = list[_Cluster]()
    for number, boxes in enumerate(members):
        for box in boxes:
            cluster = next((cluster for cluster in clusters if is_alike(cluster.boxes[0], box)), None)
            if cluster is None:
                clusters.append(_Cluster([box], {number}))
            else:
                cluster.boxes.append(box)
                cluster.pictures.add(number)
    return clusters


def is_alike(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two boxes share most of their union."""
    common = common_area(one, other)
    return common >= ALIKE * (area(one) + area(other) - common)


def common_area(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of pixels that two boxes share."""
    width, height = min(one[2], other[2]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[1], other[1])
    return max(0, width) * max(0, height)


def area(box: Sequence[int]) -> int:
    """The number of a box's pixels."""
    return (box[2] - box[0]) * (box[3] - box[1])


def _union(boxes: Iterable[Region]) -> Region:
    lefts, tops, rights, bottoms = zip(*boxes, strict=True)
    return min(lefts), min(tops), max(rights), max(bottoms)


def _written(device: tuple[str, str], size: tuple[int, int], box: Region) -> str:
    facts = zip(("Manufacturer", "ManufacturerModelName", "Rows", "Columns"), (*device, *size), strict=True)
    signature = " * ".join(f'{name}.equals("{value}")' for name, value in facts)
    return f"{{ {signature} }}\n({box[0]}, {box[1]}, {box[2] - box[0]}, {box[3] - box[1]})"
