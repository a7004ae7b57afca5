"""Several data sets as one, whose sites are named by set and organ, as in `vqa-rad-chest`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch

from medfedvqa.data.schema import Row, VQAData


def joined(together: str, sets: Mapping[str, VQAData]) -> VQAData:
    """The sets by name as one of the name `together`.

    A patient's key says the set, so that no two sets share a patient. Rows keep the index that they have in their own
    set, which the organ names.
    """
    rows = [
        replace(row, organ=_site(name, row.organ), patient=f"{name}/{row.patient}")
        for name, data in sets.items()
        for row in data.rows
    ]
    of = {_site(name, organ): data for name, data in sets.items() for organ in data.organs}
    return VQAData(
        name=together,
        organs=tuple(of),
        rows=rows,
        load=partial(_load, {name: data.load for name, data in sets.items()}),
        load_coloured=partial(_load, {name: data.coloured for name, data in sets.items()}),
        publishes_validation=frozenset(site for site, data in of.items() if data.publishes_validation),
    )


def _site(name: str, organ: str) -> str:
    return f"{name}-{organ}"


def _load(loads: Mapping[str, Callable[[Row, int], torch.Tensor]], row: Row, size: int) -> torch.Tensor:
    return loads[row.patient.partition("/")[0]](row, size)
