"""One round of a site's training, for audits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from medfedvqa.data import Examples


@dataclass(frozen=True)
class Probe:
    """One round of a site's training, as an auditor sees it."""

    values: Mapping[str, torch.Tensor]
    """The trained values at the start of the round, under the names of `Method.trained`."""
    losses: Callable[[Mapping[str, torch.Tensor], Examples], torch.Tensor]
    """The part of each row's loss that depends on data, [rows], as a differentiable function of such values."""
