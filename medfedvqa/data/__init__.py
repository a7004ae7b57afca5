"""Readers, organ partition, pictures and batches: a site's questions from files to tensors.

Names are imported at their first use: the tables of a data set are checked without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# At once, as this function has the name of its module, which would take its place here.
from medfedvqa.data.partition import PARTS, Part, PartitionRows, Questions, Split, is_part, partition

if TYPE_CHECKING:
    from medfedvqa.data.answers import numbered
    from medfedvqa.data.augmentation import views
    from medfedvqa.data.hospitals import load_site
    from medfedvqa.data.patient_batches import batches
    from medfedvqa.data.pictures import Pictures, PictureViews, Source
    from medfedvqa.data.public import PublicPairs, PublicQuestions, held_out_pairs, public_pairs
    from medfedvqa.data.readers import (
        READERS,
        is_built_in,
        is_registered,
        organs,
        read,
        reader_function,
        register_reader,
    )
    from medfedvqa.data.schema import Row, VQAData
    from medfedvqa.data.site_data import Examples, SiteData, build_site, united
    from medfedvqa.data.store_reader import check_reviewed
    from medfedvqa.public_answers import CLOSED_ANSWERS, ListName, bundled_list, fold, public_list, training_answers

__all__ = [
    "CLOSED_ANSWERS",
    "READERS",
    "Examples",
    "ListName",
    "PictureViews",
    "Pictures",
    "PublicPairs",
    "PublicQuestions",
    "Questions",
    "Row",
    "SiteData",
    "Source",
    "PARTS",
    "Part",
    "PartitionRows",
    "Split",
    "VQAData",
    "batches",
    "build_site",
    "bundled_list",
    "check_reviewed",
    "fold",
    "held_out_pairs",
    "is_built_in",
    "is_part",
    "is_registered",
    "load_site",
    "numbered",
    "organs",
    "partition",
    "public_list",
    "public_pairs",
    "read",
    "reader_function",
    "register_reader",
    "training_answers",
    "united",
    "views",
]

_PLACES = {
    "data.answers": ("numbered",),
    "data.augmentation": ("views",),
    "data.hospitals": ("load_site",),
    "data.patient_batches": ("batches",),
    "data.pictures": ("PictureViews", "Pictures", "Source"),
    "data.public": ("PublicPairs", "PublicQuestions", "held_out_pairs", "public_pairs"),
    "data.readers": ("READERS", "is_built_in", "is_registered", "organs", "read", "reader_function", "register_reader"),
    "data.schema": ("Row", "VQAData"),
    "data.site_data": ("Examples", "SiteData", "build_site", "united"),
    "data.store_reader": ("check_reviewed",),
    "public_answers": ("CLOSED_ANSWERS", "ListName", "bundled_list", "fold", "public_list", "training_answers"),
}
"""The public names by the module that has them."""


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(import_module(f"medfedvqa.{module}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
