"""Models of every family with random weights at tiny sizes, built by the library that users have."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import open_clip.timm_model
import timm
import torch
from torch import nn

from medfedvqa.backbone_names import configuration
from medfedvqa.models import BackboneShape, ClipBackbone
from medfedvqa.models.bundled import ARCHITECTURES
from medfedvqa.models.families import shape_from
from medfedvqa.models.open_clip_models import TEXT_CONFIGURATIONS, build

WORDS = 100
"""Token ids; the last marks the end of a text."""
EMBED = 64
_create = timm.create_model


def _small(name: str, **options: Any) -> nn.Module:
    """timm's model of this name with few and narrow blocks, where its class has such options."""
    last = name[-1]
    if name.startswith("convnext"):
        options |= {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}
    elif name.startswith("fastvit"):
        options |= {"layers": (1,) * (5 if last in "34" else 4)}
    elif name.startswith("vitamin") or "mci" in name:
        options |= {"depth": 2}
    elif name.startswith("eva") or name.startswith("vit_pe"):
        options |= {"depth": 2, "embed_dim": 64, "num_heads": 2}
    else:
        options |= {"depth": 2, "embed_dim": 64, "num_heads": 2}
    return _create(name, **options)


@contextmanager
def small_timm() -> Iterator[None]:
    """While it is open, timm's models are small."""
    with patch.object(open_clip.timm_model.timm, "create_model", _small):
        yield


def tiny_configuration(architecture: str) -> dict[str, Any]:
    """open_clip's configuration of an architecture with few and narrow blocks."""
    whole = ARCHITECTURES[architecture] if architecture in ARCHITECTURES else configuration(architecture)
    small = {name: dict(part) if isinstance(part, dict) else part for name, part in whole.items()}
    vision, text = small["vision_cfg"], small["text_cfg"]
    if isinstance(vision.get("layers"), list):
        vision |= {"layers": [1, 1, 1, 1], "width": 8}
    elif "layers" in vision:
        vision |= {"layers": 2, "width": 64, "head_width": 32}
    if text.get("hf_model_name"):
        known = text.get("hf_config") or TEXT_CONFIGURATIONS[text["hf_model_name"]]
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        text["hf_config"] = {**known, **sizes, "vocab_size": WORDS}
    else:
        text |= {"layers": 2, "width": 32, "heads": 2, "vocab_size": WORDS}
    if architecture == "medclip3":
        vision |= {"image_size": 64}
    if "multimodal_cfg" in small:
        small["multimodal_cfg"] |= {"width": 32, "heads": 2, "layers": 1}
    return {**small, "embed_dim": EMBED}


def _made(make: Callable[[], nn.Module]) -> nn.Module:
    with small_timm():
        return make()


def tiny_transformers(kind: str) -> nn.Module:
    """A `CLIPModel` or `SiglipModel` of transformers."""
    from transformers import AutoConfig, AutoModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    text = {**sizes, "vocab_size": WORDS, "max_position_embeddings": 12, "projection_size": 32}
    text |= {"bos_token_id": 1, "eos_token_id": WORDS - 1, "pad_token_id": 0}
    vision = {**sizes, "image_size": 32, "patch_size": 16}
    configured = AutoConfig.for_model(kind, text_config=text, vision_config=vision, projection_dim=24)
    model: nn.Module = AutoModel.from_config(configured, attn_implementation="sdpa")
    return model


def maker(name: str) -> tuple[Callable[[], nn.Module], int, int]:
    """What builds a tiny model, its pictures' size and its texts' tokens; `name`: an architecture, `clip`, `siglip`."""
    if name in ("clip", "siglip"):
        return partial(tiny_transformers, name), 32, 12
    small = tiny_configuration(name)
    size, context = small["vision_cfg"].get("image_size", 224), small["text_cfg"].get("context_length", 77)
    return partial(_made, partial(build, small)), size, context


def tiny(name: str) -> tuple[nn.Module, BackboneShape]:
    """A tiny model with weights away from where they begin, and its shape."""
    make, size, context = maker(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = make().eval().requires_grad_(False)
        for parameter in model.parameters():
            parameter.data.add_(0.05 * torch.randn_like(parameter))
    return model, shape_from(make, size, context)


def padding(model: Any) -> int:
    """The id of padding."""
    config = getattr(getattr(model, "text", None), "config", None)
    return int(config.pad_token_id) if config is not None else 0


def token_ids(model: Any, context: int, texts: int = 3) -> torch.Tensor:
    """Some texts of different lengths, two of which begin alike, int64 [texts, context]."""
    ids = torch.full((texts, context), padding(model), dtype=torch.int64)
    for number, row in enumerate(ids):
        length = 3 + 2 * number
        row[:length] = torch.arange(4, 4 + length)
        row[length - 1] = WORDS - 1
    return ids


def tiny_backbone(name: str) -> ClipBackbone:
    """A tiny model as a backbone. It knows the questions `0`, `1` and `2`."""
    model, shape = tiny(name)
    ids = token_ids(model, shape.context)

    def tokenize(questions: list[str]) -> torch.Tensor:
        return ids[[int(question) for question in questions]]

    return ClipBackbone(name, model, tokenize, (0.5,) * 3, (0.5,) * 3, shape, None, "")
