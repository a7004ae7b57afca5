"""ST, SP, CRD and DKD against their papers' equations."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from medfedvqa.core import Tensors, create
from medfedvqa.errors import ConfigError
from medfedvqa.models import divergence
from medfedvqa.papers.knowledge_preserving import Outputs, Preserving
from medfedvqa.papers.methods.distillation import contrast, decoupled, similarity
from medfedvqa.training import Rows
from privacy import DPSettings

Logits = tuple[torch.Tensor, torch.Tensor]
ANSWERS = torch.tensor([0, 3, 6, 3, 1])
METHODS = ("soft_targets", "sp", "crd", "dkd")


def term(name: str, teacher: torch.Tensor, student: torch.Tensor, **options: object) -> torch.Tensor:
    """The term of each row, of models whose features are their logits."""
    method = create(name, options)
    assert isinstance(method, Preserving)
    return method.term(Outputs(student, student), Outputs(teacher, teacher), Rows(None, ANSWERS))


@pytest.mark.parametrize("name", ["soft_targets", "sp", "dkd"])
def test_gradients_are_those_of_finite_differences(name: str, logits: Logits) -> None:
    """With respect to the student's outputs."""
    teacher, student = logits
    assert torch.autograd.gradcheck(lambda z: term(name, teacher, z), student.requires_grad_())


@pytest.mark.parametrize("name", ["soft_targets", "sp", "dkd"])
def test_a_student_that_agrees_pays_nothing(name: str, logits: Logits) -> None:
    """Loss and gradient are 0 at the start of a round."""
    teacher = logits[0]
    student = teacher.clone().requires_grad_()
    loss = term(name, teacher, student).sum()
    loss.backward()
    assert loss.item() == 0 and student.grad.abs().max() < 1e-12


def test_dkd_is_the_divergence_where_its_parts_weigh_as_they_do_there(logits: Logits) -> None:
    """KL = KL("right or not") + (1 - p_T(right)) KL(others), the identity that the paper starts from."""
    teacher, student = logits
    (pair, others), (learnt_pair, learnt_others) = decoupled(teacher, ANSWERS), decoupled(student, ANSWERS)
    wrong = 1 - teacher.softmax(1).gather(1, ANSWERS[:, None])[:, 0]
    found = divergence(pair, learnt_pair) + wrong * divergence(others, learnt_others)
    assert torch.allclose(found, divergence(teacher, student), atol=1e-12)


def test_similarity_preserving_is_the_paper_s_matrix_norm(logits: Logits) -> None:
    """The mean over rows is |G_T - G_S|_F^2 / rows^2; turning all of a model's features changes nothing."""
    teacher, student = logits
    expected = torch.linalg.matrix_norm(similarity(teacher) - similarity(student)) ** 2 / len(teacher) ** 2
    turn = torch.linalg.qr(torch.randn(7, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    assert torch.allclose(term("sp", teacher, student).mean(), expected, atol=1e-12)
    assert torch.allclose(term("sp", teacher, student @ turn).mean(), expected, atol=1e-12)


def test_contrast_of_rows_that_are_all_alike() -> None:
    """h = 1/(1+N) for every pair: log(1+N) + N log((1+N)/N), N being the rows with other answers."""
    alike = torch.ones(5, 7, dtype=torch.float64)
    negatives = (ANSWERS[:, None] != ANSWERS[None, :]).sum(1).double()
    expected = torch.log(1 + negatives) + negatives * torch.log((1 + negatives) / negatives)
    assert torch.allclose(contrast(alike, alike, ANSWERS, 0.07), expected, atol=1e-6)


def test_contrast_without_negatives_costs_nothing() -> None:
    """A batch with one answer only: no loss, and no gradient that is not a number."""
    student = torch.randn(3, 7, requires_grad=True)
    loss = contrast(student, torch.randn(3, 7), torch.zeros(3, dtype=torch.int64), 0.07).sum()
    loss.backward()
    assert loss.item() == 0 and not student.grad.any()


def test_contrast_draws_a_row_to_its_own_and_away_from_others(logits: Logits) -> None:
    """A small step down the gradient raises the cosine with the own row's teacher above the others'."""
    teacher, student = logits
    student.requires_grad_()
    contrast(student, teacher, ANSWERS, 0.5).sum().backward()
    likeness_of = [
        torch.nn.functional.cosine_similarity(s[:, None], teacher[None], dim=2)
        for s in (student.detach(), student.detach() - 0.01 * student.grad)
    ]
    own = [c.diagonal().mean() - c[ANSWERS[:, None] != ANSWERS[None, :]].mean() for c in likeness_of]
    assert own[1] > own[0]


@pytest.mark.parametrize("name", METHODS)
def test_weight_0_is_fedavg_bit_for_bit(name: str, rounds: Callable[..., list[Tensors]]) -> None:
    """And with the method's own weight the second round is another."""
    plain, without, with_ = rounds("fedavg"), rounds(name, weight=0), rounds(name)
    for tensor, array in plain[1].items():
        assert np.array_equal(array, without[1][tensor])
    assert any(not np.array_equal(array, with_[1][tensor]) for tensor, array in plain[1].items())


@pytest.mark.parametrize("name", ["sp", "crd"])
def test_losses_that_compare_patients_are_refused_under_differential_privacy(name: str) -> None:
    """At submission, with the reason."""
    with pytest.raises(ConfigError, match="compares rows of different patients"):
        create(name, {"weighting": "uniform"}, DPSettings(epsilon=8.0))


@pytest.mark.parametrize("name", ["sp", "crd", "moon"])
def test_methods_on_features_are_refused_where_features_never_change(name: str) -> None:
    """Tuning the answer head alone would silently make them FedAvg."""
    with pytest.raises(ConfigError, match="classifier"):
        create(name, {"tuning": "classifier"})
