"""The patient of each row of a tensor, which per-patient gradients and per-patient randomness need.

Under differential privacy the first dimension of every tensor between a model's trained values is over items that
belong to one patient each: rows, distinct pictures, distinct beginnings of questions. A model says so by `owned`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_owners: ContextVar[torch.Tensor | None] = ContextVar("owners", default=None)


@contextmanager
def owned(owners: torch.Tensor | None) -> Iterator[None]:
    """Within it, the first dimension of tensors is over items of these patients, int64 [items] in ascending order.

    None where patients do not matter: in plain training, and where nothing is trained.
    """
    token = _owners.set(owners)
    try:
        yield
    finally:
        _owners.reset(token)


def current_owners() -> torch.Tensor | None:
    """The patients that the innermost `owned` names."""
    return _owners.get()
