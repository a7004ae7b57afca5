"""Noise that the sites of a stepwise job share: what a site sends is whole numbers, whose masked sum is exact.

A site's own noise protects nobody by itself (see `privacy.mechanisms.shared_gaussian`), so nothing that it computes of
its rows may be used but by way of the opened sum: no part of the model may stay at the site, and no second batch may
follow before the exchange. It sends w - g, as in every stepwise job, in units in which both are whole numbers: g is a
noisy sum of whole grid steps, and w, which all sites have received, is rounded alike at all of them.
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
"""Whole numbers below it stay exact in double precision with noise added, whose deviation is at most 2^46."""


def check_shared_noise(config: StepwiseConfig, dp: DPSettings | None, secagg: Secagg, alone: bool) -> None:
    """Raises `ConfigError` for a job whose sums do not protect a site's part of the noise. `alone`: a part of
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
    """The size of one whole number that a site sends: a grid step over the divisor of sums, at this learning rate."""
    values = sum(math.prod(shape) for shape in shapes.values())
    return grid_step(dp.clip, values, shared_gaussian.GRID_SHARE) / dp.expected_patients * rate


def encoded(start: Values, sums: Mapping[str, torch.Tensor], size: float) -> Tensors:
    """What a site sends: (start - noisy sum) in whole numbers, float64, scaled as masked sums take them exactly."""
    begun = {name: start[name].detach().double().cpu().div(size).round() for name in sums}
    if not all(value.abs().max() < LARGEST for value in begun.values()):
        raise ConfigError("the model's values are too large for the grid of shared noise: lower 'learning_rate'")
    whole = {name: value - sums[name].cpu() for name, value in begun.items()}
    return {name: np.ldexp(value.numpy(), -SUM_BITS) for name, value in whole.items()}


def decoded(mean: Tensors, size: float) -> Tensors:
    """The mean of what sites would have sent in plain numbers, float32."""
    scale = size * 2.0**SUM_BITS
    return {name: (array.astype(np.float64) * scale).astype(np.float32) for name, array in mean.items()}
