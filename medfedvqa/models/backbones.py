"""Frozen backbones by name: the project's own CLIP, open_clip's tags, the Hugging Face hub, and local files.

`medfedvqa.backbone_names` lists the forms of names, and makes the checks that need no torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from medfedvqa import plugins
from medfedvqa.backbone_names import (
    HUB,
    NO_BACKBONE,
    OWN,
    BackboneName,
    check_architecture,
    configuration,
    parse,
    refusal,
)
from medfedvqa.bounds import JOIN
from medfedvqa.devices import exact_float32
from medfedvqa.errors import BackboneError
from medfedvqa.models.backbone import NO_SHAPE, Architecture, Backbone, BackboneShape, NoBackbone, TowerShape
from medfedvqa.models.bundled import ARCHITECTURES as OWN_CONFIGURATIONS
from medfedvqa.models.bundled import BUNDLED, COMPONENTS, bundled_components, has_published_parts, normalisation
from medfedvqa.models.bundled import tokenizer as own_tokenizer
from medfedvqa.models.checkpoints import digest, fill, fitted
from medfedvqa.models.clip import ClipBackbone
from medfedvqa.models.families import IMAGE, TEXT, plain_tower, shape_from
from medfedvqa.models.local_folders import FolderLayout, has_own_words, layout_of, tokenizer_of, weights_in
from medfedvqa.models.open_clip_models import asking_the_hub, build
from medfedvqa.models.published_parts import parts_are_installed, published_weights
from medfedvqa.shape_cards import ShapeCard, TowerCard

if TYPE_CHECKING:
    from torch import nn

NO_FILES: Mapping[str, Path] = MappingProxyType({})

ADDED: Mapping[str, str] = MappingProxyType({"words": "file of word vectors", "regions": "folder of region files"})
"""The files that a site provides for a backbone that adds to another one, by the prefix of its name."""

PLACES: Mapping[str, str] = MappingProxyType(
    {
        "vilt": "medfedvqa.papers.networks.vilt:VILT",
        "vault": "medfedvqa.papers.networks.vilt:VAULT",
        "albef": "medfedvqa.papers.networks.albef_files:ALBEF",
        "words": "medfedvqa.papers.networks.site_files:WordVectorBackbone",
        "regions": "medfedvqa.papers.networks.site_files:RegionBackbone",
    }
)
"""Backbones that are imported only when a job names them: those that read picture and question together, by the prefix
of their architectures' names, and those of `ADDED`."""


@dataclass(frozen=True)
class Family:
    """The architectures of one kind of fused backbone, with weights in local files only."""

    architectures: Mapping[str, Mapping[str, Any]]
    shape: Callable[[str], BackboneShape]
    """The shape of an architecture."""
    load: Callable[[str, str, Path, str], Backbone]
    """A backbone by name, architecture, folder of this machine and device. Raises `BackboneError`, without paths."""


PROJECTION = ("", ".weight", ".bias")
"""Suffixes of the names of a projection's parameters, as a matrix or as a layer."""

IMAGE_DEFAULTS = {"layers": 12, "width": 768, "head_width": 64, "image_size": 224}
TEXT_DEFAULTS = {"layers": 12, "width": 512, "heads": 8, "context_length": 77}
"""open_clip's defaults for missing fields of a configuration."""


def shape_of(name: str) -> BackboneShape:
    """The shape of a backbone without loading it (`hf-hub:` names without a label read the hub's configuration).

    Raises `BackboneError` for an unknown name, for an architecture that cannot be used, and for a local folder, which
    needs a shape card.
    """
    parsed = parse(name)
    if name == NO_BACKBONE:
        return NO_SHAPE
    if parsed.adds:
        below = shape_of(parsed.below)
        return replace(below, words=parsed.words or below.words, regions=parsed.regions)
    if outside := _from_outside(name):
        return outside.shape()
    if parsed.is_folder:
        raise BackboneError(
            f"only its folder has the shape of '{name}': make its shape card by `medfedvqa backbone card`"
        )
    if fused := _fused(parsed.architecture):
        return fused.shape(parsed.architecture)
    return _shape(name, _configuration(parsed))


def _fused(architecture: str) -> Family | None:
    """The kind of fused backbone that has this architecture."""
    kind = architecture.partition("-")[0]
    if kind in ADDED or kind not in PLACES:
        return None
    family: Family = resolve_name(PLACES[kind])
    return family if architecture in family.architectures else None


def outside_architecture(name: str) -> str | None:
    """The architecture in a backbone's name if a distribution may bring it; None for the project's architectures."""
    parsed = parse(name)
    if parsed.label is None or parsed.is_folder or parsed.architecture in OWN or _fused(parsed.architecture):
        return None
    return parsed.architecture


def _from_outside(name: str) -> Architecture | None:
    """The architecture of an allowed distribution; None if no distribution brings it. Raises `PlugInRefused`."""
    architecture = outside_architecture(name)
    return None if architecture is None else plugins.load("backbones", architecture)


def seen_by(name: str) -> tuple[str, ...] | None:
    """The data sets that the weights of this name were trained on; None if unknown."""
    if name == NO_BACKBONE:
        return ()
    if below := parse(name).below:
        return seen_by(below)
    return BUNDLED[name].seen if name in BUNDLED else None


def has_seen(name: str, data: str) -> bool:
    """Whether the weights of this name are known to be trained on this data set, or on one of several joined."""
    return not set(data.split(JOIN)).isdisjoint(seen_by(name) or ())


def is_bundled(name: str) -> bool:
    """Whether the backbone ships with the project and its parts are installed, so that loading it fetches nothing."""
    return (
        name == NO_BACKBONE
        or name in BUNDLED
        and (not has_published_parts(parse(name).architecture) or parts_are_installed())
    )


def bundled_for(data: str) -> str:
    """The bundled backbone that was not trained on this data set, nor on one of several joined.

    Raises `BackboneError` if there is none.
    """
    for name in BUNDLED:
        if not has_seen(name, data):
            return name
    raise BackboneError(f"every bundled backbone has seen part of {data}: choose another, by its name")


def load_backbone(name: str, files: Mapping[str, Path] = NO_FILES, device: str = "cpu") -> Backbone:
    """Loads a backbone; `files` holds this machine's local files and folders by name (`ARCH@label`).

    Raises `BackboneError`: unknown name, missing file, or a file of another architecture. No message holds a path.
    """
    parsed = parse(name)
    exact_float32(device)
    if name == NO_BACKBONE:
        return NoBackbone(device)
    if parsed.label is not None and name not in files:
        what = "folder" if parsed.is_folder else ADDED.get(parsed.adds, f"{parsed.architecture} checkpoint")
        raise BackboneError(f"no file is given for the backbone '{name}'; name its {what} in site.yml, under backbones")
    if parsed.adds:
        below = load_backbone(parsed.below, files, device)
        added: Backbone = resolve_name(PLACES[parsed.adds]).of(parsed, below, files[name])
        return added
    if outside := _from_outside(name):
        return outside.load(name, files[name], device)
    if fused := _fused(parsed.architecture):
        return fused.load(name, parsed.architecture, files[name], device)
    model, layout = _loaded(parsed, files)
    model = model.to(device).float().eval().requires_grad_(False)
    return ClipBackbone(
        name,
        model,
        layout.tokenize,
        layout.mean,
        layout.std,
        layout.shape,
        seen_by(name),
        digest(model),
        channels=1 if parsed.architecture in OWN else 3,
        notes=layout.notes,
        principal=bundled_components(name).to(torch.device(device)) if name in BUNDLED else None,
    )


def _loaded(name: BackboneName, files: Mapping[str, Path]) -> "tuple[nn.Module, FolderLayout]":
    """A model with its weights, and the other facts in its files. Raises `BackboneError`."""
    notes: list[str] = []
    if name.is_folder:
        layout = layout_of(name.full, files[name.full])
        model = _filled(name, layout.shape.build, weights_in(name.full, files[name.full]), notes)
        return model, replace(layout, notes=tuple(notes))
    configured = _configuration(name)
    shape = _shape(name.full, configured)
    if name.full in BUNDLED:
        resource = resources.files("medfedvqa.models") / "weights" / BUNDLED[name.full].file
        with resources.as_file(resource) as path:
            model = _filled(name, shape.build, path, notes)
    elif name.label is not None:
        path = files[name.full]
        if name.architecture not in OWN and has_own_words(configured) and not path.is_dir():
            raise BackboneError(
                f"'{name.full}' has a tokenizer of its own: give a folder with the weights and the tokenizer's files"
            )
        model = _filled(name, shape.build, weights_in(name.full, path) if path.is_dir() else path, notes)
    else:
        model = _from_open_clip(name)
    folder = files[name.full] if name.label is not None and files[name.full].is_dir() else None
    tokenize = tokenizer_of(name.full, folder, configured) if folder else _tokenizer(name.architecture)
    return model, FolderLayout(shape, tokenize, *_normalisation(name.architecture, model), tuple(notes))


def _configuration(name: BackboneName) -> dict[str, Any]:
    """open_clip's configuration of a model. Raises `BackboneError` for an unknown architecture."""
    if name.architecture in OWN:
        return OWN_CONFIGURATIONS[name.architecture]
    if not name.architecture.startswith(HUB):
        check_architecture(name)
        return configuration(name.architecture)
    # open_clip takes seconds to import, and most commands, and servers, load no model.
    import open_clip

    try:
        with asking_the_hub():
            found: dict[str, Any] = open_clip.get_model_config(name.architecture)
    except Exception as error:  # the hub's client raises a dozen kinds
        raise BackboneError(
            f"'{name.architecture}' cannot be read from the hub ({type(error).__name__}); check the network, or give a "
            f"local folder as {name.architecture}@LABEL"
        ) from None
    return found


def _shape(name: str, configured: Mapping[str, Any]) -> BackboneShape:
    if reason := refusal(configured):
        raise BackboneError(f"the backbone '{name}' cannot be used: {reason}; docs/backbones.md lists what can")
    vision, text = configured["vision_cfg"], configured["text_cfg"]
    components = COMPONENTS if name in BUNDLED else (0, 0)
    if not _is_plain(configured):
        shape = shape_from(partial(build, configured), vision["image_size"], text.get("context_length", 77))
        return replace(shape, components=components)
    vision, text = IMAGE_DEFAULTS | vision, TEXT_DEFAULTS | text
    prefix = "text." if configured.get("custom_text") else ""
    return BackboneShape(
        towers={
            IMAGE: plain_tower(vision["layers"], vision["width"], vision["width"] // vision["head_width"], "visual."),
            TEXT: plain_tower(text["layers"], text["width"], text["heads"], prefix),
        },
        embed=configured["embed_dim"],
        image_size=vision["image_size"],
        context=text["context_length"],
        words=text["width"],
        build=partial(build, configured),
        aside=("logit_scale", "logit_bias", "visual.proj", *(f"{prefix}text_projection{part}" for part in PROJECTION)),
        components=components,
    )


def _is_plain(configured: Mapping[str, Any]) -> bool:
    """Whether both towers are open_clip's transformers, whose shape follows from the configuration alone."""
    vision, text = configured["vision_cfg"], configured["text_cfg"]
    others = vision.get("timm_model_name"), text.get("hf_model_name"), vision.get("attentional_pool")
    return not any(others) and not isinstance(vision.get("layers"), list) and "multimodal_cfg" not in configured


def _filled(name: BackboneName, make: "Callable[[], nn.Module]", path: Path, notes: list[str]) -> "nn.Module":
    if not path.is_file():
        bundled = name.full in BUNDLED
        hint = "`medfedvqa pretrain` makes it" if bundled else "check the path that this machine gives for it"
        raise BackboneError(f"the {name.architecture} checkpoint of the backbone '{name.full}' is missing; {hint}")
    model = make()
    parts = published_weights(model) if name.architecture in OWN and has_published_parts(name.architecture) else {}
    fill(model, name.full, name.architecture, path, lambda weights: parts | fitted(model, notes, weights))
    return model


def _from_open_clip(name: BackboneName) -> "nn.Module":
    import open_clip

    architecture, tag, activation = name.architecture, name.tag, {}
    if not architecture.startswith(HUB):
        # Anything but a known tag would be taken for a path by open_clip.
        if not open_clip.is_pretrained_cfg(architecture, tag):
            tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
            raise BackboneError(f"open_clip has no weights '{tag}' of {architecture}; its tags: {tags}")
        # Some weights need QuickGELU although their architecture's name does not say so; open_clip only warns.
        activation = {"force_quick_gelu": bool(open_clip.get_pretrained_cfg(architecture, tag).get("quick_gelu"))}
    try:
        with asking_the_hub():
            model: nn.Module = open_clip.create_model(architecture, tag, require_pretrained=True, **activation)
    except Exception as error:  # network, cache, hub and file format each raise their own
        raise BackboneError(
            f"the {architecture} weights of the backbone '{name.full}' could not be fetched or loaded "
            f"({type(error).__name__}); check the network. Without one, copy a checkpoint to this machine and give it "
            f"as {architecture}@LABEL with --backbone-file"
        ) from None
    return model


def _normalisation(architecture: str, clip: "nn.Module") -> tuple[tuple[float, ...], tuple[float, ...]]:
    if architecture in OWN:
        return normalisation(architecture)
    import open_clip

    preprocessing = _agreed(architecture) | open_clip.get_model_preprocess_cfg(clip)
    mean = preprocessing.get("mean") or open_clip.OPENAI_DATASET_MEAN
    std = preprocessing.get("std") or open_clip.OPENAI_DATASET_STD
    return tuple(mean), tuple(std)


def _agreed(architecture: str) -> dict[str, Any]:
    """The normalisation of pictures, if all of open_clip's tags of an architecture agree, as for SigLIP."""
    import open_clip

    tags = open_clip.list_pretrained_tags_by_model(architecture)
    each = [open_clip.get_pretrained_cfg(architecture, tag) for tag in tags]
    agreed = {(tuple(tag.get("mean") or ()), tuple(tag.get("std") or ())) for tag in each}
    return dict(zip(("mean", "std"), agreed.pop(), strict=True)) if len(agreed) == 1 else {}


def _tokenizer(architecture: str) -> Callable[[list[str]], torch.Tensor]:
    if architecture in OWN:
        return own_tokenizer(architecture)
    import open_clip

    try:
        with asking_the_hub():
            tokenizer: Callable[[list[str]], torch.Tensor] = open_clip.get_tokenizer(architecture)
    except Exception as error:  # some architectures fetch their vocabulary from the hub
        raise BackboneError(
            f"the tokenizer of '{architecture}' cannot be fetched ({type(error).__name__}); check the network, or give "
            f"a local folder with it as {architecture}@LABEL"
        ) from None
    return tokenizer


def card_of(name: str, shape: BackboneShape) -> ShapeCard:
    """The card of a shape. Raises `BackboneError` for a shape that no card can hold."""
    try:
        return ShapeCard(
            name=name,
            towers={key: TowerCard(**vars(tower)) for key, tower in shape.towers.items()},
            embed=shape.embed,
            image_size=shape.image_size,
            context=shape.context,
            words=shape.words,
            parameters=dict(shape.parameters),
        )
    except ValueError:
        raise BackboneError(f"the shape of the backbone '{name}' exceeds the limits of a shape card") from None


def card_in(name: str, files: Mapping[str, Path]) -> ShapeCard:
    """The card of any backbone, from its configuration alone; `files`: this machine's files and folders by name.

    Raises `BackboneError`.
    """
    if not parse(name).is_folder:
        return card_of(name, shape_of(name))
    if name not in files:
        raise BackboneError(f"no folder is given for the backbone '{name}': its card is made from the folder")
    return card_of(name, layout_of(name, files[name]).shape)


def shape_on(card: ShapeCard) -> BackboneShape:
    """The backbone shape in a card, the inverse of `card_of`."""
    towers = {
        key: TowerShape(**{name: getattr(tower, name) for name in TowerCard.model_fields})
        for key, tower in card.towers.items()
    }
    return BackboneShape(towers, card.embed, card.image_size, card.context, card.words, listed=dict(card.parameters))


def check_card(card: ShapeCard, name: str, shape: BackboneShape) -> None:
    """Raises `BackboneError` unless the card has the shape of the loaded backbone."""
    if card != card_of(name, shape):
        raise BackboneError(
            f"the job's shape card of '{name}' does not match this site's files: compare their versions"
        )
