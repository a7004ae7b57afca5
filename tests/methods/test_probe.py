"""What an auditor sees of a round: where it begins, and the loss whose gradient it follows."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from medfedvqa.core import Site, create
from medfedvqa.errors import ConfigError

ONE_STEP = {"optimizer": "sgd", "local_unit": "batches", "local_epochs": 1, "batch_rows": 100, "dropout": 0.0}
TUNED = {"tuning": "adapter", "blocks": 1, "reduction": 4, "hidden": 8, "weight_decay": 0.0, "weighting": "uniform"}
OPTIONS = {
    "prompt_pfl": {"blocks": 1, "hidden": 8, "beta": 0.0, "local_baseline": False},
    "fedavg": TUNED,
    "fedprox": TUNED,
    "fedp3": TUNED,
    "local": {name: value for name, value in TUNED.items() if name != "weighting"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_round_of_one_step_follows_the_gradient_of_the_probes_loss(name: str, site: Callable[..., Site]) -> None:
    """From the probe's values to what is trained it is the learning rate times that gradient, for every parameter."""
    here, method = site(), create(name, {**ONE_STEP, **OPTIONS[name], "learning_rate": 0.1})
    state = method.setup(here)
    probe = method.probe(here, state, {})
    values = {each: value.detach().clone().requires_grad_() for each, value in probe.values.items()}
    probe.losses(values, here.data.train).mean().backward()
    trained, _ = method.start(here, state, {}, 1)
    assert values.keys() == method.trained(trained).keys()
    for each, value in values.items():
        expected = value.detach() - 0.1 * value.grad
        torch.testing.assert_close(method.trained(trained)[each], expected, rtol=1e-4, atol=1e-6)


def test_a_later_round_begins_with_what_was_received(site: Callable[..., Site]) -> None:
    """In the place of the site's own values where these are averaged; as constants beside them where prompts are."""
    here = site()
    averaged, prompts = (create(name, OPTIONS[name]) for name in ("fedavg", "prompt_pfl"))
    state = averaged.setup(here)
    received = {name: np.ones_like(value.numpy()) for name, value in state["values"].items()}
    assert all((value == 1).all() for value in averaged.probe(here, state, received).values.values())
    state = prompts.setup(here)
    received = {name: 5 * value.numpy() for name, value in state["values"].items() if name.startswith("prompt.")}
    with_shared, alone = prompts.probe(here, state, received), prompts.probe(here, state, {})
    assert all(torch.equal(with_shared.values[name], value) for name, value in state["values"].items())
    losses = [probe.losses(probe.values, here.data.train) for probe in (with_shared, alone)]
    assert not torch.allclose(*losses)


def test_of_feddat_the_shared_adapter_and_the_head_are_seen(site: Callable[..., Site]) -> None:
    """Its local adapter is trained besides, and is not."""
    here, method = site(), create("feddat", {"blocks": 1, "reduction": 4, "hidden": 8})
    state = method.setup(here)
    probe = method.probe(here, state, {})
    assert probe.values.keys() == state["values"].keys() == method.trained(state).keys()
    assert probe.losses(probe.values, here.data.train).isfinite().all()


def test_a_method_without_a_probe_says_so(site: Callable[..., Site]) -> None:
    """Activations are not the training of one set of values."""
    with pytest.raises(ConfigError, match="cannot be attacked"):
        create("unicon", {"aggregate": "none"}).probe(site(), {}, {})
