"""ViLT backbones by name: the job names the architecture, the site gives the folder of the files.

A folder holds `model.safetensors` (or `pytorch_model.bin`), `config.json` and `vocab.txt`, as transformers saves them.
Nothing is ever fetched. Shapes need no folder, so server and sites agree on what travels.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from medfedvqa.errors import BackboneError
from medfedvqa.models.backbone import BackboneShape, TowerShape
from medfedvqa.models.checkpoints import Weights, digest, fill
from medfedvqa.models.vilt import JOINT, ViltBackbone

ARCHITECTURES: dict[str, Mapping[str, Any]] = {
    "vilt-b32": {
        "vocab_size": 30522, "type_vocab_size": 2, "modality_type_vocab_size": 2, "max_position_embeddings": 40,
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "gelu", "layer_norm_eps": 1e-12, "image_size": 384, "patch_size": 32, "num_channels": 3,
        "qkv_bias": True,
    },
}  # fmt: skip
"""The arguments of transformers' `ViltConfig`; `vilt-b32` is the published model."""


def vilt_shape(architecture: str) -> BackboneShape:
    """The shape of a ViLT of this architecture."""
    facts = ARCHITECTURES[architecture]
    width = facts["hidden_size"]
    parts = tuple((f"attention.attention.{part}.weight", 0, width) for part in ("query", "value"))
    tower = TowerShape(facts["num_hidden_layers"], width, facts["num_attention_heads"], "encoder.layer", parts)
    return BackboneShape(
        {JOINT: tower},
        embed=0,
        image_size=facts["image_size"],
        context=facts["max_position_embeddings"],
        words=width,
        build=partial(_build, facts),
    )


def load_vilt(name: str, architecture: str, folder: Path, device: str) -> ViltBackbone:
    """Loads a ViLT from a folder of this machine. Raises `BackboneError`; no message holds a path."""
    needed = "config.json", "vocab.txt"
    weights = next(
        (folder / file for file in ("model.safetensors", "pytorch_model.bin") if (folder / file).is_file()), None
    )
    if weights is None or not all((folder / file).is_file() for file in needed):
        raise BackboneError(
            f"the folder of the backbone '{name}' lacks files: it holds model.safetensors, config.json and vocab.txt"
        )
    _check(name, architecture, folder / "config.json")
    vilt = _build(ARCHITECTURES[architecture])
    fill(vilt, name, architecture, weights, _renamed)
    shape = vilt_shape(architecture)
    tokenize = _tokenizer(name, folder / "vocab.txt", shape.context, ARCHITECTURES[architecture]["vocab_size"])
    vilt = vilt.to(device).float().eval().requires_grad_(False)
    return ViltBackbone(name, vilt, tokenize, shape, None, digest(vilt))


def _build(facts: Mapping[str, Any]) -> nn.Module:
    try:
        from transformers import ViltConfig, ViltModel
    except ImportError:
        raise BackboneError("ViLT needs the package transformers: pip install 'medfedvqa[vilt]'") from None
    model: nn.Module = ViltModel(ViltConfig(**facts))
    return model


def _check(name: str, architecture: str, path: Path) -> None:
    """Raises `BackboneError` if `config.json` contradicts the architecture, which shapes alone do not show."""
    try:
        configuration = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise BackboneError(f"config.json of the backbone '{name}' is not JSON") from None
    facts = ARCHITECTURES[architecture]
    if wrong := sorted(key for key, value in facts.items() if configuration.get(key, value) != value):
        raise BackboneError(f"config.json of the backbone '{name}' is not of {architecture}: it differs in {wrong}")


def _renamed(weights: Weights) -> Weights:
    """The weights under the names of `ViltModel`, without the prefix `vilt.` and without a head."""
    if any(key.startswith("vilt.") for key in weights):
        return {key.removeprefix("vilt."): value for key, value in weights.items() if key.startswith("vilt.")}
    return weights


def _tokenizer(name: str, path: Path, context: int, size: int) -> Callable[[list[str]], torch.Tensor]:
    """The tokenizer for BERT's word pieces in lower case, which cuts questions that are too long."""
    from tokenizers import BertWordPieceTokenizer

    try:
        vocabulary = {word: number for number, word in enumerate(path.read_text(encoding="utf-8").splitlines())}
        if len(vocabulary) > size:
            raise ValueError
        tokenizer = BertWordPieceTokenizer(vocabulary, lowercase=True)
    except Exception as error:  # the library's own errors have no common type
        raise BackboneError(
            f"vocab.txt of the backbone '{name}' is no vocabulary of {size} word pieces ({type(error).__name__})"
        ) from None
    tokenizer.enable_truncation(context)

    def tokenize(questions: list[str]) -> torch.Tensor:
        ids = torch.full((len(questions), context), -1, dtype=torch.int64)
        for row, encoding in zip(ids, tokenizer.encode_batch(questions), strict=True):
            row[: len(encoding.ids)] = torch.tensor(encoding.ids)
        return ids

    return tokenize
