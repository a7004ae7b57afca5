"""Averaging methods: what travels, what they reduce to, and what is refused."""

import numpy as np
import pytest
import torch

from audits import Kind
from medfedvqa.core import create
from medfedvqa.errors import ConfigError
from medfedvqa.models import shape_of
from medfedvqa.training import answer_losses
from privacy import DPSettings

KINDS = ("classifier", "lora", "prompt", "bias", "adapter", "blocks", "full")
DP = {"noise": 1.0, "count_noise": 1.0, "sample_rate": 0.5, "expected_patients": 2}


class Counting:
    """Randomness that says how often it was asked for noise."""

    void = True

    def __init__(self, randomness) -> None:
        self._randomness, self.asked, self.secret = randomness, 0, randomness.secret

    def rounded_normal(self, count, deviation):
        self.asked += 1
        return self._randomness.rounded_normal(count, deviation)


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("own", ["nothing", "head"])
@pytest.mark.parametrize("tuning", KINDS)
def test_what_travels_is_what_is_declared(site, federation, small, tuning, own):
    """In every task both ways, names, shapes and types, whatever is tuned."""
    method = create("fedavg", {**small, "tuning": tuning, "own": own})
    run = federation(method, {"one": site("one"), "other": site("other")})
    run.run()
    exchange = method.exchange(site().backbone.shape)
    for messages, declared in ((run.sent, lambda task: task.up), (run.received, lambda task: task.down)):
        for task, _, _, tensors in messages:
            expected = {spec.name: (spec.shape, spec.dtype) for spec in declared(exchange.task(task))}
            assert {name: (array.shape, str(array.dtype)) for name, array in tensors.items()} == expected
    assert all(name.startswith("head.") is (own == "nothing") or "head" not in name for name in run.sent[0][3])


def test_names_and_shapes_that_travel_say_nothing_of_a_site(site, small):
    """A shared head has the public list's size; a head of the site's own answers stays."""
    shapes = [
        create("fedavg", {**small, "own": own}).exchange(shape_of("medclip2-slake")).task("train").up
        for own in ("nothing", "head")
    ]
    heads = [{spec.name: spec.shape for spec in up if spec.name.startswith("head.")} for up in shapes]
    assert heads[0]["head.answers.weight"] == (48, 8) and heads[1] == {}


@pytest.mark.parametrize("own", ["nothing", "head"])
def test_a_single_site_trains_as_if_alone(site, federation, small, own):
    """K = 1 is local training, bit for bit."""
    method = create("fedavg", {**small, "own": own})
    run = federation(method, {"here": site()})
    run.run()
    there = site()
    values, trainer = method.setup(there)["values"], method.trainer(there)
    for number in (1, 2):
        part = trainer.train(values, answer_losses(trainer.model), number, there.task_seed("train", number))
        values = part.trained()
    assert same(
        {k: v.numpy() for k, v in run.states["here"]["values"].items()}, {k: v.numpy() for k, v in values.items()}
    )


def test_a_mean_is_weighted_by_rows(site, federation, small):
    """In float64, and every site starts its next round from it."""
    sites = {"one": site("one", questions=2), "other": site("other", questions=3)}
    run = federation(create("fedavg", small), sites)
    run.run()
    uploads = run.uploads("start", 1)
    rows = {name: int(upload["train_rows"]) for name, upload in uploads.items()}
    assert rows == {"one": 8, "other": 12}
    for _, _, _, down in (message for message in run.received if message[:2] == ("train", 2)):
        for name, array in down.items():
            expected = sum(uploads[site][name].astype(np.float64) * rows[site] for site in sites) / 20
            assert np.allclose(array, expected, rtol=0, atol=1e-7)


def test_a_uniform_mean_tells_no_number_of_rows(site, federation, small):
    method = create("fedavg", {**small, "weighting": "uniform"})
    run = federation(method, {"one": site("one", questions=2), "other": site("other")})
    run.run()
    one, other = run.uploads("start", 1).values()
    assert "train_rows" not in one
    down = run.received[2][3]
    assert all(np.allclose(array, (one[name] + other[name]) / 2, rtol=0, atol=1e-7) for name, array in down.items())


def test_all_sites_begin_with_the_same_values_and_a_head_of_their_own_if_it_stays(site, small):
    shared, local = (create("fedavg", {**small, "own": own}) for own in ("nothing", "head"))
    one, other = (shared.setup(site(name))["values"] for name in ("one", "other"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    one, other = (local.setup(site(name))["values"] for name in ("one", "other"))
    for name, value in one.items():
        assert torch.equal(value, other[name]) is not (name.startswith("head.") and value.any())


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "feddat"])
def test_a_site_that_keeps_nothing_but_its_state_goes_on_as_before(site, federation, small, name):
    """Each task in a process of its own sends the same bits; states hold tensors and plain values only."""
    runs = [
        federation(create(name, small), {"one": site("one"), "other": site("other")}, forgetful=forgetful)
        for forgetful in (False, True)
    ]
    for run in runs:
        run.run()
    for one, other in zip(runs[0].sent, runs[1].sent, strict=True):
        assert one[:3] == other[:3] and same(one[3], other[3])


def test_the_mean_or_the_site_s_own_model_is_tested(site, federation, small):
    """Both counted by hand."""
    for evaluated in ("shared", "personal"):
        method = create("fedavg", {**small, "evaluated": evaluated})
        run = federation(method, {"one": site("one"), "other": site("other")})
        correct = run.run()["one"]["correct"]
        values = dict(run.states["one"]["values"])
        if evaluated == "shared":
            down = next(tensors for task, _, name, tensors in run.received if (task, name) == ("evaluate", "one"))
            values = {name: torch.from_numpy(down[name]) for name in values}
        there = run.sites["one"]
        assert correct == int(method.trainer(there).right(values, there.data.test).sum())


def test_without_its_proximal_term_fedprox_is_fedavg(site, federation, small):
    """mu = 0, bit for bit; any other mu is something else."""
    runs = {}
    for name, options in (("fedavg", {}), ("fedprox", {"mu": 0.0}), ("fedprox!", {"mu": 1.0})):
        runs[name] = federation(create(name.strip("!"), {**small, **options}), {"one": site("one"), "two": site("two")})
        runs[name].run()
    plain, none, much = (runs[name].uploads("train", 2)["one"] for name in runs)
    assert same(plain, none) and not same(plain, much)


def test_the_proximal_term_pulls_towards_the_mean():
    """Its gradient is mu (w - w_global)."""
    start = {"a": torch.randn(3, 2), "b": torch.randn(4)}
    values = {name: (value + 1.5).requires_grad_() for name, value in start.items()}
    create("fedprox", {"mu": 0.4}).penalty({}, start)(values).backward()
    assert all(torch.allclose(value.grad, torch.full_like(value, 0.6)) for value in values.values())


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "feddat"])
def test_as_much_noise_is_drawn_as_is_paid_for(site, federation, small, name):
    """Every private step is one draw of noise, and one step of the job's plan."""
    dp = DPSettings(**DP)
    method = create(name, {**small, "weighting": "uniform", "answers": "closed"}, dp)
    there = site()
    counting = Counting(there.randomness)
    object.__setattr__(there, "randomness", counting)
    federation(method, {"here": there}).run()
    assert counting.asked == sum(event.steps for planned in method.plan() for event in planned.events)
    assert counting.asked == (8 if name == "feddat" else 4)


def test_private_uploads_say_so_and_results_stay(small):
    """Parameters travel under differential privacy with the epsilon beside them; no count does."""
    method = create("fedavg", {**small, "weighting": "uniform"}, DPSettings(**DP))
    exchange = method.final_exchange(shape_of("medclip2-slake"))
    kinds = {spec.name: (spec.kind, spec.protection.private) for spec in exchange.task("train").up}
    assert kinds.pop("epsilon") == (Kind.PUBLIC, False)
    assert set(kinds.values()) == {(Kind.PARAMETERS, True)}
    assert exchange.task("evaluate").up == ()


def test_rows_are_not_counted_under_differential_privacy(small):
    with pytest.raises(ConfigError, match="use weighting 'uniform'"):
        create("fedavg", small, DPSettings(**DP))


@pytest.mark.parametrize(
    "options",
    [
        {"answers": []},
        {"answers": ["yes"]},
        {"answers": ["yes", "no", "yes"]},
        {"answers": ["Yes", "no"]},
        {"tuning": "everything"},
        {"blocks": 0},
        {"rank": 0},
        {"dropout": 1.0},
        {"mu": -1.0},
    ],
)
def test_wrong_options_are_named(options):
    """When the job is made, not when it runs."""
    with pytest.raises(ConfigError, match=next(iter(options))):
        create("fedprox", options)


def test_more_blocks_than_the_backbone_has_are_refused_before_anything_runs(small):
    with pytest.raises(ConfigError, match="blocks are to be tuned"):
        create("fedavg", {**small, "blocks": 5}).exchange(shape_of("medclip2-slake"))
