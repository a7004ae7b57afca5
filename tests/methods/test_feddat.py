"""FedDAT against its card: what travels, what it reduces to, and each step written by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from audits import Kind
from medfedvqa.core import create
from medfedvqa.data import batches
from medfedvqa.errors import ConfigError
from medfedvqa.models import OTHER, Tuning, TuningConfig, adapters, shape_of
from medfedvqa.papers.methods.feddat import FROZEN, LOCAL
from privacy import DPSettings, SeededChance

DP = DPSettings(noise=1.0, count_noise=1.0, sample_rate=0.5, expected_patients=2)


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(torch.as_tensor(value), torch.as_tensor(other[name])) for name, value in one.items()
    )


def begun(method, site, alike: bool = False):
    """Trainer, state and start of a first round; with `alike` A_c is A_s."""
    state = method.setup(site)
    start = dict(state["values"])
    if alike:
        state[LOCAL] = {name: start[name].clone() for name in state[LOCAL]}
    return method.trainer(site), state, start


def two(site):
    return {"one": site("one"), "other": site("other")}


def test_only_the_shared_adapter_travels(site, federation, small):
    """No head, no local and no frozen adapter, in no task; the values that travel are the trained ones."""
    method = create("feddat", small)
    run = federation(method, two(site))
    run.run()
    for task, _, _, upload in run.sent:
        if task != "evaluate":
            assert upload and all(key.startswith("adapter.") for key in upload)
    last = run.uploads("train", 2)["one"]
    state = run.states["one"]
    assert all(torch.equal(torch.from_numpy(value), state["values"][name]) for name, value in last.items())
    assert state[LOCAL].keys() == state[FROZEN].keys() == last.keys()
    assert not any(torch.equal(state[LOCAL][name], state["values"][name]) for name in last)


def test_payload_of_the_paper_for_twelve_blocks_of_width_768():
    """894,528 floats, 3.58 MB, for ViLT and for CLIP's image tower; nothing beside them."""
    train = create("feddat", {}).exchange(shape_of("vilt-b32@here")).task("train")
    assert train.bytes_up == train.bytes_down == 894_528 * 4
    assert all(spec.kind is Kind.PARAMETERS for spec in train.up)
    up = create("feddat", {}).exchange(shape_of("ViT-B-32/openai")).task("train").up
    assert sum(math.prod(spec.shape) for spec in up if spec.name.startswith("adapter.image")) == 894_528


def test_without_distillation_and_with_a_head_of_its_own_it_is_averaging_of_adapters(site, federation, small):
    """alpha = beta = 0, the head trained by the student only: FedAvg with adapters and local heads, bit for bit.

    FedDAT counts the answers among the first five besides.
    """
    none = {"alpha": 0.0, "beta": 0.0, "head_update": "student_only"}
    dat = federation(create("feddat", {**small, **none}), two(site))
    plain = federation(create("fedavg", {**small, "own": "head", "weighting": "uniform"}), two(site))
    assert dat.run().keys() == plain.run().keys()
    for one, other in zip(dat.sent, plain.sent, strict=True):
        five = one[3].pop("first_five", None)
        assert one[:3] == other[:3] and same(one[3], other[3]) and (five is None) == (one[0] != "evaluate")


def test_a_site_alone_learns_as_if_nothing_travelled(site, federation, small):
    """K = 1: the mean of one upload is the upload."""
    run = federation(create("feddat", small), {"here": site()})
    run.run()
    assert all(
        torch.equal(torch.from_numpy(v), run.states["here"]["values"][k]) for k, v in run.received[-1][3].items()
    )


def test_a_teacher_of_equal_adapters_is_the_student(site, small):
    """A_c = A_s_hat: the same logits, and nothing to learn from each other in the first batch."""
    method = create("feddat", {**small, "dropout": 0.0})
    trainer, state, start = begun(method, site(), alike=True)
    rows = trainer.all_rows(trainer.site.data.train)
    student = trainer.model.logits(start, rows.batch)
    teacher = trainer.model.logits(start | method.teacher(start_adapters(start), state[LOCAL]), rows.batch)
    assert torch.allclose(student, teacher, rtol=0, atol=1e-6)
    moved = {}
    for alpha in (0.0, 1.0):
        options = {**small, "dropout": 0.0, "alpha": alpha, "batch_rows": 12, "optimizer": "sgd", "ablation": "local"}
        one = create("feddat", options)
        moved[alpha] = one.local(one.trainer(site()), state, start, 1, 5)["values"]
    for name, value in moved[0.0].items():
        assert torch.allclose(value, moved[1.0][name], rtol=0, atol=1e-6)


def start_adapters(values):
    return {name: value for name, value in values.items() if name.startswith("adapter.")}


def test_one_layer_of_the_teacher_gives_the_mean_of_its_adapters():
    """h' = h + A_s_hat(h) / 2 + A_c(h) / 2, to 1e-12 in float64."""
    draw = torch.Generator().manual_seed(3)
    sizes = {"down.weight": (3, 8), "down.bias": (3,), "up.weight": (8, 3), "up.bias": (8,)}
    first, second = (
        {f"adapter.image.0.{n}": torch.randn(s, generator=draw, dtype=torch.float64) for n, s in sizes.items()}
        for _ in range(2)
    )
    hidden = torch.randn(5, 8, generator=draw, dtype=torch.float64)
    mean = second | {OTHER + name: value for name, value in first.items()}
    one, other, both = (adapters(values)["image"][0](hidden) for values in (first, second, mean))
    assert torch.allclose(both, (one + other) / 2, rtol=0, atol=1e-12)


def test_the_frozen_adapter_is_what_the_round_began_with(site, federation, small):
    """To the bit, after all of the round's steps."""
    run = federation(create("feddat", small), two(site))
    run.run()
    for name in run.sites:
        began = next(down for task, number, site_, down in run.received if (task, number, site_) == ("train", 2, name))
        assert same(began, run.states[name][FROZEN])


@pytest.mark.parametrize("direction", ["reference", "paper"])
@pytest.mark.parametrize("loss", ["ce", "bce"])
def test_a_round_is_the_authors_steps_written_by_hand(site, small, direction, loss):
    """Order, stale student, detached targets, tau^2, three optimisers: all as the card has them."""
    options = {
        "fusion": "concat",
        "question_input": "tower",
        "dropout": 0.0,
        "alpha": 0.7,
        "beta": 0.4,
        "direction": direction,
        "loss": loss,
    }
    options |= {"optimizer": "sgd", "learning_rate": 0.1}  # Adam makes much of rounding
    method = create("feddat", {**small, **options})
    trainer, state, start = begun(method, site())
    found = method.local(trainer, state, start, 1, 5)

    leaves = [
        {name: value.clone().requires_grad_() for name, value in values.items()}
        for values in (start_adapters(start), state[LOCAL], {k: v for k, v in start.items() if "head." in k})
    ]
    shared, local, head = leaves
    opt_shared, opt_local, opt_head = (
        torch.optim.SGD(v.values(), 0.1, momentum=0.9, weight_decay=0.01) for v in leaves
    )
    frozen = adapters(start_adapters(start))

    def logits(batch, branch):
        tuning = trainer.model.tuned(shared, batch)
        if branch == "dat":
            own = adapters(local)
            mean = {
                tower: {b: lambda h, t=tower, b=b: (frozen[t][b](h) + own[t][b](h)) / 2 for b in blocks}
                for tower, blocks in own.items()
            }
            tuning = Tuning(adapters=mean)
        features = trainer.model.backbone.features(batch.rows, tuning)
        hidden = F.linear(features, head["head.hidden.weight"], head["head.hidden.bias"]).relu()
        return F.linear(hidden, head["head.answers.weight"], head["head.answers.bias"])

    def total(own, target, answers, weight):
        p, q = (own / 3).softmax(1), (target.detach() / 3).softmax(1)
        kl = (p * (p / q).log()) if direction == "paper" else (q * (q / p).log())
        if loss == "ce":
            task = F.cross_entropy(own, answers)
        else:
            right = torch.eye(own.shape[1])[answers]
            task = F.binary_cross_entropy_with_logits(own, right) * own.shape[1]
        return task + weight * 9 * kl.sum(1).mean()

    for chosen in batches(trainer.train_rows, 6, SeededChance(5).generator):
        rows = trainer._rows.rows(trainer.train_rows, chosen)
        z_dat = logits(rows.batch, "dat")
        z_s = logits(rows.batch, "student")
        total(z_s, z_dat, rows.answers, 0.7).backward()
        opt_shared.step(), opt_head.step()
        opt_local.zero_grad(), opt_head.zero_grad()
        total(logits(rows.batch, "dat"), z_s, rows.answers, 0.4).backward()
        opt_local.step(), opt_head.step()
        opt_shared.zero_grad(), opt_local.zero_grad(), opt_head.zero_grad()
    for name, value in {**shared, **head}.items():
        assert torch.allclose(found["values"][name], value, rtol=0, atol=1e-5), name
    for name, value in local.items():
        assert torch.allclose(found[LOCAL][name], value, rtol=0, atol=1e-5), name


def test_without_the_student_s_part_it_is_the_row_without_mutual_distillation(site, small):
    trainer, state, start = begun(create("feddat", small), site())
    rounds = [
        create("feddat", {**small, **options}).local(trainer, state, start, 1, 5)
        for options in ({"beta": 0.0}, {"ablation": "mkd"}, {})
    ]
    assert same(rounds[0]["values"], rounds[1]["values"]) and same(rounds[0][LOCAL], rounds[1][LOCAL])
    assert not same(rounds[0][LOCAL], rounds[2][LOCAL])


def test_a_teacher_without_one_of_its_adapters_is_the_other(site, small):
    """And a frozen teacher takes no step."""
    trainer, state, start = begun(create("feddat", small), site())
    shared = start_adapters(start)
    without = {name: create("feddat", {**small, "ablation": name}) for name in ("frozen", "local")}
    assert same(without["frozen"].teacher(shared, state[LOCAL]), state[LOCAL])
    assert same(without["local"].teacher(shared, state[LOCAL]), shared)
    assert same(without["local"].local(trainer, state, start, 1, 5)[LOCAL], state[LOCAL])
    assert not same(without["frozen"].local(trainer, state, start, 1, 5)[LOCAL], state[LOCAL])
    assert (without["frozen"].passes, without["local"].passes) == (2, 1)


def test_the_head_learns_from_the_teacher_or_not(site, small):
    """`student_only`: the head after a round without distillation does not depend on the local adapter."""
    trainer, state, start = begun(create("feddat", small), site())
    heads = {}
    for update in ("both", "student_only"):
        method = create("feddat", {**small, "alpha": 0.0, "head_update": update})
        for alike in (False, True):
            local = start_adapters(start) if alike else state[LOCAL]
            values = method.local(trainer, {**state, LOCAL: local}, start, 1, 5)["values"]
            heads[update, alike] = {name: value for name, value in values.items() if name.startswith("head.")}
    assert same(heads["student_only", False], heads["student_only", True])
    assert not same(heads["both", False], heads["both", True])


def test_three_ways_to_answer(site, federation, small):
    """A_s with the mean, A_c, and the teacher, which mixes A_c with the frozen adapter of before the last round."""
    run = federation(create("feddat", small), two(site))
    run.run()
    state, head = run.states["one"], {k: v for k, v in run.states["one"]["values"].items() if k.startswith("head.")}
    mean = {name: torch.from_numpy(value) for name, value in run.received[-1][3].items()}
    tested = {
        name: create("feddat", {**small, "inference": name}).tested(site("one"), state, mean)
        for name in ("shared", "local", "both")
    }
    assert same(tested["shared"], mean | head)
    assert same(tested["local"], state[LOCAL] | head)
    assert same(tested["both"], state[LOCAL] | {OTHER + name: each for name, each in state[FROZEN].items()} | head)
    for inference in tested:
        other = federation(create("feddat", {**small, "inference": inference}), two(site)).run()["one"]
        there = run.sites["one"]
        right = run.method.trainer(there).right(tested[inference], there.data.test)
        assert int(other["correct"]) == right.sum()


def test_local_adapters_begin_differently_or_alike(site, small):
    own, common = (create("feddat", {**small, "local_adapter": each}) for each in ("own", "common"))
    assert not same(own.setup(site("one"))[LOCAL], own.setup(site("other"))[LOCAL])
    alike = common.setup(site("one"))
    assert same(alike[LOCAL], common.setup(site("other"))[LOCAL])
    assert not same(alike[LOCAL], start_adapters(alike["values"]))


def test_the_weights_of_distillation_may_grow():
    """exp(-5 (1 - min(1, r / R))^2), then constant."""
    config = create("feddat", {"alpha": 2.0, "beta": 0.5, "ramp_rounds": 4}).config
    assert config.weights(1) == pytest.approx((2 * math.exp(-5 * 0.75**2), 0.5 * math.exp(-5 * 0.75**2)))
    assert config.weights(4) == config.weights(9) == (2.0, 0.5)
    assert create("feddat", {}).config.weights(1) == (1.0, 1.0)


def test_both_steps_are_paid_for(small):
    """The teacher's target depends on an adapter that saw the same patients, so it is trained privately, too."""
    options = {**small, "weighting": "uniform", "answers": "closed"}
    private = {name: create(name, options, DP) for name in ("fedavg", "feddat")}
    steps = {name: method.cost("train").steps for name, method in private.items()}
    assert steps["feddat"] == 2 * steps["fedavg"]
    assert create("feddat", {**options, "ablation": "local"}, DP).cost("train").steps == steps["fedavg"]


def test_under_differential_privacy_what_stays_is_noisy_as_well(site, small):
    """Two runs that differ in noise alone differ in A_s, A_c and the head."""
    states = []
    for name in ("here", "ereh"):  # the same seed and data, other noise
        method, there = create("feddat", {**small, "answers": "closed"}, DP), site()
        object.__setattr__(there, "randomness", site(name + "!").randomness if name == "ereh" else there.randomness)
        trainer, state, start = begun(method, there)
        states.append(method.local(trainer, state, start, 1, 5))
    for one, other in ((states[0]["values"], states[1]["values"]), (states[0][LOCAL], states[1][LOCAL])):
        assert not any(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("inference", ["local", "both"])
def test_without_a_local_adapter_none_can_answer(inference):
    with pytest.raises(ConfigError, match="inference 'shared'"):
        create("feddat", {"ablation": "local", "inference": inference})


@pytest.mark.parametrize("options", [{"tuning": "lora"}, {"temperature": 0}, {"alpha": -1}, {"ablation": "all"}])
def test_other_options_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        create("feddat", options)


def test_adapters_have_the_papers_bottleneck():
    assert TuningConfig("adapter").shapes(shape_of("ViT-B-32/openai"))["adapter.image.0.down.weight"] == (48, 768)
