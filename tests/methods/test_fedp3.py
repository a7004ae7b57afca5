"""FedP3 against its card: gradients, the filter, what the ablations reduce to."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from medfedvqa.core import Site, Tensors, create
from medfedvqa.core.method import TESTED, Answering
from medfedvqa.errors import ConfigError
from medfedvqa.models import divergence
from medfedvqa.papers.knowledge_preserving import Outputs
from medfedvqa.papers.methods.fedp3 import FedP3, forgotten, matchups
from medfedvqa.training import Rows
from privacy import SeededChance

Rounds = Callable[..., list[Tensors]]
Logits = tuple[torch.Tensor, torch.Tensor]
FILTERS = ("eq12", "eq11", "teacher", "student", "random", "all")


def term(teacher: torch.Tensor, student: torch.Tensor, **options: object) -> torch.Tensor:
    """L_p3 of each row."""
    method = create("fedp3", options)
    assert isinstance(method, FedP3)
    rows = Rows(None, torch.zeros(len(student), dtype=torch.int64), SeededChance(0))
    nothing = torch.zeros(len(student), 0)
    return method.term(Outputs(nothing, student), Outputs(nothing, teacher), rows)


def same(one: list[Tensors], other: list[Tensors]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a) for a, b in pairs)


def test_matchups_at_a_tie_have_the_slope_of_eq_10() -> None:
    """dM/dp_i = 1/2 and dM/dp_j = -1/2 where p_i = p_j; M is 1/2 there."""
    values = torch.tensor([[0.3, 0.3]], dtype=torch.float64, requires_grad=True)
    compared = matchups(values)[0, 0, 1]
    compared.backward()
    assert compared.item() == 0.5 and values.grad.tolist() == [[0.5, -0.5]]


def test_the_filter_is_the_teacher_while_both_agree(logits: Logits) -> None:
    """p_S = p_T: r = p_T by Eq. 12, and uniform by Eq. 11."""
    teacher, _ = logits
    assert torch.allclose(forgotten(teacher, teacher, "eq12").softmax(1), teacher.softmax(1), atol=1e-12)
    assert torch.allclose(forgotten(teacher, teacher, "eq11").softmax(1), torch.full_like(teacher, 1 / 7), atol=1e-12)


def test_the_filter_s_closed_forms(logits: Logits) -> None:
    """Eq. 12 is p_T p_S^-w, w = log(H_T/H_S) of each row by itself; Eq. 11 is p_T / p_S; both normalised."""
    taught, learnt = (each.softmax(1) for each in logits)
    ratio = torch.log((taught * taught.log()).sum(1) / (learnt * learnt.log()).sum(1))
    for by, power in (("eq12", ratio[:, None]), ("eq11", 1.0)):
        expected = taught * learnt**-power
        found = forgotten(*logits, by).softmax(1)
        assert torch.allclose(found, expected / expected.sum(1, keepdim=True), atol=1e-12)


def test_a_student_less_sure_than_its_teacher_turns_the_filter_unless_clamped() -> None:
    """w < 0 prefers what the student prefers; clamped to 0 the filter is the teacher."""
    teacher = torch.tensor([[4.0, 3.9, 0.0]], dtype=torch.float64)
    student = torch.tensor([[0.0, 1.0, 0.9]], dtype=torch.float64)
    assert forgotten(teacher, student, "eq12").argmax() == 1
    assert torch.equal(forgotten(teacher, student, "eq12", clamp=True), teacher.log_softmax(1))


def test_a_certain_teacher_or_student_leaves_the_filter_finite() -> None:
    """Entropies of 0 are held above 1e-8."""
    sure, open_ = torch.tensor([[900.0, 0.0, -900.0]]), torch.zeros(1, 3)
    for pair in ((sure, open_), (open_, sure), (sure, sure)):
        assert forgotten(*pair, "eq12").isfinite().all()


@pytest.mark.parametrize("filter", [name for name in FILTERS if name != "random"])
def test_a_student_that_agrees_pays_nothing(filter: str, logits: Logits) -> None:
    """At the start of a round loss and gradient are exactly 0."""
    teacher = logits[0]
    student = teacher.clone().requires_grad_()
    loss = term(teacher, student, filter=filter, top=3).sum()
    loss.backward()
    assert loss.item() == 0 and not student.grad.any()


@pytest.mark.parametrize("options", [{"filter": name} for name in FILTERS] + [{"space": "logit"}, {"preserve": "kl"}])
def test_gradients_are_those_of_finite_differences(options: dict[str, str], logits: Logits) -> None:
    """With respect to the student's logits, for every ablation."""
    teacher, student = logits
    assert torch.autograd.gradcheck(lambda z: term(teacher, z, top=3, **options), student.requires_grad_())


def test_all_answers_are_compared_where_the_filter_keeps_them_all(logits: Logits) -> None:
    """|S| = |A| is the row 'all answers', also where N is more than there are; |S| = 1 compares nothing."""
    everything = term(*logits, filter="all")
    for top in (7, 20):
        assert torch.allclose(term(*logits, top=top), everything, atol=1e-12)
    assert not term(*logits, top=1).any()


def test_pairs_are_ordered_and_summed(logits: Logits) -> None:
    """The sum over ordered pairs is twice the upper triangle; the mean is the sum over N^2."""
    taught, learnt = (matchups(each.softmax(1)) for each in logits)
    upper = torch.triu((taught - learnt).abs(), diagonal=1).sum((1, 2))
    assert torch.allclose(term(*logits, filter="all"), 2 * upper, atol=1e-12)
    assert torch.allclose(term(*logits, top=4, pairs="mean") * 16, term(*logits, top=4), atol=1e-12)


def test_neither_a_shift_of_logits_nor_the_order_of_answers_matters(logits: Logits) -> None:
    """The loss is a function of probabilities as a set of answers."""
    teacher, student = logits
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    loss = term(teacher, student, top=3)
    assert torch.allclose(term(teacher + 5, student - 2, top=3), loss, atol=1e-12)
    assert torch.allclose(term(teacher[:, order], student[:, order], top=3), loss, atol=1e-12)


def test_the_divergence_has_its_closed_form_gradients(logits: Logits) -> None:
    """tau = 3: d/dz_S tau^2 KL(T || S) = tau (p_S - p_T); d/dz_S tau^2 KL(S || T) = tau p_S (log p_S/p_T - KL)."""
    teacher, student = logits
    student.requires_grad_()
    taught, learnt = (each.div(3).softmax(1) for each in (teacher, student.detach()))
    (forward,) = torch.autograd.grad(divergence(teacher, student, 3.0).sum(), student)
    (backward,) = torch.autograd.grad(divergence(student, teacher, 3.0).sum(), student)
    ratio = (learnt / taught).log()
    assert torch.allclose(forward, 3 * (learnt - taught), atol=1e-12)
    assert torch.allclose(backward, 3 * learnt * (ratio - (learnt * ratio).sum(1, keepdim=True)), atol=1e-12)


def test_knowledge_preserving_as_eq_4_is_printed_has_no_factor(logits: Logits) -> None:
    """`tau_squared` false: KL of softened answers alone; at T = 1 both are Eq. 4."""
    teacher, student = logits
    for temperature in (1.0, 2.0, 3.0):
        taught, learnt = ((each / temperature).softmax(1) for each in logits)
        plain = (taught * (taught / learnt).log()).sum(1)
        options = {"preserve": "kl", "temperature": temperature}
        assert torch.allclose(term(teacher, student, **options, tau_squared=False), plain, atol=1e-12)
        assert torch.allclose(term(teacher, student, **options), temperature**2 * plain, atol=1e-12)


def test_a_site_s_forgotten_answers_are_r_of_the_mean_and_its_own_model(site: Callable[..., Site]) -> None:
    """Figs. 5 and 8 after the evaluation: Eq. 12 by hand of both models' probabilities; before it there is no mean."""
    method = create("fedp3", {"answers": "closed", "blocks": 1, "hidden": 4})
    assert isinstance(method, FedP3)
    place = site()
    state = method.setup(place)
    with pytest.raises(ConfigError, match="after the evaluation"):
        method.forgetting(place, state, place.data.test)
    mean = {name: 6 * value for name, value in state["values"].items()}
    kept = {**state, TESTED: mean}
    taught, learnt = (
        Answering(method.model(place), values, method.answers or ()).probabilities(place, place.data.test)
        for values in (mean, state["values"])
    )
    w = torch.log((taught * taught.log()).sum(1) / (learnt * learnt.log()).sum(1))
    expected = taught * learnt ** -w[:, None]
    forgotten = method.forgetting(place, kept, place.data.test)
    assert torch.allclose(forgotten, expected / expected.sum(1, keepdim=True), atol=1e-6)
    assert not torch.allclose(forgotten, taught, atol=1e-3)


def test_lambda_0_is_fedavg_bit_for_bit(rounds: Rounds) -> None:
    """Three rounds, two of which have a teacher otherwise."""
    assert same(rounds("fedp3", 3, weight=0), rounds("fedavg", 3))


def test_round_1_is_fedavg_s_and_later_rounds_are_not(rounds: Rounds) -> None:
    """`start_round` is 2: the first round has no teacher."""
    preserved, plain = rounds("fedp3"), rounds("fedavg")
    assert same(preserved[:1], plain[:1]) and not same(preserved[1:], plain[1:])


def test_the_first_step_of_a_round_is_fedavg_s(rounds: Rounds) -> None:
    """Without dropout teacher and student are one, in each round's first step; the second step differs."""
    one = {"dropout": 0.0, "start_round": 1}
    for steps, expected in ((1, True), (2, False)):
        preserved = rounds("fedp3", 1, local_epochs=steps, weight=50, **one)
        assert same(preserved, rounds("fedavg", 1, local_epochs=steps, dropout=0.0)) is expected


def test_knowledge_preserving_at_temperature_2_is_soft_targets(rounds: Rounds) -> None:
    """The paper's row KP, tau = 2, is the row ST."""
    assert same(rounds("fedp3", preserve="kl", temperature=2.0), rounds("soft_targets"))


def test_the_paper_s_tuning_is_the_last_three_blocks_and_the_head() -> None:
    """ViT-B/32 with the options as they are: 3 blocks of each tower, each 12 width^2 + 13 width floats."""
    from medfedvqa.models import shape_of

    up = create("fedp3", {}).exchange(shape_of("ViT-B-32/openai")).task("train").up
    trunk = sum(int(np.prod(spec.shape)) for spec in up if spec.name.startswith("weight."))
    assert trunk == 3 * sum(12 * width**2 + 13 * width for width in (768, 512))


@pytest.mark.parametrize(
    "options",
    [{"answers": ["a", "b", "c"], "top": 3}, {"answers": "closed", "top": 48}, {"own": "head"}],
)
def test_a_filter_that_leaves_nothing_out_is_refused(options: dict[str, object]) -> None:
    """It would equal no filter, silently; without a filter the same lists are fine."""
    with pytest.raises(ConfigError, match="filter"):
        create("fedp3", options)
    create("fedp3", {**options, "filter": "all"})
    create("fedp3", {**options, "preserve": "kl"})


def test_a_declared_list_of_a_site_is_checked_at_the_site(site: Callable[..., Site]) -> None:
    """Three answers and a filter of three."""
    method = create("fedp3", {"own": "head", "answers": "site", "top": 3, "blocks": 1})
    with pytest.raises(ConfigError, match="leaves nothing out"):
        method.setup(site())
