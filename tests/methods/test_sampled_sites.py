"""Sampling of sites: who trains in a round, what it does to means and costs, and where it is refused."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from medfedvqa.core import Method, Site, create
from medfedvqa.errors import ConfigError
from privacy import DPSettings

QUICK: dict[str, Any] = {
    "rounds": 3, "local_epochs": 1, "batch_rows": 6, "reduction": 4, "hidden": 8, "learning_rate": 0.01, "sampled": 2,
    "weighting": "uniform", "public_pairs": 12, "transfer_epochs": 1,
}  # fmt: skip
SITES = ("east", "north", "south", "west")
DP = DPSettings(noise=1.0, count_noise=1.0, sample_rate=0.5, expected_patients=2, physical_patients=4)


def method(name: str, dp: DPSettings | None = None, secagg: bool = False, **options: object) -> Any:
    known = type(create(name, {}).config).model_fields
    return create(name, {key: value for key, value in {**QUICK, **options}.items() if key in known}, dp, secagg)


@pytest.fixture
def run(site: Callable[..., Site], federation: type) -> Callable[..., Any]:
    """A job over the four sites."""

    def go(job: Method) -> Any:
        done = federation(job, {name: site(name) for name in SITES})
        done.run()
        return done

    return go


def trained(done: Any, round: int) -> list[str]:
    return [site for task, number, site, _ in done.sent if number == round and task != "evaluate"]


@pytest.mark.parametrize("name", ["fedavg", "fedmd"])
def test_each_round_calls_as_many_sites_and_takes_the_mean_of_these(name: str, run: Callable[..., Any]) -> None:
    """The next round's sites get the mean of the last one's, whoever they are; all sites are tested."""
    done = run(method(name))
    for number in (1, 2, 3):
        assert len(trained(done, number)) == len({*trained(done, number)}) == 2
    uploads = [up for task, number, _, up in done.sent if number == 2 and task == "train"]
    downs = [down for task, number, _, down in done.received if number == 3 and task == "train"]
    for key, array in downs[0].items():
        np.testing.assert_allclose(array, np.mean([up[key] for up in uploads], axis=0), rtol=1e-5, atol=1e-7)
    assert {site for task, _, site, _ in done.sent if task == "evaluate"} == {*SITES}
    assert [[*record.site_seconds] for record in done.hub.history.rounds] == [trained(done, n) for n in (1, 2, 3)]


def test_the_draw_is_uniform_and_the_same_again() -> None:
    """It follows from seed and round alone; over many rounds every pair of sites comes, each as often as others."""
    job = method("fedavg")
    draws = [job.drawn(SimpleNamespace(seed=7), number, SITES) for number in range(1, 601)]
    assert draws == [job.drawn(SimpleNamespace(seed=7), number, SITES) for number in range(1, 601)]
    assert draws != [job.drawn(SimpleNamespace(seed=8), number, SITES) for number in range(1, 601)]
    counts = {pair: draws.count(pair) for pair in draws}
    assert len(counts) == 6 and all(60 <= count <= 140 for count in counts.values())
    assert method("fedavg", sampled=None).drawn(SimpleNamespace(seed=7), 1, SITES) == SITES


def test_a_site_is_charged_for_the_rounds_that_it_trains_in_as_if_it_were_always_called() -> None:
    """No amplification: the noise and the plan of a private job are those of a job that calls all sites."""
    sampled, whole = (method("fedavg", DP, sampled=count, answers="closed") for count in (2, None))
    assert sampled.plan() == whole.plan() and sampled.noise == whole.noise and sampled.cost("train").steps > 0


def test_where_a_site_must_be_in_every_round_or_shares_nothing_sampling_is_refused() -> None:
    """And on shares, where two sums would differ by one site; each with its reason."""
    with pytest.raises(ConfigError, match="differ by one"):
        method("fedavg", secagg=True)
    with pytest.raises(ConfigError, match="differ by one"):
        method("fedmd", secagg=True)
    with pytest.raises(ConfigError, match="share nothing"):
        method("local")
    with pytest.raises(ConfigError, match="unknown key"):
        create("prompt_pfl", {"sampled": 2})


def test_more_sites_than_there_are_cannot_be_drawn(run: Callable[..., Any]) -> None:
    """Refused before anything is trained."""
    with pytest.raises(ConfigError, match="at most as many"):
        run(method("fedavg", sampled=5))
