"""The kinds of tuning and what tests of private steps need of a method: its options, values, loss."""

from typing import Any

import torch

from medfedvqa.core import Method, method_type
from medfedvqa.models import Values
from medfedvqa.training import Trainer

TUNING = ("classifier", "adapter", "lora", "prompt", "bias", "blocks", "full")
SMALL = {"rounds": 2, "hidden": 8, "blocks": 1, "reduction": 4, "rank": 2, "answers": "closed"}


def method_fields(name: str) -> set[str]:
    """The options that a method has."""
    return set(method_type(name).config_type.model_fields)


def perturbed(values: Values) -> Values:
    """Values that are not at a point where gradients vanish, as those of new low-rank updates do."""
    generator = torch.Generator().manual_seed(9)
    return {name: value + 0.02 * torch.randn(value.shape, generator=generator) for name, value in values.items()}


def loss_of(method: Method, trainer: Trainer, state: dict[str, Any], start: Values) -> Any:
    """The loss of a round's rows, whichever way the method makes it."""
    if hasattr(method, "taught"):
        return method.taught(trainer.model, state["values"])
    return method.row_loss(trainer, state, start)
