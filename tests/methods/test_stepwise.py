"""Stepwise jobs: one step at each site an exchange, and the optimiser's step at the server."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from medfedvqa.core import Site, create
from medfedvqa.core.stepwise import DEFAULTS, Stepwise
from medfedvqa.data.site_data import united
from medfedvqa.errors import ConfigError
from medfedvqa.models import HEAD, PROMPT
from privacy import DPSettings

STEP = {"schedule": "stepwise", "rounds": 4, "tuning": "classifier", "hidden": 8, "dropout": 0.0, "batch_rows": 64}
Make = Callable[..., Site]


def sites_of(site: Make) -> dict[str, Site]:
    """Two sites of different size."""
    return {name: site(name, questions=count) for name, count in (("here", 2), ("there", 3))}


def last_model(run: Any) -> dict[str, np.ndarray]:
    """What the sites are tested with."""
    return next(tensors for task, _, _, tensors in reversed(run.received) if task == "evaluate")


def test_a_stepwise_job_trains_the_model_of_all_rows(site: Make, federation: Any) -> None:
    """With batches as large as the sites, it is the run of Adam over the union of all rows, exchange by exchange."""
    method, sites = create("fedavg", STEP), sites_of(site)
    run = federation(method, sites)
    run.run()
    everywhere = replace(sites["here"], name="all", data=united([each.data for each in sites.values()]), _derived={})
    trainer, values = method.trainer(everywhere), method.setup(everywhere)["values"]
    rows, config = trainer.all_rows(everywhere.data.train), method.config
    values = {name: value.clone().requires_grad_() for name, value in values.items()}
    optimizer = torch.optim.Adam(values.values(), config.learning_rate, eps=1e-6)
    loss = method.row_loss(trainer, {}, values)
    for number in range(config.rounds):
        gradients = torch.autograd.grad(loss(values, rows).mean(), [*values.values()])
        for value, gradient in zip(values.values(), gradients, strict=True):
            if number:
                value.grad = gradient
            else:  # The first exchange takes a plain step of the same rate.
                value.data -= config.learning_rate * gradient
        if number:
            optimizer.step()
    moved = max(np.abs(array - method.setup(everywhere)["values"][name].numpy()).max() for name, array in
                last_model(run).items())  # fmt: skip
    apart = max(np.abs(array - values[name].detach().numpy()).max() for name, array in last_model(run).items())
    assert moved > 5e-3 and apart < moved / 50


def test_one_site_by_itself_takes_the_steps_of_a_job_of_one_site(site: Make, federation: Any) -> None:
    """Bit for bit: what stands in tables as training alone is the same training without the others."""
    method, here = create("fedavg", STEP | {"own": "bias"}), site("here")
    run = federation(method, {"here": here})
    run.run()
    alone = method.trained_alone(here, 4)["values"]
    for name, array in last_model(run).items():
        assert np.array_equal(array, alone[name].numpy())
    own = set(alone) - set(last_model(run))
    assert own and all(torch.equal(alone[name], run.states["here"]["values"][name]) for name in own)


@pytest.mark.parametrize(
    ("own", "begins"),
    [
        ("nothing", ()),
        ("bias", (f"{HEAD}answers.bias",)),
        ("last", (f"{HEAD}answers.",)),
        ("head", (HEAD,)),
        ("tuned", (PROMPT,)),
    ],
)
def test_what_stays_at_a_site_is_in_no_message_and_learns_there(
    own: str, begins: tuple[str, ...], site: Make, federation: Any
) -> None:
    """The named tensors, at two sites: each moves, further than one step, and to another place. What is shared moves
    to one place: with prompts of their own, sites share a head that sees them."""
    options = {"tuning": "prompt", "blocks": 1} if own in ("head", "tuned") else {}
    method, sites = create("fedavg", STEP | options | {"own": own}), sites_of(site)
    run = federation(method, sites, forgetful=True)
    run.run()
    begun = method.setup(sites["here"])["values"]
    stays = {name for name in begun if name.startswith(begins)}
    assert {*begun} - {*last_model(run)} == stays and bool(stays) is bool(begins)
    assert not any(stays & set(tensors) for *_, tensors in (*run.sent, *run.received))
    for name in stays:
        one, other = (run.states[place]["values"][name] for place in sites)
        assert not torch.equal(one, other) and (one - begun[name]).abs().max() > 1.5 * DEFAULTS["learning_rate"]


def test_the_optimiser_of_a_sites_own_values_remembers_earlier_exchanges(site: Make, federation: Any) -> None:
    """Without its memory, Adam's every step would be its first, as long as the rate whatever the gradient."""
    method = create("fedavg", STEP | {"own": "last"})
    run = federation(method, {"here": site("here")}, forgetful=True)
    run.run()
    (states,) = run.states["here"]["memory"].values()
    assert {int(each["step"]) for each in states["state"].values()} == {4}


@pytest.mark.parametrize("name", ["fedprox", "moon", "fedkd", "feddat", "fedp3", "dkd", "soft_targets"])
def test_averaging_methods_take_steps(name: str, site: Make, federation: Any, small: dict[str, object]) -> None:
    """The model that sites are tested with has moved by the server's steps, not by the mean of one."""
    options = {**small, **DEFAULTS, "schedule": "stepwise", "rounds": 3, "tuning": "adapter", "blocks": 1}
    options |= {"mentor_blocks": 1} if name == "fedkd" else {}
    run = federation(method := create(name, options), sites_of(site))
    run.run()
    sent = run.uploads("train", 3)["here"].keys() - {"train_rows"}
    second, third = ([m[3] for m in run.received if m[0] == task][-1] for task in ("train", "evaluate"))
    steps = np.concatenate([np.abs(third[tensor] - second[tensor]).ravel() for tensor in sent])
    assert isinstance(method, Stepwise) and steps.max() == pytest.approx(DEFAULTS["learning_rate"], rel=0.5)


def test_under_differential_privacy_each_exchange_costs_one_step(site: Make, federation: Any) -> None:
    """And the upload is the received model less one noisy gradient: with much noise it is far from it."""
    settings = DPSettings(noise=2.0, count_noise=1.0, sample_rate=0.5, expected_patients=2)
    method = create("fedavg", STEP | {"weighting": "uniform"}, settings)
    assert method.cost("start").steps == method.cost("train").steps == 1
    run = federation(method, sites_of(site))
    run.run()
    sent, received = run.uploads("train", 2)["here"], [m[3] for m in run.received if m[:2] == ("train", 2)][0]
    apart = np.concatenate([(sent[name] - received[name]).ravel() for name in received])
    assert apart.std() == pytest.approx(2.0 * settings.clip / settings.expected_patients, rel=0.1)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("feddc", {}, "'feddc' changes what happens in a round: with 'schedule' stepwise use 'fedavg'"),
        ("fedadam", {}, "'fedadam' changes what happens in a round"),
        ("fedavg", {"own": "head", "tuning": "classifier"}, "with these options sites share nothing: use 'rounds'"),
        ("fedavg", {"own": "tuned", "tuning": "classifier"}, "trains the answer head alone: leave out 'own', or tune"),
        ("fedavg", {"local_unit": "epochs"}, "'schedule' stepwise counts batches"),
        ("fedavg", {"evaluated": "personal"}, "no site has a model before the mean: leave out 'evaluated'"),
        ("ridge", {}, "'ridge' train no values in common"),
        ("prompt_pfl", {}, "'prompt_pfl' train no values in common, .* use 'fedavg', for prompts with 'tuning'"),
    ],
)
def test_a_job_that_cannot_go_step_by_step_is_refused_when_it_is_made(
    name: str, options: dict[str, Any], sentence: str
) -> None:
    """With a sentence that says what to do."""
    with pytest.raises(ConfigError, match=sentence):
        create(name, {"schedule": "stepwise", **options})


def test_a_stepwise_job_has_defaults_of_its_own_and_keeps_what_is_named() -> None:
    """Those of rounds would be 10 exchanges of one step."""
    plain, named = create("fedavg", {"schedule": "stepwise"}).config, create("fedavg", STEP).config
    assert (plain.rounds, plain.optimizer, plain.local_unit) == (200, "adam", "batches") and named.rounds == 4
    assert create("fedavg", {}).config.optimizer == "adamw"


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    """Of two vectors."""
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("dp", [None, DPSettings(noise=2.0, count_noise=1.0, sample_rate=0.5, expected_patients=2)])
def test_what_a_curious_server_guesses_from_the_sums_of_all_steps(
    dp: DPSettings | None, site: Make, federation: Any
) -> None:
    """The sums of two neighbouring steps, with a site and without it, give away most of what tells its gradient from
    the mean of all: this is why members may not change. Under differential privacy the difference is noise."""
    sites = {name: site(name, questions=count) for name, count in zip("abcd", (2, 3, 4, 3), strict=True)}
    method = create("fedavg", STEP | {"rounds": 12, "weighting": "uniform", "learning_rate": 3e-4}, dp)
    run = federation(method, sites)
    run.run()

    def gradients(round: int) -> dict[str, np.ndarray]:
        held = next(m[3] for m in run.received if m[:2] == ("train", round))
        flat = {each: [held[name] - up[name] for name in held] for each, up in run.uploads("train", round).items()}
        return {each: np.concatenate([part.ravel() for part in parts]) for each, parts in flat.items()}

    steps = [gradients(round) for round in range(2, 13)]
    guesses = []
    for before, after in zip(steps, steps[1:], strict=False):
        mean = sum(before.values()) / len(sites)
        left = sum(before.values()) - (sum(after.values()) - after["d"])
        guesses.append(cosine(left - mean, before["d"] - mean))
    assert np.mean(guesses) > 0.7 if dp is None else abs(np.mean(guesses)) < 0.1


def test_a_planted_model_silences_a_site(site: Make) -> None:
    """Why sites of a mean must be sent one model. A server that sends all but one a hidden layer that is never active
    knows their uploads, up to the last bias, and subtracts them: the sum is the last site's gradient."""
    method, sites = create("fedavg", STEP | {"weighting": "uniform"}), sites_of(site)
    begun = {name: method.start(each, method.setup(each), {}, 1) for name, each in sites.items()}
    honest = begun["here"][1]
    planted = honest | {"head.hidden.bias": np.full_like(honest["head.hidden.bias"], -1e3)}
    sent = {"here": honest, "there": planted}
    uploads = {name: method.train(sites[name], state, sent[name], 2)[1] for name, (state, _) in begun.items()}
    for name in honest.keys() - {"head.answers.bias"}:
        shown = uploads["here"][name] + uploads["there"][name] - planted[name]
        assert np.array_equal(uploads["there"][name], planted[name])
        assert np.allclose(shown, uploads["here"][name], rtol=0, atol=1e-4 if name == "head.hidden.bias" else 1e-6)
    assert (np.abs(uploads["here"]["head.hidden.weight"] - honest["head.hidden.weight"]) > 1e-5).any()
