"""Frozen backbones by name: the project's own CLIP, open_clip's tags, the Hugging Face hub, and local files.

| name              | weights                                                               |
|-------------------|-----------------------------------------------------------------------|
| `medclip2-slake`  | shipped, as are `medclip2-vqarad` and the first edition, `medclip-*`  |
| `ViT-B-32/openai` | any architecture and tag that open_clip knows                         |
| `hf-hub:org/name` | an open_clip model of the Hugging Face hub                            |
| `ViT-B-32@label`  | a local checkpoint; the site says in which file, a job names no path  |
| `vilt-b32@label`  | a ViLT in a local folder, see `vilt_files`                            |
| `NAME@label`      | the backbone of an allowed distribution, see `medfedvqa.plugins`      |

`medclip2@label` is a checkpoint of the project's own architecture, `medclip@label` of its first one.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from medfedvqa import plugins
from medfedvqa.errors import BackboneError
from medfedvqa.models.backbone import Architecture, Backbone, BackboneShape, TowerShape
from medfedvqa.models.bundled import ARCHITECTURES as OWN
from medfedvqa.models.bundled import BUNDLED, MEAN, STD, ShortVocabulary, assemble
from medfedvqa.models.checkpoints import digest, fill
from medfedvqa.models.clip import IMAGE, TEXT, ClipBackbone
from medfedvqa.models.vilt_files import ARCHITECTURES, load_vilt, vilt_shape
from medfedvqa.near_miss import suggestion

if TYPE_CHECKING:
    from open_clip.model import CLIP, CustomTextCLIP

HUB = "hf-hub:"
NO_FILES: Mapping[str, Path] = MappingProxyType({})

PROJECTION = ("", ".weight", ".bias")
"""Suffixes of the names of a projection's parameters, as a matrix or as a layer."""

ALTERED_ATTENTION = ("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn", "scale_fc")
"""Options of open_clip's blocks that change attention. Prompts are not defined for them here."""

IMAGE_DEFAULTS = {"layers": 12, "width": 768, "head_width": 64, "image_size": 224}
TEXT_DEFAULTS = {"layers": 12, "width": 512, "heads": 8, "context_length": 77}
"""open_clip's defaults for missing fields of a configuration."""


def shape_of(name: str) -> BackboneShape:
    """The shape of a backbone without building or loading it (`hf-hub:` names read the hub's configuration).

    Raises `BackboneError` for an unknown name and for an architecture that cannot take prompts.
    """
    architecture = _architecture(name)
    if outside := _from_outside(name):
        return outside.shape()
    return vilt_shape(architecture) if architecture in ARCHITECTURES else _shape(name, _configuration(architecture))


def outside_architecture(name: str) -> str | None:
    """The architecture in a backbone's name if a distribution may bring it; None for the project's architectures."""
    if "@" not in name or name in BUNDLED:
        return None
    architecture = _architecture(name)
    return None if architecture in (*OWN, *ARCHITECTURES) else architecture


def _from_outside(name: str) -> Architecture | None:
    """The architecture of an allowed distribution; None if no distribution brings it. Raises `PlugInRefused`."""
    architecture = outside_architecture(name)
    return None if architecture is None else plugins.load("backbones", architecture)


def seen_by(name: str) -> tuple[str, ...] | None:
    """The data sets that the weights of this name were trained on; None if unknown."""
    return BUNDLED[name].seen if name in BUNDLED else None


def is_bundled(name: str) -> bool:
    """Whether the backbone ships with the project, so that loading it fetches nothing."""
    return name in BUNDLED


def bundled_for(data: str) -> str:
    """The bundled backbone that was not trained on this data set."""
    return next(name for name, model in BUNDLED.items() if data not in model.seen)


def load_backbone(name: str, files: Mapping[str, Path] = NO_FILES, device: str = "cpu") -> Backbone:
    """Loads a backbone; `files` holds this machine's local checkpoints by name (`ARCH@label`).

    Raises `BackboneError`: unknown name, missing file, or a file of another architecture. No message holds a path.
    """
    architecture = _architecture(name)
    if "@" in name and name not in files:
        raise BackboneError(f"no file is given for the backbone '{name}'; name its {architecture} checkpoint")
    if outside := _from_outside(name):
        return outside.load(name, files[name], device)
    if architecture in ARCHITECTURES:
        return load_vilt(name, architecture, files[name], device)
    configuration = _configuration(architecture)
    shape = _shape(name, configuration)
    if name in BUNDLED:
        resource = resources.files("medfedvqa.models") / "weights" / BUNDLED[name].file
        with resources.as_file(resource) as path:
            clip = _from_file(name, architecture, configuration, path)
    elif "@" in name:
        clip = _from_file(name, architecture, configuration, files[name])
    else:
        clip = _from_open_clip(name)
    clip = clip.to(device).float().eval().requires_grad_(False)
    mean, std = _normalisation(architecture, clip)
    return ClipBackbone(name, clip, _tokenizer(architecture), mean, std, shape, seen_by(name), digest(clip))


def _architecture(name: str) -> str:
    """The architecture in a name: open_clip's model name, `hf-hub:...`, or one of this project's."""
    if name in BUNDLED:
        return BUNDLED[name].architecture
    if name.startswith(HUB) and "@" not in name:
        return name
    parts = re.fullmatch(r"([^@/:]+)([@/])[^@]+", name)
    if parts is None or (parts[2] == "/" and parts[1] in (*OWN, *ARCHITECTURES)):
        raise BackboneError(
            f"unknown backbone '{name}'; there is {', '.join(BUNDLED)}, ARCH/tag of open_clip (as ViT-B-32/openai), "
            "hf-hub:org/name, and ARCH@label for a local checkpoint"
        )
    return parts[1]


def _configuration(architecture: str) -> dict[str, Any]:
    """open_clip's configuration of a model. Raises `BackboneError` for an unknown architecture."""
    if architecture in OWN:
        return OWN[architecture]
    # open_clip takes seconds to import, and most commands, and servers, load no model.
    import open_clip

    try:
        configuration: dict[str, Any] | None = open_clip.get_model_config(architecture)
    except Exception as error:  # the hub's client raises a dozen kinds
        raise BackboneError(f"'{architecture}' cannot be read from the hub ({type(error).__name__})") from None
    if configuration is None:
        hint = suggestion(architecture, open_clip.list_models()) or "`open_clip.list_models()` lists them"
        raise BackboneError(f"open_clip has no architecture '{architecture}': {hint}")
    return configuration


def _shape(name: str, configuration: Mapping[str, Any]) -> BackboneShape:
    if reason := _unsupported(configuration):
        raise BackboneError(f"the backbone '{name}' cannot take prompts: {reason}; use a plain ViT CLIP as ViT-B-32")
    vision, text = IMAGE_DEFAULTS | configuration["vision_cfg"], TEXT_DEFAULTS | configuration["text_cfg"]
    prefix = "text." if configuration.get("custom_text") else ""
    return BackboneShape(
        towers={
            IMAGE: _tower(vision["layers"], vision["width"], vision["width"] // vision["head_width"], "visual."),
            TEXT: _tower(text["layers"], text["width"], text["heads"], prefix),
        },
        embed=configuration["embed_dim"],
        image_size=vision["image_size"],
        context=text["context_length"],
        words=text["width"],
        build=partial(assemble, configuration),
        aside=("logit_scale", "logit_bias", "visual.proj", *(f"{prefix}text_projection{part}" for part in PROJECTION)),
    )


def _tower(layers: int, width: int, heads: int, module: str) -> TowerShape:
    queries_values = ("attn.in_proj_weight", 0, width), ("attn.in_proj_weight", 2 * width, 3 * width)
    return TowerShape(layers, width, heads, f"{module}transformer.resblocks", queries_values)


def _unsupported(configuration: Mapping[str, Any]) -> str | None:
    """The reason why `towers` cannot run this architecture; None if it can."""
    vision, text = configuration["vision_cfg"], configuration["text_cfg"]
    towers = (vision, text)
    reasons = {
        "it is a CoCa model": "multimodal_cfg" in configuration or text.get("embed_cls"),
        "its image tower is a ResNet": isinstance(vision.get("layers"), list),
        "its image tower is timm's": vision.get("timm_model_name"),
        "its text tower is Hugging Face's": text.get("hf_model_name"),
        "its image tower pools by attention": vision.get("attentional_pool"),
        "a tower does not pool": any(tower.get("pool_type") == "none" for tower in towers),
        "its attention blocks are not the plain ones": any(
            tower.get("block_type", "default") != "default" or any(tower.get(key) for key in ALTERED_ATTENTION)
            for tower in towers
        ),
        "its tokenizer brings code of its own": text.get("tokenizer_kwargs", {}).get("trust_remote_code"),
        "its pictures are not square": not isinstance(vision.get("image_size", 224), int),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _from_file(name: str, architecture: str, configuration: Mapping[str, Any], path: Path) -> "CLIP | CustomTextCLIP":
    if not path.is_file():
        hint = "`medfedvqa pretrain` makes it" if name in BUNDLED else "check the path that this machine gives for it"
        raise BackboneError(f"the {architecture} checkpoint of the backbone '{name}' is missing; {hint}")
    clip: CLIP | CustomTextCLIP = assemble(configuration)
    fill(clip, name, architecture, path)
    return clip


def _from_open_clip(name: str) -> "CLIP | CustomTextCLIP":
    import open_clip

    architecture, tag, activation = name, None, {}
    if not name.startswith(HUB):
        architecture, _, tag = name.partition("/")
        # Anything but a known tag would be taken for a path by open_clip.
        if not open_clip.is_pretrained_cfg(architecture, tag):
            tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
            raise BackboneError(f"open_clip has no weights '{tag}' of {architecture}; its tags: {tags}")
        # Some weights need QuickGELU although their architecture's name does not say so; open_clip only warns.
        activation = {"force_quick_gelu": bool(open_clip.get_pretrained_cfg(architecture, tag).get("quick_gelu"))}
    try:
        return open_clip.create_model(architecture, tag, require_pretrained=True, **activation)
    except Exception as error:  # network, cache, hub and file format each raise their own
        raise BackboneError(
            f"the {architecture} weights of the backbone '{name}' could not be fetched or loaded "
            f"({type(error).__name__}); check the network, or give a local checkpoint as ARCH@label"
        ) from None


def _normalisation(architecture: str, clip: "CLIP | CustomTextCLIP") -> tuple[tuple[float, ...], tuple[float, ...]]:
    if architecture in OWN:
        return MEAN, STD
    import open_clip

    preprocessing = open_clip.get_model_preprocess_cfg(clip)
    mean = preprocessing.get("mean") or open_clip.OPENAI_DATASET_MEAN
    std = preprocessing.get("std") or open_clip.OPENAI_DATASET_STD
    return tuple(mean), tuple(std)


def _tokenizer(architecture: str) -> Callable[[list[str]], torch.Tensor]:
    if architecture in OWN:
        return ShortVocabulary()
    import open_clip

    try:
        tokenizer: Callable[[list[str]], torch.Tensor] = open_clip.get_tokenizer(architecture)
    except Exception as error:  # some architectures fetch their vocabulary from the hub
        raise BackboneError(f"the tokenizer of '{architecture}' cannot be fetched ({type(error).__name__})") from None
    return tokenizer
