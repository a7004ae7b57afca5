"""The client's loss, term by term."""

import pytest
import torch

from medfedvqa.models import divergence, prompt_distance, weight_penalty

UNITS = ["prompt", "block", "upload"]


def prompts(generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {
        "prompt.image": torch.randn(3, 4, 8, generator=generator, dtype=torch.float64),
        "prompt.text": torch.randn(2, 4, 6, generator=generator, dtype=torch.float64),
    }


@pytest.mark.parametrize("unit", UNITS)
def test_the_distance_does_not_depend_on_the_scale_of_the_local_prompt(generator, unit):
    local, shared = prompts(generator), prompts(generator)
    scaled = {name: 17.3 * prompt for name, prompt in local.items()}
    assert torch.allclose(prompt_distance(scaled, shared, unit), prompt_distance(local, shared, unit))


@pytest.mark.parametrize("unit", ["prompt", "block"])
def test_the_gradient_of_the_distance_is_orthogonal_to_the_prompt(generator, unit):
    local, shared = prompts(generator), prompts(generator)
    for prompt in local.values():
        prompt.requires_grad_()
    prompt_distance(local, shared, unit).backward()
    for prompt in local.values():
        assert prompt.grad.norm() > 1e-3
        assert abs((prompt.grad * prompt).sum().item()) < 1e-15


def test_the_distance_gives_the_shared_prompt_no_gradient(generator):
    local, shared = prompts(generator), prompts(generator)
    for prompt in (*local.values(), *shared.values()):
        prompt.requires_grad_()
    prompt_distance(local, shared).backward()
    assert all(prompt.grad is None for prompt in shared.values())


@pytest.mark.parametrize("unit", UNITS)
def test_the_distance_is_0_for_equal_prompts_and_2_for_opposite_ones(generator, unit):
    local = prompts(generator)
    opposite = {name: -prompt for name, prompt in local.items()}
    assert prompt_distance(local, local, unit).item() == pytest.approx(0, abs=1e-12)
    assert prompt_distance(local, opposite, unit).item() == pytest.approx(2)


def test_the_distance_is_the_mean_over_encoders_of_one_minus_the_flattened_cosine(generator):
    local, shared = prompts(generator), prompts(generator)
    expected = [1 - (local[n] * shared[n]).sum() / (local[n].norm() * shared[n].norm()) for n in local]
    assert torch.allclose(prompt_distance(local, shared), sum(expected) / 2)


def test_the_distance_of_whole_uploads_is_one_cosine_over_both_prompts(generator):
    """The paper's reading of P: one vector."""
    local, shared = prompts(generator), prompts(generator)
    p, s = (torch.cat([each[name].flatten() for name in local]) for each in (local, shared))
    assert torch.allclose(prompt_distance(local, shared, "upload"), 1 - p @ s / (p.norm() * s.norm()))
    assert not torch.allclose(prompt_distance(local, shared, "upload"), prompt_distance(local, shared))


def test_the_distance_per_block_is_the_mean_over_blocks(generator):
    local, shared = (prompts(generator)["prompt.image"] for _ in range(2))
    expected = [1 - (p * s).sum() / (p.norm() * s.norm()) for p, s in zip(local, shared, strict=True)]
    distance = prompt_distance({"prompt.image": local}, {"prompt.image": shared}, "block")
    assert torch.allclose(distance, sum(expected) / 3)


def test_without_prompts_the_distance_is_0():
    assert prompt_distance({}, {}).item() == 0


def test_the_penalty_counts_weights_and_biases():
    """Eq. 8: all values of the head, each squared once."""
    sizes = {"hidden.weight": (1, 2), "hidden.bias": (1,), "answers.weight": (1, 1), "answers.bias": (1,)}
    head = [torch.full(size, float(number)) for number, size in enumerate(sizes.values(), start=1)]
    assert weight_penalty(head).item() == 2 * 1 + 4 + 9 + 16


@pytest.mark.parametrize("reverse", [False, True])
def test_the_gradient_of_a_divergence_has_its_closed_form(generator, reverse):
    """tau (p - p_t); reversed tau p (l - <p, l>) with l = log(p / p_t)."""
    logits, target = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    divergence(*((logits, target) if reverse else (target, logits)), 3.0).sum().backward()
    own, other = (logits.detach() / 3).softmax(1), (target.detach() / 3).softmax(1)
    expected = 3 * (own - other)
    if reverse:
        ratio = (own / other).log()
        expected = 3 * own * (ratio - (own * ratio).sum(1, keepdim=True))
    assert torch.allclose(logits.grad, expected, rtol=0, atol=1e-12)


def test_a_divergence_of_equals_is_zero_and_else_positive(generator):
    logits, target = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
    assert torch.allclose(divergence(logits, logits + 2.0, 3.0), torch.zeros(5).double(), atol=1e-12)
    assert (divergence(logits, target, 3.0) > 0).all()
