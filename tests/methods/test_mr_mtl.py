"""MR-MTL: each site's own model, pulled towards the mean of all."""

import numpy as np
import pytest
import torch

from medfedvqa.core import create
from privacy import DPSettings

TWO = ("one", "other")


def values_of(run, name: str) -> torch.Tensor:
    return torch.cat([value.flatten() for value in run.states[name]["values"].values()])


def ran(site, federation, options):
    run = federation(create("mr_mtl", options), {"one": site("one", questions=2), "other": site("other", questions=3)})
    run.run()
    return run


def test_without_a_pull_sites_train_as_if_alone(site, federation, small):
    """Bit for bit, whatever mean they receive."""
    run = ran(site, federation, {**small, "rounds": 3, "pull": 0.0})
    alone = federation(create("local", {**small, "rounds": 3}), {"one": site("one", questions=2)})
    alone.run()
    assert torch.equal(values_of(run, "one"), values_of(alone, "one"))


def test_a_pull_draws_the_sites_models_together(site, federation, small):
    """The stronger it is, the nearer: without one their distance stays."""
    gaps = []
    for pull in (0.0, 5.0, 30.0):
        options = {**small, "rounds": 6, "pull": pull, "optimizer": "sgd"}
        run = ran(site, federation, options)
        gaps.append(float((values_of(run, "one") - values_of(run, "other")).norm()))
    assert gaps[1] < 0.9 * gaps[0] and gaps[2] < 0.9 * gaps[1]


def test_a_step_is_that_of_the_equation(site, federation, small):
    """Minus rate x (the loss's gradient + lambda (w - m)), where w is the site's own model and m the mean."""
    options = {**small, "local_unit": "batches", "batch_rows": 100, "dropout": 0.0, "optimizer": "sgd"}
    options |= {"weight_decay": 0.0, "pull": 0.7, "weighting": "uniform"}
    run = ran(site, federation, options)
    method, here = run.method, site("one", questions=2)
    means = {
        name: np.mean([run.uploads("start", 1)[each][name].astype(np.float64) for each in TWO], axis=0)
        for name in run.uploads("start", 1)["one"]
    }
    own = {name: torch.from_numpy(array).requires_grad_() for name, array in run.uploads("start", 1)["one"].items()}
    trainer = method.trainer(here)
    loss = method.row_loss(trainer, {}, own)(own, trainer.all_rows(here.data.train)).mean()
    for (name, value), gradient in zip(own.items(), torch.autograd.grad(loss, list(own.values())), strict=True):
        pull = options["pull"] * (value.detach() - torch.from_numpy(means[name]).float())
        expected = value.detach() - options["learning_rate"] * (gradient + pull)
        np.testing.assert_allclose(run.uploads("train", 2)["one"][name], expected.numpy(), atol=2e-6)


def test_a_site_tests_its_own_model_and_a_private_job_charges_every_step(small):
    method = create("mr_mtl", {**small, "weighting": "uniform"}, DPSettings(epsilon=8.0), True)
    assert method.config.evaluated == "personal" and all(task.events for task in method.plan())
    with pytest.raises(Exception, match="schedule"):
        create("mr_mtl", {**small, "schedule": "stepwise"})
