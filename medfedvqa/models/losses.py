"""The three terms of the client's loss, L = CE + alpha * L_d + beta * ||w_mlp||^2 (Zhu et al., 2024, Eqs. 6-8).

They are apart because only the first depends on data: gradients that are clipped per patient are its gradients.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn


def answer_loss(logits: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of logits [rows, answers] and answer indices [rows] (Eq. 6, averaged as its text says)."""
    return F.cross_entropy(logits, answers)


def prompt_distance(
    local: Mapping[str, torch.Tensor], shared: Mapping[str, torch.Tensor], per_block: bool = False
) -> torch.Tensor:
    """L_d = 1 - cos(local, shared), the mean over the prompts in `local` (Eq. 7); 0 without any.

    Each prompt is one vector, or with `per_block` one for each block. `shared` is a constant.
    """
    start = 1 if per_block else 0
    distances = [
        1 - F.cosine_similarity(prompt.flatten(start), shared[name].detach().flatten(start), dim=-1).mean()
        for name, prompt in local.items()
    ]
    return torch.stack(distances).mean() if distances else torch.zeros(())


def weight_penalty(head: nn.Module) -> torch.Tensor:
    """||w_mlp||^2: the sum of squares of all parameters of the answer head, biases included (Eq. 8)."""
    return torch.stack([parameter.square().sum() for parameter in head.parameters()]).sum()


def divergence(logits: torch.Tensor, target: torch.Tensor, temperature: float, reverse: bool = False) -> torch.Tensor:
    """tau^2 KL(target || own) of softened logits [rows, answers], by row (G. Hinton et al., 2015); or `reverse`.

    `target` is a constant. The gradient is tau (p - p_target); reversed tau p (l - <p, l>) with l = log(p / p_target).
    """
    own, other = (F.log_softmax(each / temperature, dim=-1) for each in (logits, target.detach()))
    first, second = (own, other) if reverse else (other, own)
    return temperature**2 * (first.exp() * (first - second)).sum(dim=-1)
