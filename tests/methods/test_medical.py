"""The medical baselines learn, at each site by itself, and nothing but counts leaves."""

from collections.abc import Callable

import pytest
import torch

from audits import Kind
from medfedvqa.core import Site, create
from medfedvqa.core.scores import RIGHT, VALIDATED
from medfedvqa.errors import ConfigError
from medfedvqa.models import shape_of
from privacy import DPSettings

NAMES = ("san", "mevf", "pubmedclip")
TINY = {"rounds": 2, "local_epochs": 2, "batch_rows": 6, "pixels": 32, "width": 8}
DP = DPSettings(noise=1.0, count_noise=1.0, sample_rate=0.5, expected_patients=2)

Make = Callable[..., Site]


def trained(name: str, site: Site, **options: object):
    method = create(name, {**TINY, **options})
    state = method.setup(site)
    for number in range(1, method.config.rounds + 1):
        state, reply = (method.start if number == 1 else method.train)(site, state, {}, number)
        assert reply == {}
    return method, state


@pytest.mark.parametrize("name", NAMES)
def test_a_few_rows_are_learned_by_heart(name: str, site: Make) -> None:
    """The loss of the training rows falls, and all of them are answered right."""
    there = site()
    options = {"local_epochs": 15, "learning_rate": 0.02, "dropout": 0.0, "width": 16, "pretraining": 2}
    known = create(name, {}).config.__class__.model_fields
    options = {key: value for key, value in options.items() if key in known}
    method, state = trained(name, there, **options)
    trainer = method.trainer(there)
    rows = trainer.all_rows(there.data.train)
    losses = [
        method.row_loss(trainer, {}, values)(values, rows).mean()
        for values in (method.setup(there)["values"], state["values"])
    ]
    assert losses[1] < 0.2 * losses[0] and trainer.right(state["values"], there.data.train).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_job_sends_its_counts_and_keeps_what_the_benchmark_reads(name: str, site: Make, federation) -> None:
    """Curve and rows stay; one site's answer space may differ from another's."""
    run = federation(create(name, TINY), {"one": site("one", questions=2), "other": site("other")})
    scores = run.run()
    assert all(not upload for task, *_, upload in run.sent if task != "evaluate")
    for name_, state in run.states.items():
        there = run.sites[name_]
        assert len(state[VALIDATED]) == 2 and int(state[RIGHT].sum()) == scores[name_]["correct"]
        assert state["values"]["head.answers.bias"].shape == (len(there.data.answers),)


@pytest.mark.parametrize("name", NAMES)
def test_the_exchange_declares_counts_alone(name: str) -> None:
    exchange = create(name, {}).exchange(shape_of("medclip2-slake"))
    assert not any(task.up or task.down for task in exchange.tasks if task.name != "evaluate")
    assert {spec.kind for spec in exchange.task("evaluate").up} == {Kind.STATISTIC}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_model(name: str, site: Make) -> None:
    """Bit for bit, noise of the auto-encoder and dropout included."""
    one, other = (trained(name, site())[1]["values"] for _ in range(2))
    assert all(torch.equal(value, other[part]) for part, value in one.items())


@pytest.mark.parametrize("name", ["mevf", "pubmedclip"])
def test_pretraining_moves_the_auto_encoder_alone(name: str, site: Make) -> None:
    """It makes the pictures better, and begins before round 1."""
    there, method = site(), create(name, {**TINY, "pretraining": 30, "learning_rate": 0.01})
    before = method.setup(there)["values"]
    after, network = method.pretrained(there, before), method.model(there)
    moved = {part for part, value in after.items() if not torch.equal(value, before[part])}
    assert moved and moved <= set(network.coder)
    trainer = method.trainer(there)
    rows = trainer.all_rows(there.data.train)
    errors = [network.reconstruction(values, rows.batch, None).mean() for values in (before, after)]
    assert errors[1] < errors[0]


@pytest.mark.parametrize(("name", "pretraining"), [("san", None), ("mevf", 3), ("mevf", 0), ("pubmedclip", 3)])
def test_every_private_step_is_paid_for(name: str, pretraining: int | None, site: Make) -> None:
    """Those of the auto-encoder, too: it sees patients before anything else does."""
    there = site()
    asked = []
    normal = there.randomness.rounded_normal
    there.randomness.rounded_normal = lambda *arguments: asked.append(1) or normal(*arguments)
    options = {} if pretraining is None else {"pretraining": pretraining}
    method = create(name, {**TINY, **options, "answers": "closed"}, DP)
    state = method.setup(there)
    for task, number in method.tasks():
        if task != "evaluate":
            state, _ = getattr(method, task)(there, state, {}, number)
    paid = sum(event.steps for planned in method.plan() for event in planned.events)
    assert len(asked) == paid == 8 + 2 * (pretraining or 0)


@pytest.mark.parametrize("name", ["san", "mevf"])
def test_a_map_of_attention_has_a_weight_for_each_region(name: str, site: Make) -> None:
    there = site()
    method, state = trained(name, there)
    found = method.attention(there, state, there.data.test)
    assert found.shape == (len(there.data.test), 4) and torch.allclose(found.sum(dim=1), torch.ones(len(found)))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedavg", {"tuning": "adapter"}),
        ("feddat", {}),
        ("prompt_pfl", {}),
        ("fedavg", {"tuning": "classifier"}),
        ("prompt_pfl", {"ablation": "AS3"}),
    ],
)
def test_methods_on_a_backbone_show_its_attention(name: str, options: dict[str, str], site: Make, small) -> None:
    """Also where nothing is tuned in the image tower; where something is, training changes the map."""
    there, known = site(), create(name, {}).config.__class__.model_fields
    method = create(name, {key: value for key, value in {**small, **options}.items() if key in known})
    before = method.setup(there)
    after = method.start(there, before, {}, 1)[0]
    maps = [method.attention(there, state, there.data.test) for state in (before, after)]
    assert all(torch.allclose(found.sum(dim=1), torch.ones(len(found))) for found in maps)
    assert torch.equal(*maps) is (options in ({"tuning": "classifier"}, {"ablation": "AS3"}))


def test_pubmedclip_needs_a_backbone_that_sees_a_picture_by_itself() -> None:
    with pytest.raises(ConfigError, match="choose a CLIP"):
        create("pubmedclip", {}).exchange(shape_of("vilt-b32@hospital"))


@pytest.mark.parametrize("options", [{"pixels": 40}, {"width": 3}, {"hops": 0}, {"dropout": 1.0}])
def test_wrong_options_are_named(options: dict[str, object]) -> None:
    """When the job is made, not when it runs."""
    with pytest.raises(ConfigError, match=next(iter(options))):
        create("san", options)
