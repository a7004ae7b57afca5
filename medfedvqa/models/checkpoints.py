"""The safe loading of checkpoint files: no code runs, and all names and shapes must fit the architecture."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from medfedvqa.errors import BackboneError

Weights = dict[str, torch.Tensor]

NO_WEIGHTS = ("input_resolution", "context_length", "vocab_size")
"""Buffers of OpenAI's state dicts that are no weights."""


def fill(
    module: nn.Module, name: str, architecture: str, path: Path, rename: Callable[[Weights], Weights] = dict
) -> None:
    """Loads a checkpoint, after `rename`, into the module. Raises `BackboneError` unless all names and shapes agree.

    `name`: of the backbone, for messages. No message holds a path.
    """
    # open_clip takes seconds to import, and most commands load no model.
    from open_clip.factory import load_state_dict

    try:
        weights = rename(_weights_alone(load_state_dict(str(path), device="cpu", weights_only=True)))
        shapes = {key: tuple(tensor.shape) for key, tensor in weights.items()}
    except Exception as error:  # whatever a broken or foreign file makes its parser raise
        raise BackboneError(
            f"the file for the backbone '{name}' is no {architecture} checkpoint that can be read "
            f"({type(error).__name__}): give safetensors or a saved state dict, not a TorchScript archive"
        ) from None
    expected = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
    if shapes != expected:
        wrong = sorted(key for key in shapes.keys() | expected.keys() if shapes.get(key) != expected.get(key))
        raise BackboneError(
            f"the file for the backbone '{name}' is not of architecture {architecture}: {len(wrong)} tensors differ, "
            f"first '{wrong[0]}': {shapes.get(wrong[0], 'absent')}, expected {expected.get(wrong[0], 'absent')}"
        )
    module.load_state_dict(weights)


def _weights_alone(weights: Weights) -> Weights:
    """Without what some versions of the libraries saved beside the weights: constants that follow from the shape."""
    return {
        key: value
        for key, value in weights.items()
        if key not in NO_WEIGHTS and not key.endswith((".position_ids", ".token_type_ids"))
    }


def digest(module: nn.Module) -> str:
    """SHA-256 over the weights, by name."""
    hashed = hashlib.sha256()
    for key, tensor in sorted(module.state_dict().items()):
        hashed.update(f"{key} {tuple(tensor.shape)}\n".encode())
        hashed.update(tensor.cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()
