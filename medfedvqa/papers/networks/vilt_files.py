"""ViLT backbones by name: the job names the architecture, the site gives the folder of the files.

A folder holds `model.safetensors` (or `pytorch_model.bin`), `config.json` and `vocab.txt`, as transformers saves them.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from medfedvqa.models.backbone import BackboneShape, TowerShape
from medfedvqa.models.backbones import Family
from medfedvqa.models.checkpoints import Weights, digest, fill
from medfedvqa.papers.networks.fused_files import check_configuration, transformers_module, weights_in, word_pieces
from medfedvqa.papers.networks.joint import JOINT
from medfedvqa.papers.networks.vilt import ViltBackbone

QUERIES_VALUES = "attention.attention.query.weight", "attention.attention.value.weight"
"""The weights in a block that low-rank updates are for."""

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
    parts = tuple((part, 0, width) for part in QUERIES_VALUES)
    tower = TowerShape(facts["num_hidden_layers"], width, facts["num_attention_heads"], "encoder.layer", parts)
    return BackboneShape(
        {JOINT: tower},
        embed=0,
        image_size=facts["image_size"],
        context=facts["max_position_embeddings"],
        words=width,
        build=partial(build_vilt, facts),
    )


def load_vilt(name: str, architecture: str, folder: Path, device: str) -> ViltBackbone:
    """Loads a ViLT from a folder of this machine. Raises `BackboneError`; no message holds a path."""
    facts, shape = ARCHITECTURES[architecture], vilt_shape(architecture)
    weights = weights_in(name, folder, ("config.json", "vocab.txt"))
    check_configuration(name, architecture, folder / "config.json", facts)
    vilt = build_vilt(facts)
    fill(vilt, name, architecture, weights, vilt_names)
    tokenize = word_pieces(name, folder / "vocab.txt", shape.context, facts["vocab_size"])
    vilt = vilt.to(device).float().eval().requires_grad_(False)
    return ViltBackbone(name, vilt, tokenize, shape, None, digest(vilt))


def build_vilt(facts: Mapping[str, Any]) -> nn.Module:
    """A `ViltModel` of this configuration, with arbitrary weights. Raises `BackboneError` without transformers."""
    return transformers_module(lambda library: library.ViltModel(library.ViltConfig(**facts)))


def vilt_names(weights: Weights) -> Weights:
    """The weights under the names of `ViltModel`, without the prefix `vilt.` and without a head."""
    if any(key.startswith("vilt.") for key in weights):
        return {key.removeprefix("vilt."): value for key, value in weights.items() if key.startswith("vilt.")}
    return weights


VILT = Family(ARCHITECTURES, vilt_shape, load_vilt)
