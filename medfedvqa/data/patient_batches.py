"""Batches that keep a patient's rows together, since these share pictures and privacy counts patients."""

from collections.abc import Iterator

import torch

from medfedvqa.data.site_data import Examples
from medfedvqa.errors import ConfigError


def batches(examples: Examples, rows: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """One epoch of row indices, each int64 [at most `rows`], every row exactly once.

    Patients come in random order, the rows of each in published order. A batch takes patients until the next patient
    would overfill it. A patient with more than `rows` rows is cut.
    Raises `ConfigError` if `rows` is not positive.
    """
    if rows < 1:
        raise ConfigError("a batch has at least 1 row")
    order, counts = torch.argsort(examples.patients, stable=True), torch.bincount(examples.patients)
    patients = [its_rows for its_rows in torch.split(order, counts.tolist()) if len(its_rows)]
    batch: list[torch.Tensor] = []
    for number in torch.randperm(len(patients), generator=generator).tolist():
        for part in patients[number].split(rows):
            if sum(map(len, batch)) + len(part) > rows:
                yield torch.cat(batch)
                batch = []
            batch.append(part)
    if batch:
        yield torch.cat(batch)
