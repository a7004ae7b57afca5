"""Attacks on sums whose noise sites share, and the charged epsilons beside Google's accountants.

Four sites of which three are counted on. The adversary is that of the definition: it knows every row but one patient's,
and so all sums before noise. It sees what the server opens of real steps, encoded and summed up as masks leave them;
colluding sites tell it what they sent, so that it can take that away.
"""

import math
from dataclasses import dataclass

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from audits.epsilon_lower_bound import rate_interval
from medfedvqa.core.averaging import encoded, unit
from privacy import DPSettings, PrivateStep, SecureRandomness, spent
from privacy.accounting import ORDERS
from privacy.mechanisms.shared_gaussian import SharedGaussian
from privacy.secagg.layout import TensorLayout, summand
from privacy.settings import Cost

SITES, VALUES, TRIALS, DELTA = 4, 16, 10_000, 0.01
DP = DPSettings(epsilon=1.0, delta=DELTA, sample_rate=1.0, expected_patients=8, sharers=3, colluders=1, clip=0.5)
EVENTS = DP.events(Cost(steps=1), DP.levels(Cost(steps=1)))
CHARGED = spent(EVENTS, DELTA).epsilon
OUTSIDE = spent([event.against(0) for event in EVENTS], DELTA).epsilon


@dataclass(frozen=True)
class Opened:
    """One round."""

    whole: np.ndarray
    """What the adversary has in the end, in whole steps of the grid, [VALUES]."""
    sums: tuple[np.ndarray, np.ndarray]
    """What it would be without noise: with the patient, and without."""


def opened(present: bool, colluders: int, values: int, rounds: int = 1, noisy_sites: int = SITES) -> Opened:
    """What four sites add up, of which the first has the patient, a gradient of norm C along one direction.

    `rounds`: so many at once, one after the other in the vector, since the noise of each value is its own.
    `noisy_sites`: how many of them add their noise, for attacks that have to succeed.
    """
    start, layout = {"w": torch.linspace(-1, 1, values)}, TensorLayout.of({"w": (values,)})
    size, levels = unit(DP, {"w": (values,)}, 1.0), DP.levels(Cost(steps=1))
    total, known = np.zeros(values + 2, np.uint64), np.zeros(values + 2, np.uint64)
    grid, patient = 0.0, torch.full((values,), DP.clip / math.sqrt(values / rounds), dtype=torch.float64)
    for place in range(SITES):
        value = torch.zeros(values, requires_grad=True)
        step = PrivateStep([value], DP.clip, DP.sharers)
        step._sums[value] = torch.linspace(0, place, values, dtype=torch.float64) + patient * (present and not place)
        grid, rounded = step.rounded_sums[0], step.rounded_sums[1][value]
        noisy = step.finish(levels.gradients, DP.expected_patients, SecureRandomness())[value]
        sent = noisy if place < noisy_sites else rounded
        part = summand(encoded(start, {"w": sent}, size), 1.0, layout, SITES)
        total = total + part
        if place >= SITES - colluders:
            known = known + part
    begun = (start["w"].double() / size).round().numpy() * (SITES - colluders)
    others = [torch.linspace(0, place, values, dtype=torch.float64) for place in range(SITES - colluders)]
    rest = sum((other / grid).round().numpy() for other in others[1:])
    sums = tuple(((others[0] + patient * there) / grid).round().numpy() + rest for there in (1, 0))
    return Opened(begun - (total - known)[:-2].view(np.int64).astype(np.float64), (sums[0], sums[1]))


def lower_bound(colluders: int, noisy_sites: int = SITES) -> float:
    """The least epsilon at `DELTA` that the likelihood ratio proves, at the threshold where most is expected of it.

    Of its rates in `TRIALS` rounds each with and without the patient, the ends that favour the mechanism count.
    """
    scores = {}
    for present in (True, False):
        all_rounds = opened(present, colluders, TRIALS * VALUES, TRIALS, noisy_sites)
        moved = all_rounds.sums[0] - all_rounds.sums[1]
        along = (all_rounds.whole - all_rounds.sums[1]) * moved
        scores[present] = along.reshape(TRIALS, VALUES).sum(1) / np.square(moved[:VALUES]).sum()
    bounds = []
    for threshold in (0.5, 1.0, 1.5, 2.0, 3.0):
        right, wrong = (int((scores[present] > threshold).sum()) for present in (True, False))
        least, most = rate_interval(right, TRIALS, 0.99)[0], rate_interval(wrong, TRIALS, 0.99)[1]
        bounds.append(math.log((least - DELTA) / most) if least > DELTA else 0.0)
    return max(bounds)


def test_no_distinguisher_proves_more_than_is_charged() -> None:
    """More noise is in the way of the server alone than of the server with one site: each keeps to its epsilon."""
    assert 0 < lower_bound(0) <= OUTSIDE < 0.9 * CHARGED
    assert 0 < lower_bound(1) <= CHARGED


def test_without_the_noise_of_the_other_honest_sites_more_is_proved_than_is_charged() -> None:
    """The test could fail: one site's own noise is no protection."""
    assert lower_bound(1, noisy_sites=1) > CHARGED


@pytest.mark.parametrize("colluders", [0, 1])
def test_the_low_bits_of_a_sum_show_nothing(colluders: int) -> None:
    """What is left of the opened sum, less each of both possible sums, is as likely a sum of whole noises either way:
    by the digits that numbers leave unused, and by the residues of whole numbers, guesses are those of a coin."""
    guesses = np.zeros(2)
    for number in range(40):
        present = number % 2 == 0
        each = opened(present, colluders, values=13_000)
        scores = [np.array(_oddities(each.whole - known)) for known in each.sums]
        guesses += np.where(scores[0] == scores[1], 0.5, (scores[0] < scores[1]) == present)
    assert all(8 <= count <= 32 for count in guesses), guesses


def test_the_low_bits_of_a_sum_on_no_grid_show_all() -> None:
    """The test could fail: with sums that are not whole, the right one alone leaves whole noise."""
    right = 0
    for number in range(40):
        present = number % 2 == 0
        each = opened(present, 0, values=1000)
        fine = [known + np.linspace(0.1, 0.4, 1000) * there for known, there in zip(each.sums, (1, 0), strict=True)]
        seen = each.whole + np.linspace(0.1, 0.4, 1000) * present
        scores = [_oddities(seen - known) for known in fine]
        right += (scores[0] < scores[1]) == present
    assert right == 40


def _oddities(left: np.ndarray) -> tuple[float, float]:
    """How far numbers are from whole ones, and how their last digits are from even."""
    return float(np.abs(left - left.round()).sum()), abs(float((left.round() % 2).mean()) - 0.5)


WHOLE_ORDERS = [order for order in ORDERS if order > 1 and float(order).is_integer()]
SETTINGS = [
    (rate, noise, sites, colluders, steps)
    for rate, noise, steps in ((0.05, 1.0, 300), (0.1, 2.0, 200), (0.25, 1.6, 60), (0.5, 3.0, 60), (1.0, 8.0, 40))
    for sites, colluders in ((3, 1), (7, 2), (17, 2), (40, 10))
]


@pytest.mark.parametrize(("rate", "noise", "sites", "colluders", "steps"), SETTINGS)
def test_both_epsilons_are_those_of_another_accountant(
    rate: float, noise: float, sites: int, colluders: int, steps: int
) -> None:
    """Google's, of the Gaussian noise that so many sites add together: never less than its tight figure, and no more
    than its Renyi figure at whole orders."""
    event, delta = SharedGaussian(rate, noise / math.sqrt(sites), sites, colluders, steps), 1e-5
    for honest, charged in ((sites, event), (sites + colluders, event.against(0))):
        total = noise * math.sqrt(honest / sites)
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(total))
        job = dp_accounting.SelfComposedDpEvent(step, steps)
        ours = spent([charged], delta)
        renyi = float(RdpAccountant(WHOLE_ORDERS).compose(job).get_epsilon(delta))
        tight = float(PLDAccountant(value_discretization_interval=1e-3).compose(job).get_epsilon(delta))
        # Its figures are pessimistic, by less than one step of its grid for each step of the job.
        assert tight - 0.02 <= ours.epsilon <= ours.rdp <= renyi + 1e-4
