"""The federated baselines MOON, FedKD, FedDC, FedProx and local training against their papers."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from audits import Kind
from medfedvqa.core import Method, Site, Tensors, create
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.methods.moon import contrast
from medfedvqa.models import divergence, shape_of
from medfedvqa.papers.knowledge_preserving import Outputs
from medfedvqa.papers.methods.fedkd import distillation, mutual

Rounds = Callable[..., list[Tensors]]
Small = Callable[..., Method]
Logits = tuple[torch.Tensor, torch.Tensor]
ANSWERS = torch.tensor([0, 3, 6, 3, 1])


@pytest.mark.parametrize(
    ("name", "nothing", "something"),
    [
        ("fedprox", {"mu": 0}, {"mu": 10}),
        ("moon", {"mu": 0}, {}),
        ("feddc", {"alpha": 0}, {}),
        ("fedkd", {"distil": 0, "mentor": "adapter", "mentor_blocks": 1}, {"mentor": "adapter", "mentor_blocks": 1}),
    ],
)
def test_without_its_term_each_is_fedavg_bit_for_bit(
    name: str, nothing: dict[str, object], something: dict[str, object], rounds: Rounds
) -> None:
    """Two rounds with weight 0, and with another weight the second differs."""
    plain, without, with_ = rounds("fedavg"), rounds(name, **nothing), rounds(name, **something)
    for number in range(2):
        assert plain[number].keys() == without[number].keys() == with_[number].keys()
        assert all(np.array_equal(array, without[number][tensor]) for tensor, array in plain[number].items())
    assert any(not np.array_equal(array, with_[1][tensor]) for tensor, array in plain[1].items())


def test_moon_s_contrast_in_closed_form(logits: Logits) -> None:
    """log 2 and no gradient while both models are one; log(1 + e^(-2/tau)) where they are opposite."""
    other, features = logits
    features.requires_grad_()
    loss = contrast(features, other, other, 0.5)
    loss.sum().backward()
    assert torch.allclose(loss, torch.full_like(loss, math.log(2))) and features.grad.abs().max() < 1e-12
    assert torch.allclose(contrast(other, other, -other, 0.5), torch.full_like(loss, math.log1p(math.exp(-4))))
    assert torch.autograd.gradcheck(lambda z: contrast(z, other, other.flip(1), 0.5), features)


def test_moon_s_first_round_is_fedavg_s_but_for_rounding(rounds: Rounds) -> None:
    """Mean and own model are one then, so that the contrast is a constant."""
    contrasted, plain = rounds("moon", 1, local_epochs=1), rounds("fedavg", 1, local_epochs=1)
    assert all(np.allclose(array, contrasted[0][name], atol=1e-6) for name, array in plain[0].items())


def outputs(logits: torch.Tensor) -> Outputs:
    return Outputs(logits * 2, logits)


def test_mentor_and_mentee_learn_what_the_paper_says(logits: Logits) -> None:
    """Each its own cross-entropy, plus (KL + MSE) over both cross-entropies; the other side and those are constants."""
    mentor, mentee = logits
    mentee.requires_grad_()
    loss = mutual(outputs(mentee), outputs(mentor), ANSWERS, 1.0, "paper").sum()
    (found,) = torch.autograd.grad(loss, mentee)
    both = [torch.nn.functional.cross_entropy(each, ANSWERS, reduction="none") for each in (mentee, mentor)]
    apart = divergence(mentor, mentee) + (2 * mentor - 2 * mentee).square().mean(1)
    (expected,) = torch.autograd.grad((both[0] + apart / sum(both).detach()).sum(), mentee)
    assert torch.allclose(found, expected, atol=1e-12)


def test_the_reference_form_holds_nothing_constant(logits: Logits) -> None:
    """As the authors' code: its gradient is that of the printed value, both divergences, hidden term twice."""
    mentor, mentee = logits
    value = mutual(outputs(mentee), outputs(mentor), ANSWERS, 1.0, "reference")
    both = sum(torch.nn.functional.cross_entropy(each, ANSWERS, reduction="none") for each in logits)
    apart = (divergence(mentor, mentee) + divergence(mentee, mentor)) / 7 + 8 * (mentor - mentee).square().mean(1)
    assert torch.allclose(value, both + apart / both, atol=1e-12)
    assert torch.autograd.gradcheck(
        lambda z: mutual(outputs(z), outputs(mentor), ANSWERS, 1.0, "reference"), mentee.requires_grad_()
    )


def test_a_lesson_in_the_paper_s_form_leaves_the_teacher_alone(logits: Logits) -> None:
    """No gradient reaches the teacher."""
    mentor, mentee = (each.requires_grad_() for each in logits)
    distillation(outputs(mentor), outputs(mentee), "paper").sum().backward()
    assert mentor.grad is None and mentee.grad.any()


def test_a_mentor_of_another_kind_stays_and_is_what_personal_tests(phantom_site: Site, small_method: Small) -> None:
    """The mentee alone travels; the mentor is trained, kept and tested."""
    method = small_method("fedkd", mentor="blocks", mentor_blocks=2, evaluated="personal")
    shape = shape_of("medclip@random")
    sent = {spec.name for task in method.exchange(shape).tasks for spec in (*task.up, *task.down)}
    assert not any(name.startswith(("mentor.", "weight.")) for name in sent)
    before = method.setup(phantom_site)
    after, reply = method.start(phantom_site, before, {}, 1)
    moved = {name for name, value in after["values"].items() if not torch.equal(value, before["values"][name])}
    assert {"mentor.head.answers.bias", "head.answers.bias"} <= moved
    assert any(name.startswith("mentor.weight.") for name in moved)
    broken = {**after["values"], **{name: value * 0 for name, value in after["values"].items() if "mentor" not in name}}
    received = {name: array for name, array in reply.items() if name != "train_rows"}
    tests = [method.evaluate(phantom_site, {"values": values}, received, 3)[1] for values in (after["values"], broken)]
    assert tests[0] == tests[1]


def test_feddc_adds_the_drift_to_what_fedavg_would_send(phantom_site: Site, small_method: Small) -> None:
    """h grows by each round's move, a site sends w_i + h_i, and their mean is the mean of both."""
    method = small_method("feddc", alpha=0.5)
    before = method.setup(phantom_site)
    first, reply = method.start(phantom_site, before, {}, 1)
    name = "head.answers.weight"
    moved = first["values"][name] - before["values"][name]
    assert torch.equal(first["drift"][name], moved)
    assert np.array_equal(reply[name], (first["values"][name] + moved).numpy())
    received = {name: array * np.float32(1.1) for name, array in reply.items() if name != "train_rows"}
    second, reply = method.train(phantom_site, first, received, 2)
    moved = moved + second["values"][name] - torch.from_numpy(received[name])
    assert torch.allclose(second["drift"][name], moved, atol=1e-7)
    assert np.array_equal(reply[name], (second["values"][name] + second["drift"][name]).numpy())


def test_feddc_s_penalty_pulls_back_by_the_drift(phantom_site: Site, small_method: Small) -> None:
    """Its gradient is alpha (w_i + h_i - w)."""
    method = small_method("feddc", alpha=0.5)
    start = {"a": torch.tensor([1.0, 2.0]), "head": torch.tensor([3.0])}
    values = {name: (value + 0.5).requires_grad_() for name, value in start.items()}
    method.penalty({"drift": {"a": torch.tensor([0.25, -1.0])}}, start)(values).backward()
    assert values["a"].grad.tolist() == [0.375, -0.25] and values["head"].grad is None


def test_feddc_sends_what_fedavg_sends_and_says_so() -> None:
    """The same tensors, so that nobody sees a drift by itself; the exchange says that it is within."""
    shape = shape_of("medclip@random")
    one, other = (create(name, {}).exchange(shape).task("train") for name in ("feddc", "fedavg"))
    assert [(spec.name, spec.shape) for spec in one.up] == [(spec.name, spec.shape) for spec in other.up]
    assert all("drift" in spec.meaning for spec in one.up if spec.kind is Kind.PARAMETERS)


def test_local_training_sends_nothing_until_its_scores() -> None:
    """Neither up nor down."""
    exchange = create("local", {}).exchange(shape_of("medclip@random"))
    assert all(not task.up and not task.down for task in exchange.tasks if task.name != "evaluate")
    assert not exchange.task("evaluate").down


def test_fedavg_of_nothing_is_local_training(phantom_site: Site, small_method: Small) -> None:
    """With a head that stays and nothing else tuned, FedAvg trains as 'local' does and shares nothing."""
    options = {"tuning": "classifier", "own": "head"}
    states = [small_method(name, **options) for name in ("fedavg", "local")]
    fedavg, local = (method.start(phantom_site, method.setup(phantom_site), {}, 1) for method in states)
    assert fedavg[1] == local[1] == {}
    assert all(torch.equal(value, local[0]["values"][name]) for name, value in fedavg[0]["values"].items())


def test_a_job_without_training_rows_at_a_site_is_refused(phantom_site: Site, small_method: Small) -> None:
    """None of the site's answers is in the job's list: an error where the site is asked, and a round that ends."""
    method = small_method("fedavg", answers=("purple", "green"))
    with pytest.raises(DataError, match="fewer than half of the train rows"):
        method.check_rows(phantom_site.data)
    before = method.setup(phantom_site)
    after, _ = method.start(phantom_site, before, {}, 1)
    assert all(torch.equal(after["values"][name], value) for name, value in before["values"].items())


@pytest.mark.parametrize("answers", [(), ("yes",)])
def test_an_answer_list_of_less_than_two_is_refused(answers: tuple[str, ...]) -> None:
    """There would be nothing to learn."""
    with pytest.raises(ConfigError, match="answers"):
        create("fedavg", {"answers": answers})
