"""Whoever sees all noisy gradients, and knows all but one patient, tells no more than the epsilon that is charged.

The real handlers run with the project's own noise, again and again, with a patient and without. A distinguisher knows
the others: their contributions and which of them each step drew. It projects what is released on the direction in
which the patient moves it, and the rates at which it is right give a lower bound of epsilon.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from audits.epsilon_lower_bound import rate_interval
from medfedvqa.attack.neighbours import Neighbours, Step, TaskTranscript
from medfedvqa.core import Method, create, method_type
from medfedvqa.data import phantom
from medfedvqa.models import Backbone
from privacy import DPSettings, RepeatableRandomness, SecureRandomness, spent

REPETITIONS = 200
"""Runs with the patient, and as many without."""
LEARNT_FROM = 6
"""Runs of which the mean of a patient's contribution is taken."""
CONFIDENCE = 0.95
DELTA = 0.05
"""Below one over the number of patients; a small number of runs proves nothing at a much smaller one."""
EPSILON = 1.0
SHARERS = 9
OPTIONS = {
    "rounds": 1, "local_epochs": 2, "local_unit": "batches", "blocks": 1, "weighting": "uniform", "answers": "closed",
    "learning_rate": 1e-9,
}  # fmt: skip
"""Two steps from values that hardly move, so that a patient contributes the same to each of them."""


@pytest.fixture(scope="module")
def neighbours(single: Backbone) -> Neighbours:
    """Twelve phantom patients on a tiny CLIP, eight of them to train on."""
    return Neighbours(phantom.read(("site-001",)), "site-001", single)


Make = Callable[[str, float], Method]


def private(name: str, rate: float) -> Method:
    """A method at a noise that the project calibrates itself."""
    known = method_type(name).config_type.model_fields
    options = {key: value for key, value in OPTIONS.items() if key in known}
    return create(name, options, DPSettings(epsilon=EPSILON, delta=DELTA, sample_rate=rate))


def shared(name: str, rate: float) -> Method:
    """A stepwise job, one step of it, whose noise nine sites share while one more may collude."""
    options = {"schedule": "stepwise", "rounds": 1, "blocks": 1, "weighting": "uniform", "answers": "closed"}
    dp = DPSettings(epsilon=EPSILON, delta=DELTA, sample_rate=rate, sharers=SHARERS, colluders=1)
    return create(name, options, dp, True)


def charged(method: Method) -> float:
    """The epsilon that a whole job costs each patient."""
    return spent([event for task in method.plan() for event in task.events], DELTA).epsilon


@dataclass(frozen=True)
class Distinguisher:
    """Scores a run: high where the patient seems to be in."""

    directions: tuple[torch.Tensor, ...]
    """By step: the unit vector along the patient's contribution."""
    lengths: tuple[float, ...]
    """By step: the patient's contribution along it."""
    others: tuple[dict[str, float], ...]
    """By step: the contribution of each other patient along it."""
    rate: float
    deviation: float
    """Of the noise on a sum."""
    divisor: float

    @classmethod
    def of(
        cls, neighbours: Neighbours, method: Method, everybody: Method, patient: str, share_of_noise: float
    ) -> "Distinguisher":
        """Learnt from runs in which everybody takes part."""
        rest = [key for key in neighbours.patients[0] if key != patient]
        own = mean_contributions(neighbours, everybody, patient)
        directions = tuple(each / each.norm() for each in own)
        result = {key: mean_contributions(neighbours, everybody, key) for key in rest}
        others = tuple(
            {key: float(each[step] @ direction) for key, each in result.items()}
            for step, direction in enumerate(directions)
        )
        lengths = tuple(float(each.norm()) for each in own)
        deviation = share_of_noise * method.noise.of_one_site * method.dp.clip
        return cls(directions, lengths, others, method.dp.sample_rate, deviation, method.dp.expected_patients)

    def score(self, run: TaskTranscript, patient: str) -> float:
        """The logarithm of how much likelier the run is with the patient than without."""
        return sum(self._of_step(number, step, patient) for number, step in enumerate(run.steps))

    def _of_step(self, number: int, step: Step, patient: str) -> float:
        along = float(flat(step.released).double() @ self.directions[number]) * self.divisor
        along -= sum(self.others[number][key] for key in step.drawn if key != patient)
        length = self.lengths[number]
        evidence = (2 * along * length - length**2) / (2 * self.deviation**2)
        return float(
            np.logaddexp(math.log1p(-self.rate) if self.rate < 1 else -math.inf, math.log(self.rate) + evidence)
        )


def flat(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.flatten() for value in values])


def mean_contributions(neighbours: Neighbours, method: Method, patient: str) -> list[torch.Tensor]:
    """What the patient adds to the sum of each step, over some draws of what is random in it."""
    runs = []
    for seed in range(LEARNT_FROM):
        reference = neighbours.run(method, randomness=RepeatableRandomness(seed))
        other = neighbours.run(method, patient, reference, RepeatableRandomness(seed))
        runs.append([flat(a.sums) - flat(b.sums) for a, b in zip(reference.steps, other.steps, strict=True)])
    return [torch.stack(each).mean(0) for each in zip(*runs, strict=True)]


def lower_bound(inside: np.ndarray, outside: np.ndarray, epsilon: float) -> float:
    """The least epsilon that fits how often the distinguisher is sure, with and without the patient.

    It is sure where one is more than e^epsilon times as likely as the other: no test refutes epsilon more easily.
    """
    return max(_bound(inside > epsilon, outside > epsilon), _bound(outside < -epsilon, inside < -epsilon))


def _bound(right: np.ndarray, wrong: np.ndarray) -> float:
    """From the runs in which it is sure of what is so, and those in which it is sure of what is not."""
    low, _ = rate_interval(int(right.sum()), len(right), CONFIDENCE)
    _, high = rate_interval(int(wrong.sum()), len(wrong), CONFIDENCE)
    return math.log((low - DELTA) / high) if low > DELTA else -math.inf


def proved(
    neighbours: Neighbours, name: str, rate: float, share_of_noise: float = 1.0, make: Make = private
) -> tuple[float, float]:
    """The lower bound, and the epsilon that is charged."""
    method, patient = make(name, rate), neighbours.patients[0][0]
    epsilon = charged(method)
    knowing = Distinguisher.of(neighbours, method, make(name, 1.0), patient, share_of_noise)

    def scores(without: str | None) -> np.ndarray:
        runs = (
            neighbours.run(method, without, randomness=SecureRandomness(), share_of_noise=share_of_noise)
            for _ in range(REPETITIONS)
        )
        return np.array([knowing.score(run, patient) for run in runs])

    return lower_bound(scores(None), scores(patient), epsilon), epsilon


IN_TEST_ALL = ("fedavg", 0.25)
each_private_job = pytest.mark.parametrize(
    ("name", "rate"),
    [
        pytest.param(name, rate, marks=pytest.mark.slow if (name, rate) == IN_TEST_ALL else pytest.mark.release)
        for rate in (0.25, 1.0)
        for name in ("fedavg", "prompt_pfl", "feddat")
    ],
)
"""Hundreds of trainings each: all but one are for releases."""


@each_private_job
def test_nobody_tells_more_than_the_charged_epsilon(neighbours: Neighbours, name: str, rate: float) -> None:
    """The lower bound of epsilon, of the strongest observer, is never above what the patient is charged."""
    bound, epsilon = proved(neighbours, name, rate)
    assert bound <= epsilon <= EPSILON


@each_private_job
def test_a_quarter_of_the_noise_is_found_out(neighbours: Neighbours, name: str, rate: float) -> None:
    """The test before this one can fail: with too little noise the lower bound is above the charged epsilon."""
    bound, epsilon = proved(neighbours, name, rate, share_of_noise=0.25)
    assert bound > epsilon


@pytest.mark.slow
def test_the_noise_that_sites_share_protects_and_one_site_s_part_does_not(neighbours: Neighbours) -> None:
    """Through the real handlers of a stepwise job: with as much noise as the nine honest sites add together the bound
    keeps to the charged epsilon, and with the site's own part alone it is far above."""
    bound, epsilon = proved(neighbours, "fedavg", 1.0, SHARERS**0.5, shared)
    assert bound <= epsilon <= EPSILON
    bound, epsilon = proved(neighbours, "fedavg", 1.0, 1.0, shared)
    assert bound > epsilon
