"""Terms of losses beyond cross-entropy: penalties that depend on no data, and distillation.

In L = CE + alpha * L_d + beta * ||w_mlp||^2 (Zhu et al., 2024, Eqs. 6-8) only the first term depends on data, so only
its gradients are clipped by patient.
"""

from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F

from privacy import Unit


def prompt_distance(
    local: Mapping[str, torch.Tensor], shared: Mapping[str, torch.Tensor], unit: Unit = "prompt"
) -> torch.Tensor:
    """L_d = 1 - cos(local, shared), the mean over the units of the prompts in `local` (Eq. 7); 0 without prompts.

    `shared` is a constant.
    """
    pairs = [(prompt, shared[name].detach()) for name, prompt in local.items()]
    if unit == "upload" and pairs:
        ours, theirs = zip(*pairs, strict=True)
        pairs = [(_joined(ours), _joined(theirs))]
    start = 1 if unit == "block" else 0
    distances = [1 - F.cosine_similarity(a.flatten(start), b.flatten(start), dim=-1).mean() for a, b in pairs]
    return torch.stack(distances).mean() if distances else torch.zeros(())


def _joined(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def weight_penalty(values: Iterable[torch.Tensor]) -> torch.Tensor:
    """||w_mlp||^2: the sum of squares of all values of the answer head, biases included (Eq. 8)."""
    return torch.stack([value.square().sum() for value in values]).sum()


def divergence(teacher: torch.Tensor, student: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """tau^2 KL(teacher || student) of softened logits [rows, answers], by row (G. Hinton et al., 2015).

    The gradient to the student is tau (p_s - p_t); to the teacher tau p_t (l - <p_t, l>) with l = log(p_t / p_s).
    """
    target, answer = (F.log_softmax(logits / temperature, dim=-1) for logits in (teacher, student))
    return temperature**2 * (target.exp() * (target - answer)).sum(dim=-1)
