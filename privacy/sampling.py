"""Poisson sampling of patients, with a cap on what each contributes."""

import numpy as np
import torch

from privacy.noise import Randomness


class PatientSampler:
    """Draws whole patients; who takes part is as secret as the noise, so it comes from the same source."""

    def __init__(self, patients: torch.Tensor, rate: float, cap: int, randomness: Randomness) -> None:
        """`patients`: each row's patient, int64 [rows]. `rate`: probability of each patient. `cap`: rows of one."""
        order = torch.argsort(patients, stable=True)
        _, counts = torch.unique(patients, return_counts=True)
        self._rows = torch.split(order, counts.tolist())
        self._rate, self._cap, self._randomness = rate, cap, randomness

    def sample(self) -> list[torch.Tensor]:
        """The rows of each patient drawn, int64 [1 to cap]; of patients with more, as many drawn at random."""
        drawn = np.flatnonzero(self._randomness.uniform(len(self._rows)) < self._rate)
        return [self._capped(self._rows[patient]) for patient in drawn.tolist()]

    def _capped(self, rows: torch.Tensor) -> torch.Tensor:
        if len(rows) <= self._cap:
            return rows
        kept = np.argsort(self._randomness.uniform(len(rows)))[: self._cap]
        return rows[torch.from_numpy(np.sort(kept))]
