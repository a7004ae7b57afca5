"""Noise that the sites of a stepwise job share: what a site sends is whole numbers, whose masked sum is exact.

One site's noise is too small to protect its patients (see `privacy.mechanisms.shared_gaussian`). So the results from
its rows are used only through the opened sum: no part of the model stays at the site, and each exchange has one batch.
A site sends w - g, as in every stepwise job, in whole grid steps: g is its noisy sum of gradients, and w is the model
that all sites received and round in the same way.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch

from audits import Tensors
from medfedvqa.core.stepwise import StepwiseConfig
from medfedvqa.errors import ConfigError
from medfedvqa.models import Shapes, Values
from privacy import DPSettings, Secagg
from privacy.mechanisms import shared_gaussian
from privacy.mechanisms.sampled_gaussian import grid_step
from privacy.secagg.masked_mean import SUM_BITS

LARGEST = 2.0**51
"""Whole numbers below this stay exact in float64 with noise added, whose standard deviation is at most 2^46."""


def check_shared_noise(config: StepwiseConfig, dp: DPSettings | None, secagg: Secagg, alone: bool) -> None:
    """Raises `ConfigError` for a job that uses a site's part of the noise outside of the full sum. `alone`: a part of
    the model stays at a site, or not all sites are in each sum."""
    if dp is None or not dp.is_shared:
        return
    if not secagg:
        raise ConfigError("in clear the server sees each site's own noise: share noise with 'secagg', or not at all")
    if secagg == "crypten":
        raise ConfigError("sites share noise of means under masks: give 'secagg' as 'masks'")
    if not config.is_stepwise or config.local_epochs != 1:
        raise ConfigError("noise is shared only in sums of one step: set 'schedule' to 'stepwise', with one batch each")
    if alone:
        raise ConfigError(
            "what stays at a site, or a sum of some sites, would have too little noise: leave out 'own', 'mixing', "
            "'unseen' and 'sampled'"
        )


def unit(dp: DPSettings, shapes: Shapes, rate: float) -> float:
    """The change of the model per whole number that a site sends: grid step / expected patients * learning rate."""
    values = sum(math.prod(shape) for shape in shapes.values())
    return grid_step(dp.clip, values, shared_gaussian.GRID_SHARE) / dp.expected_patients * rate


def encoded(start: Values, sums: Mapping[str, torch.Tensor], size: float) -> Tensors:
    """A site's upload: start - noisy sum in whole numbers, float64, times 2^-SUM_BITS to make masked sums exact."""
    begun = {name: start[name].detach().double().cpu().div(size).round() for name in sums}
    if not all(value.abs().max() < LARGEST for value in begun.values()):
        raise ConfigError("the model's values are too large for the grid of shared noise: lower 'learning_rate'")
    whole = {name: value - sums[name].cpu() for name, value in begun.items()}
    return {name: np.ldexp(value.numpy(), -SUM_BITS) for name, value in whole.items()}


def decoded(mean: Tensors, size: float) -> Tensors:
    """The mean of `encoded` uploads in the model's own units, float32."""
    scale = size * 2.0**SUM_BITS
    return {name: (array.astype(np.float64) * scale).astype(np.float32) for name, array in mean.items()}
