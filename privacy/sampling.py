"""Poisson sampling of patients, with a cap on the rows of each."""

from collections.abc import Sequence

import numpy as np
import torch

from privacy.noise import Randomness
from privacy.training_randomness import PatientStreams


class PatientSampler:
    """Draws whole patients, each with its own coin. The sample is as secret as the noise."""

    def __init__(
        self, patients: torch.Tensor, keys: Sequence[str], rate: float, cap: int, randomness: Randomness
    ) -> None:
        """`patients`: each row's patient, int64 [rows]. `keys`: by patient number, the key of the patient's stream.
        `rate`: the probability of each patient. `cap`: the most rows of one patient."""
        order = torch.argsort(patients, stable=True)
        numbers, counts = torch.unique(patients, return_counts=True)
        rows = torch.split(order, counts.tolist())
        self._rows = {keys[number]: its_rows for number, its_rows in zip(numbers.tolist(), rows, strict=True)}
        self._rate, self._cap, self._randomness = rate, cap, randomness

    def sample(self) -> list[torch.Tensor]:
        """The rows of each drawn patient, int64 [1 to cap]; of a patient with more rows, `cap` drawn at random."""
        streams = PatientStreams(self._randomness.secret())
        keys = (key for key in self._rows if streams.uniform(key, "coin", 1)[0] < self._rate)
        return [self._capped(self._rows[key], streams, key) for key in keys]

    def _capped(self, rows: torch.Tensor, streams: PatientStreams, key: str) -> torch.Tensor:
        if len(rows) <= self._cap:
            return rows
        places = np.argsort(streams.uniform(key, "rows", len(rows)), kind="stable")[: self._cap]
        return rows[torch.from_numpy(np.sort(places))]
