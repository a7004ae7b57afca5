"""A site's training as an auditor sees it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from medfedvqa.data import Examples


@dataclass(frozen=True)
class Probe:
    """A site's training as an auditor sees it."""

    values: Mapping[str, torch.Tensor]
    """What a round trains, as it begins, named as `Method.trained` names it."""
    losses: Callable[[Mapping[str, torch.Tensor], Examples], torch.Tensor]
    """The data's part of the loss of each row with such values, [rows]; it can be differentiated by them."""
