"""What differential privacy leaves of what sites would learn together: a rule, for before a job begins.

A step moves the model by a clipped sum of at most rate x patients gradients of length 1, and by noise of deviation
`noise` in each number that is trained. Over all steps the sums add up, and the noise by its root mean square:
`noise_over_signal` is the length of the noise beside the longest way that the sums could go. What is left of the gain
over the most frequent answer, as a share of the gain without privacy, follows

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
"""The ratio that leaves one half: of SLAKE, and of the drawn set, whose questions all patients have in common."""
POWER = 1.4
"""How steeply more noise takes the rest."""


def trained_numbers(exchange: Exchange) -> int:
    """How many numbers a job trains: those of the largest upload of parameters."""
    return max(sum(math.prod(t.shape) for t in task.up if t.kind is Kind.PARAMETERS) for task in exchange.tasks)


def noise_over_signal(planned: Sequence[DPEvent], numbers: int, sites: int, patients: float) -> float:
    """The ratio for a job's events at each of some sites, each with some patients in training.

    `numbers`: how many are trained. Raises `AccountingError` if no step of the job has Gaussian noise, or for fewer
    sites than share the noise.
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
    """Accuracies without privacy, of a run on data like the sites': shares of right answers from 0 to 1."""

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
        """The patients at each site from which the released model beats training alone, where `patients` give `ratio`:
        the least and the most.

        The sampling rate, and so epsilon, stays; None if training alone is as good even without noise.
        """
        if self.together <= max(self.alone, self.majority):
            return None
        needed = (self.alone - self.majority) / (self.together - self.majority)
        if needed <= 0:
            return 1, 1
        most, least = (math.ceil(patients * ratio / (half * math.pow(1 / needed - 1, 1 / POWER))) for half in HALF)
        return least, most
