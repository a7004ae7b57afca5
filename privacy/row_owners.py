"""The patient of each row of a tensor, which per-patient gradients and per-patient randomness need.

Under differential privacy, the first dimension of every tensor between a model's trained values is over items that each
belong to one patient: rows, distinct pictures, distinct beginnings of questions. A model declares them by `owned`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_owners: ContextVar[torch.Tensor | None] = ContextVar("owners", default=None)


@contextmanager
def owned(owners: torch.Tensor | None) -> Iterator[None]:
    """Within it, the first dimension of tensors is over items of these patients, int64 [items] in ascending order.

    None if patients do not matter: in plain training, and without training.
    """
    token = _owners.set(owners)
    try:
        yield
    finally:
        _owners.reset(token)


def current_owners() -> torch.Tensor | None:
    """The owners that the innermost `owned` declares; None without one."""
    return _owners.get()
