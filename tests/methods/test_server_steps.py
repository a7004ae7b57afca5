"""Methods whose server steps from what it sent towards the mean: FedAvgM, FedAdam, FedYogi."""

import numpy as np
import pytest

from medfedvqa.core import MeanOnShares, create
from medfedvqa.core.averaging import Averaging
from medfedvqa.errors import ConfigError
from medfedvqa.methods.fedavgm import FedAvgM

STEPPING = ("fedavgm", "fedadam", "fedyogi")
HELD = np.float32([1.0, -2.0, 0.5])
MEANS = np.float32([[1.5, -2.0, 0.25], [1.25, -2.5, 0.5], [1.0, -2.0, 1.0]])


def by_hand(name: str) -> list[np.ndarray]:
    """What the papers' formulas send after each mean, with the default options but for a server rate of 0.5."""
    sent, v, m, rate = HELD.astype(float), np.zeros(3), np.zeros(3), 0.5
    u, trail = np.full(3, 1e-6), []
    for mean in MEANS:
        step = mean - sent
        v = 0.9 * v + step
        m = 0.9 * m + 0.1 * step
        u = 0.99 * u + 0.01 * step**2 if name == "fedadam" else u - 0.01 * step**2 * np.sign(u - step**2)
        sent = (sent + rate * (v if name == "fedavgm" else m / (np.sqrt(u) + 1e-3))).astype(np.float32).astype(float)
        trail.append(sent)
    return trail


@pytest.mark.parametrize("name", STEPPING)
def test_a_servers_steps_are_the_papers(name: str) -> None:
    """Three steps in a row, of which each continues from the state of the one before."""
    method, held, state = create(name, {"server_rate": 0.5}), {"w": HELD}, {}
    for mean, expected in zip(MEANS, by_hand(name), strict=True):
        held, state = method.server_step(held, {"w": mean}, state)
        assert held["w"].dtype == np.float32
        np.testing.assert_allclose(held["w"], expected, rtol=1e-6)


def test_without_momentum_at_rate_one_fedavgm_is_fedavg(site, federation, small):
    """Bit for bit over three rounds; with momentum the second mean is passed by."""
    runs = {}
    for name, options in {"fedavg": {}, "fedavgm": {"momentum": 0.0}, "fedavgm!": {}}.items():
        method = create(name.strip("!"), {**small, "rounds": 3, **options})
        runs[name] = federation(method, {"one": site("one"), "other": site("other")})
        runs[name].run()
    plain, none, much = ([m[3] for m in runs[name].received if m[0] == "evaluate"][0] for name in runs)
    assert all(np.array_equal(plain[name], none[name]) for name in plain)
    assert any(not np.allclose(plain[name], much[name]) for name in plain)


@pytest.mark.parametrize("name", STEPPING)
def test_the_first_mean_is_sent_as_it_is(name: str, site, federation, small):
    """The server holds nothing before it; all sites receive the same in every round."""
    run = federation(create(name, {**small, "rounds": 3}), {"one": site("one"), "other": site("other")})
    run.run()
    uploads = run.uploads("start", 1)
    rows = {site: int(upload["train_rows"]) for site, upload in uploads.items()}
    down = {number: [m[3] for m in run.received if m[1] == number and m[0] == "train"] for number in (2, 3)}
    for tensor, array in down[2][0].items():
        mean = sum(uploads[site][tensor].astype(np.float64) * rows[site] for site in rows) / sum(rows.values())
        assert np.allclose(array, mean, rtol=0, atol=1e-7)
        assert all(np.array_equal(each[0][tensor], each[1][tensor]) for each in down.values())


def test_a_server_that_never_knows_the_mean_is_refused_when_the_job_is_made() -> None:
    """Where nothing is shared, and where the mean on shares is opened to the sites alone."""

    class OfSites(FedAvgM):
        name = "of_sites"
        on_shares = {"train": MeanOnShares(to="sites")}

    with pytest.raises(ConfigError, match="they share none"):
        create("fedavgm", {"tuning": "classifier", "own": "head"})
    OfSites(OfSites.config_type())
    with pytest.raises(ConfigError, match="only the sites know"):
        OfSites(OfSites.config_type(), secagg=True)


def test_whoever_has_no_step_at_the_server_says_so() -> None:
    """The hook's own answer is the mean, and keeps nothing."""
    plain = create("fedavg", {})
    assert isinstance(plain, Averaging) and not plain.steps_at_server
    sent, state = plain.server_step({"w": HELD}, {"w": (mean := MEANS[0])}, {})
    assert sent["w"] is mean and not state
    assert all(create(name, {}).steps_at_server for name in STEPPING)
