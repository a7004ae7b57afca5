"""Forecasts how much accuracy differential privacy leaves of joint training: a rule to apply before a job begins.

A step moves the model by a clipped sum of at most rate x patients gradients of length 1, and by noise of standard
deviation `noise` in each trained number. Over all steps the sums add up, and the noise by its root mean square:
`noise_over_signal` is the length of the noise over the longest possible path of the sums. The gain over the most
frequent answer, as a share of the gain without privacy, follows

    kept = 1 / (1 + (ratio / half)^POWER)

in federations of 1,000 and 5,000 drawn patients at epsilon 1 and 8, with shared noise and with each site's own, and on
SLAKE. `half` depends on the data: the less patients' gradients agree, the smaller it is. So the rule gives a range
(raw lines in docs/measured/shared-noise.jsonl).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from audits import Exchange, Kind
from privacy.errors import AccountingError
from privacy.mechanisms import DPEvent, Use
from privacy.mechanisms.sampled_gaussian import SampledGaussian
from privacy.mechanisms.shared_gaussian import SharedGaussian

HALF = (1.1, 2.7)
"""The ratio at which one half is left: for SLAKE, and for the drawn set, in which patients share all questions."""
POWER = 1.4
"""The exponent of the rule: how steeply the gain falls with more noise."""


def trained_numbers(exchange: Exchange) -> int:
    """The number of values that a job trains: the size of its largest upload of parameters."""
    return max(sum(math.prod(t.shape) for t in task.up if t.kind is Kind.PARAMETERS) for task in exchange.tasks)


def noise_over_signal(planned: Sequence[DPEvent], numbers: int, sites: int, patients: float) -> float:
    """The ratio for `planned`, the events of each of `sites` sites with `patients` training patients each.

    `numbers`: the number of trained values. Raises `AccountingError` if no step of the job has Gaussian noise, or if
    there are fewer sites than must share the noise.
    """
    steps, variance = 0, 0.0
    for event in planned:
        if not isinstance(event, SampledGaussian | SharedGaussian) or event.use is not Use.GRADIENTS:
            continue
        if isinstance(event, SharedGaussian) and sites < event.sites + event.colluders:
            raise AccountingError(
                f"noise is shared by {event.sites} sites beside {event.colluders} that may collude: give more sites"
            )
        one_site = event.site_noise if isinstance(event, SharedGaussian) else event.noise
        steps += event.steps
        variance += event.steps * numbers * sites * (one_site / (event.rate * sites * patients)) ** 2
    if not steps:
        raise AccountingError("no step of this job is trained by DP-SGD, so its noise cannot be forecast")
    return math.sqrt(variance) / steps


def kept(ratio: float) -> tuple[float, float]:
    """The shares of the gain over the most frequent answer that may be left, from 0 to 1: the least and the most."""
    least, most = (1 / (1 + math.pow(ratio / half, POWER)) for half in HALF)
    return least, most


@dataclass(frozen=True)
class Pilot:
    """Accuracies, 0 to 1, of a run without privacy on data like the sites'."""

    majority: float
    """The accuracy of the most frequent answer."""
    alone: float
    """The accuracy of the models that sites train alone."""
    together: float

    def released(self, ratio: float) -> tuple[float, float]:
        """The accuracies of the released model that the rule expects: the least and the most."""
        gain = max(0.0, self.together - self.majority)
        least, most = (self.majority + share * gain for share in kept(ratio))
        return least, most

    def patients_needed(self, ratio: float, patients: int) -> tuple[int, int] | None:
        """The number of patients at each site from which the released model beats training alone: least and most.

        The sampling rate, and so epsilon, stays; None if training alone is as good even without noise.
        """
        if self.together <= max(self.alone, self.majority):
            return None
        needed = (self.alone - self.majority) / (self.together - self.majority)
        if needed <= 0:
            return 1, 1
        most, least = (math.ceil(patients * ratio / (half * math.pow(1 / needed - 1, 1 / POWER))) for half in HALF)
        return least, most
