"""Safe loading of checkpoint files: no code runs, and all names and shapes must fit the architecture.

A file may hold a training checkpoint, a wrapper's prefixes, a head, or positions for another picture size: see
`fitted`. Weights in several files have an index, `NAME.index.json`, as transformers saves it.
"""

import hashlib
import json
import math
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from medfedvqa.errors import BackboneError

Weights = dict[str, torch.Tensor]

NO_WEIGHTS = ("input_resolution", "context_length", "vocab_size")
"""Buffers of OpenAI's state dicts that are not weights."""
WRAPPED = ("state_dict", "model_state_dict", "model")
"""Members of a training checkpoint that hold the weights."""
PREFIXES = ("module.", "model.", "clip.", "clip_model.", "net.")
"""Prefixes of names by DataParallel, Lightning and others."""
COMPILED = "_orig_mod."
"""A part that torch.compile adds to names."""
UNUSED = ("logit_scale", "logit_bias")
"""Weights of the contrastive loss, which features do not depend on."""
POSITIONS = {"visual.positional_embedding": True, "vision_model.embeddings.position_embedding.weight": False}
"""The names of position embeddings of pictures, and whether a shrinking grid is smoothed: yes in open_clip, no in
transformers."""
INDEX = ".index.json"


def weights_file(folder: Path, names: Collection[str]) -> Path | None:
    """The first of these files that a folder has, or the index of its parts; None if it has none of them."""
    files = (folder / f"{name}{end}" for name in names for end in ("", INDEX))
    return next((file for file in files if file.is_file()), None)


def fill(
    module: nn.Module, name: str, architecture: str, path: Path, rename: Callable[[Weights], Weights] = dict
) -> None:
    """Loads a checkpoint, after `rename`, into the module. Raises `BackboneError` unless all names and shapes agree.

    `name`: of the backbone, for messages. No message holds a path.
    """
    try:
        weights = rename(_weights_alone(_read(name, path)))
        shapes = {key: tuple(tensor.shape) for key, tensor in weights.items()}
    except BackboneError:
        raise
    except Exception as error:  # whatever a broken or foreign file makes its parser raise
        raise BackboneError(
            f"the file for the backbone '{name}' cannot be read as a checkpoint of {architecture} "
            f"({type(error).__name__}): {_fault(path)}"
        ) from None
    expected = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
    if shapes != expected:
        wrong = sorted(key for key in shapes.keys() | expected.keys() if shapes.get(key) != expected.get(key))
        sizes = "; positions are for another picture size or context: take the configuration of these weights"
        raise BackboneError(
            f"the file for the backbone '{name}' is not of architecture {architecture}: {len(wrong)} tensors differ, "
            f"first '{wrong[0]}': {shapes.get(wrong[0], 'absent')}, expected {expected.get(wrong[0], 'absent')}"
            f"{sizes if all('pos' in key for key in wrong) else ''}"
        )
    module.load_state_dict(weights)


def fitted(module: nn.Module, notes: list[str], weights: Weights) -> Weights:
    """The weights under the module's names. `notes` gets a sentence on weights left out, added or interpolated.

    Weights outside of the module's parts, such as a classifier, are left out; a surplus block within a part is not.
    """
    expected = module.state_dict()
    members: Mapping[str, Any] = weights
    held = next((members[key] for key in WRAPPED if isinstance(members.get(key), dict)), members)
    found = {key.replace(COMPILED, ""): value for key, value in held.items() if isinstance(value, torch.Tensor)}
    while prefix := next((each for each in PREFIXES if _is_prefix(each, found, expected)), None):
        stripped = {key.removeprefix(prefix): value for key, value in found.items()}
        if len(stripped) < len(found):
            raise ValueError("two tensors have the same name without prefix")
        found = stripped
    found = _weights_alone(found)
    parts = {key.partition(".")[0] for key in expected}
    beside = sorted({key.partition(".")[0] for key in found} - parts)
    if beside:
        notes.append(f"left out, since the backbone has no such part: {', '.join(beside)}")
        found = {key: value for key, value in found.items() if key.partition(".")[0] in parts}
    absent = [key for key in UNUSED if key in expected and key not in found]
    if absent:
        notes.append(f"absent, and not needed: {', '.join(absent)}")
    found |= {key: torch.zeros_like(expected[key]) for key in absent}
    for key, smooth in POSITIONS.items():
        if key in expected and key in found and found[key].shape != expected[key].shape:
            found[key] = _interpolated(found[key].float(), len(expected[key]), smooth)
            notes.append("positions were interpolated from those of another picture size")
    return found


def _is_prefix(prefix: str, found: Weights, expected: Mapping[str, torch.Tensor]) -> bool:
    return any(key.startswith(prefix) for key in found) and not any(key.startswith(prefix) for key in expected)


def _interpolated(positions: torch.Tensor, count: int, smooth: bool) -> torch.Tensor:
    """Positions [old, width] resized to `count` positions of a square picture, bicubic; the class position stays."""
    first = 0 if math.isqrt(count) ** 2 == count else 1
    old, new = math.isqrt(len(positions) - first), math.isqrt(count - first)
    if old**2 + first != len(positions) or new**2 + first != count:
        return positions
    grid = positions[first:].T.reshape(1, -1, old, old)
    grid = F.interpolate(grid, size=(new, new), mode="bicubic", align_corners=False, antialias=smooth)
    return torch.cat([positions[:first], grid.flatten(2)[0].T])


def _read(name: str, path: Path) -> Weights:
    """The tensors in a file, or in all parts of an index. Raises `BackboneError` for parts that are not there."""
    # open_clip takes seconds to import, and most commands load no model.
    from open_clip.factory import load_state_dict

    if not path.name.endswith(INDEX):
        return dict(load_state_dict(str(path), device="cpu", weights_only=True))
    parts = sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
    files = [path.parent / Path(part).name for part in parts]
    if missing := sum(not file.is_file() for file in files):
        raise BackboneError(f"of the weights of the backbone '{name}' {missing} of {len(files)} parts are missing")
    return {key: tensor for file in files for key, tensor in _read(name, file).items()}


def _fault(path: Path) -> str:
    """The remedy for a file that cannot be read."""
    files = [path] if not path.name.endswith(INDEX) else sorted(path.parent.glob(f"*{path.suffixes[0]}"))
    starts = [_start(file) for file in files]
    if any(start.startswith(b"version https://git-lfs") for start in starts):
        return "it is a Git LFS pointer in place of the weights: run 'git lfs pull' where it was cloned, and copy again"
    is_cut = any(start[:2] == b"PK" and not zipfile.is_zipfile(file) for file, start in zip(files, starts, strict=True))
    if is_cut or not all(starts) or any(file.suffix == ".safetensors" for file in files):
        return "it is cut or damaged: compare its size with the original's, and copy it again"
    return "give safetensors or a saved state dict, not a TorchScript archive or a whole pickled model"


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)


def _weights_alone(weights: Weights) -> Weights:
    """The weights without constants that follow from the shape, which some library versions save too."""
    return {
        key: value
        for key, value in weights.items()
        if key not in NO_WEIGHTS and not key.endswith((".position_ids", ".token_type_ids"))
    }


def digest(module: nn.Module) -> str:
    """SHA-256 over the weights, by name. Raises `BackboneError` for weights that are not finite."""
    hashed = hashlib.sha256()
    for key, tensor in sorted(module.state_dict().items()):
        if not torch.isfinite(tensor).all():
            raise BackboneError(
                f"the backbone's tensor '{key}' holds NaN or infinity, with which nothing can be trained: copy the "
                "weights again, or take another checkpoint"
            )
        hashed.update(f"{key} {tuple(tensor.shape)}\n".encode())
        hashed.update(tensor.cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()
