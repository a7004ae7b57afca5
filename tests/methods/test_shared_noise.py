"""Noise that the sites of a stepwise job share: what is sent, what opens, and which jobs are refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from medfedvqa.core import Site, create
from medfedvqa.core.averaging import decoded, encoded, unit
from medfedvqa.core.stepwise import NOISY, RATE, STARTED
from medfedvqa.errors import ConfigError
from privacy import DPSettings
from privacy.secagg.layout import SUM_BITS, TensorLayout, mean_of_sum, summand

DP = DPSettings(noise=2.0, count_noise=5.0, sample_rate=0.5, expected_patients=8, sharers=3, colluders=1)
STEP = {
    **{"schedule": "stepwise", "rounds": 4, "tuning": "classifier", "hidden": 8, "dropout": 0.0},
    **{"weighting": "uniform", "answers": "closed"},
}
Make = Callable[..., Site]


def test_what_sites_send_is_whole_numbers_and_their_masked_sum_is_the_exact_step(site: Make) -> None:
    """Of four sites, in the first exchange and in the next: to the last bit of whole numbers, none of which wraps. The
    mean is the model less the mean of all noisy sums over the public divisor."""
    method, sites = create("fedavg", STEP, DP, True), [site(name) for name in ("a", "b", "c", "d")]
    shapes = method.shared(sites[0].backbone.shape)
    layout = TensorLayout.of({name: tuple(shape) for name, shape in shapes.items()})
    received: dict[str, np.ndarray] = {}
    for number in (1, 2):
        total, exact, states = np.zeros(layout.size + 2, np.uint64), np.zeros(layout.size), []
        for here in sites:
            state = method.setup(here)
            state, reply = (method.start if number == 1 else method.train)(here, state, received, number)
            assert all(array.dtype == np.float64 for array in reply.values())
            whole = np.ldexp(layout.flatten(reply), SUM_BITS)
            assert np.array_equal(whole, np.rint(whole)) and np.abs(whole).max() < 2.0**53
            total, exact, states = total + summand(reply, 1.0, layout, 4), exact + whole, [*states, state]
        assert np.array_equal(total[:-2].view(np.int64), exact.astype(np.int64))
        size = unit(DP, shapes, states[0][RATE])
        mean = decoded(mean_of_sum(total, 4, layout), size)
        for name, array in mean.items():
            noisy = sum(state[NOISY][name] for state in states) / 4 * size
            expected = states[0][STARTED][name].double() - noisy
            assert np.abs(array - expected.numpy()).max() <= 1e-6 * max(1.0, expected.abs().max().item())
        received = mean


def test_a_private_job_with_shared_noise_trains(site: Make, federation: Any) -> None:
    """All the way through exchanges, with the server's optimiser, and every upload is as declared."""
    method = create("fedavg", STEP, DP, True)
    run = federation(method, {name: site(name) for name in ("a", "b", "c", "d")})
    run.run()
    first, last = (
        next(t for task, _, _, t in messages if task != "start") for messages in (run.received, run.received[::-1])
    )
    assert all(array.dtype == np.float32 and np.isfinite(array).all() for array in last.values())
    assert any((first[name] != last[name]).any() for name in last)


def test_the_same_start_is_rounded_alike_whatever_a_site_s_rows_are(site: Make) -> None:
    """So that a sum shows sums of noise and gradients alone: with equal ones the difference of uploads is theirs."""
    start = {"w": torch.randn(50, 4)}
    sums = [{"w": torch.randint(-1000, 1000, (50, 4)).double()} for _ in range(2)]
    one, other = (np.ldexp(encoded(start, each, 2.0**-30)["w"], SUM_BITS) for each in sums)
    assert np.array_equal(other - one, (sums[0]["w"] - sums[1]["w"]).numpy())


@pytest.mark.parametrize("values", [torch.ones(2), torch.tensor([0.0, torch.nan])])
def test_values_beyond_the_grid_are_refused_and_a_larger_rate_makes_room(values: torch.Tensor) -> None:
    """Ones, as in a normalisation, among seven million values; what is no number never passes."""
    sums, shapes = {"w": torch.zeros(2, dtype=torch.float64)}, {"w": (7_000_000,)}
    with pytest.raises(ConfigError, match="raise 'learning_rate' or 'clip'"):
        encoded({"w": values}, sums, unit(DP, shapes, 1e-4))
    if values.isfinite().all():
        size = unit(DP, shapes, 0.1)
        assert np.allclose(decoded(encoded({"w": values}, sums, size), size)["w"], values.numpy())


@pytest.mark.parametrize(
    ("method", "changes", "secagg", "words"),
    [
        ("fedavg", {}, False, "in clear"),
        ("fedavg", {"schedule": "rounds"}, True, "stepwise"),
        ("fedavg", {"local_epochs": 2}, True, "one step"),
        ("fedavg", {"own": "last"}, True, "leave out 'own'"),
        ("fedavg", {"unseen": ["a"]}, True, "leave out 'own'"),
        ("prompt_pfl", {"schedule": None, "tuning": None, "weighting": None}, True, "share noise"),
    ],
)
def test_jobs_in_which_a_site_s_own_noise_would_have_to_protect_alone_are_refused(
    method: str, changes: dict[str, Any], secagg: bool, words: str
) -> None:
    """In a sentence that says which option to leave out."""
    options = {name: value for name, value in {**STEP, **changes}.items() if value is not None}
    if method == "prompt_pfl":
        options = {"rounds": 2, "answers": "closed"}
    with pytest.raises(ConfigError, match=words):
        create(method, options, DP, secagg)


def test_a_job_needs_as_many_sites_as_share_and_may_collude() -> None:
    """And no member of a masked sum opens one of fewer: see `answer` in `privacy.secagg.pairwise_masks`."""
    assert create("fedavg", STEP, DP, True).least_sites == 4
    plain = DPSettings(noise=2.0, count_noise=5.0, sample_rate=0.5, expected_patients=8)
    assert create("fedavg", STEP, plain, True).least_sites == 3
