"""The towers of a model of two towers, whichever library wrote them, and the shape that follows from its modules."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from medfedvqa.errors import ConfigError
from medfedvqa.models.backbone import BackboneShape, TowerShape
from medfedvqa.models.block_readers import attention_of, pointwise_layers
from medfedvqa.models.encoders import image_encoder, text_encoder
from medfedvqa.models.library_towers import LibraryImageTower, LibraryTextTower
from medfedvqa.models.towers import ClassTextTower, ImageTower, TextTower

Images = ImageTower | LibraryImageTower
Texts = TextTower | LibraryTextTower
IMAGE, TEXT = "image", "text"


def image_tower(model: Any, tuned: int) -> Images:
    """The picture tower, tuned in its last blocks. Raises `BackboneError` for a class that no encoder reads."""
    if _is_open_clip_vit(model):
        return ImageTower(model.visual, tuned)
    return LibraryImageTower(image_encoder(model), tuned)


def text_tower(model: Any, tuned: int) -> Texts:
    """The text tower, tuned in its last blocks. Raises `BackboneError` for a class that no encoder reads."""
    text = getattr(model, "text", model)
    if getattr(text, "cls_emb", None) is not None:
        return ClassTextTower(model, tuned)
    if hasattr(text, "transformer") and hasattr(text.transformer, "resblocks"):
        return TextTower(model, tuned)
    return LibraryTextTower(text_encoder(model), tuned)


def has_places(shape: BackboneShape) -> bool:
    """Whether a backbone of this shape gives a grid of a picture's places (`Backbone.places`).

    The places are a picture tower's own states, which open_clip's attentional pooling brings to another width.
    """
    image = shape.towers.get(IMAGE)
    return image is not None and image.blocks == "visual.transformer.resblocks" and not image.features


def _is_open_clip_vit(model: Any) -> bool:
    return hasattr(model, "visual") and hasattr(getattr(model.visual, "transformer", None), "resblocks")


def shape_from(build: Callable[[], nn.Module], image_size: int, context: int) -> BackboneShape:
    """The shape of a model that `build` makes, without memory for its weights. Raises `BackboneError`."""
    with torch.device("meta"):
        model = build().eval()
    images, image_aside = _image_shape(model)
    texts, text_aside, words = _text_shape(model)
    unused = "logit_scale", "logit_bias", "text_decoder.", *image_aside, *text_aside
    return BackboneShape(
        towers={IMAGE: images, TEXT: texts},
        embed=_common_width(model, images, texts),
        image_size=image_size,
        context=context,
        words=words,
        build=build,
        aside=tuple(
            name
            for name, _ in model.named_parameters()
            if any(name == part or (part.endswith(".") and name.startswith(part)) for part in unused)
        ),
    )


def _image_shape(model: Any) -> tuple[TowerShape, tuple[str, ...]]:
    if _is_open_clip_vit(model):
        visual = model.visual
        width, block = len(visual.class_embedding), visual.transformer.resblocks[0]
        features = 0 if visual.attn_pool is None else visual.ln_post.normalized_shape[0]
        layers = len(visual.transformer.resblocks)
        tower = plain_tower(layers, width, block.attn.num_heads, "visual.")
        return replace(tower, features=features), ("visual.proj",)
    encoder = image_encoder(model)
    names, blocks = list(encoder.blocks), list(encoder.blocks.values())
    if not encoder.attends:
        widths, features = _measured_widths(model, encoder)
        parts = tuple(tuple((p.name, p.first, p.end, p.inputs) for p in pointwise_layers(b)) for b in blocks)
        return (
            TowerShape(
                len(blocks), widths[-1], 0, names=tuple(names), widths=widths, features=features, by_block=parts
            ),
            encoder.aside,
        )
    attention = attention_of(blocks[0])
    width = next(p for n, p in blocks[0].named_parameters() if n == attention.queries_values[0][0]).shape[1]
    prefix = names[0].rpartition(".")[0]
    return TowerShape(len(blocks), width, attention.heads, prefix, attention.queries_values), encoder.aside


def _measured_widths(model: Any, encoder: Any) -> tuple[tuple[int, ...], int]:
    """The channels that each block gives, and the width of features, from a pass without numbers."""
    size = model.visual.image_size
    side = size if isinstance(size, int) else size[0]
    with torch.no_grad(), torch.device("meta"):
        hidden, widths = encoder.embed(torch.empty(1, 3, side, side)), []
        for index in range(len(encoder.blocks)):
            hidden = encoder.run(index, hidden)
            widths.append(hidden.shape[1])
        return tuple(widths), encoder.pool(hidden).shape[1]


def _text_shape(model: Any) -> tuple[TowerShape, tuple[str, ...], int]:
    tower = text_tower(model, 1)
    if isinstance(tower, TextTower):
        text, prefix = tower._text, "text." if tower._text is not model else ""
        width, block = text.positional_embedding.shape[1], text.transformer.resblocks[0]
        aside = tuple(f"{prefix}text_projection{part}" for part in ("", ".weight", ".bias"))
        return plain_tower(tower.layers, width, block.attn.num_heads, prefix), aside, width
    encoder = tower.encoder
    names, blocks = list(encoder.blocks), list(encoder.blocks.values())
    attention, width = attention_of(blocks[0]), encoder.table.embedding_dim
    shape = TowerShape(len(blocks), width, attention.heads, names[0].rpartition(".")[0], attention.queries_values)
    return shape, encoder.aside, width


def plain_tower(layers: int, width: int, heads: int, module: str) -> TowerShape:
    """The shape of a tower of open_clip's plain blocks; `module`: its name within the model, with a dot, or empty."""
    queries_values = ("attn.in_proj_weight", 0, width), ("attn.in_proj_weight", 2 * width, 3 * width)
    return TowerShape(layers, width, heads, f"{module}transformer.resblocks", queries_values)


def _common_width(model: Any, images: TowerShape, texts: TowerShape) -> int:
    """The width of the space that both towers project to; 0 if they do not meet."""
    with torch.no_grad(), torch.device("meta"):
        try:
            picture = image_tower(model, 1).embed(torch.empty(1, images.features or images.width))
            text = text_tower(model, 1).embed(torch.empty(1, texts.features or texts.width))
        except ConfigError:  # a tower without projection
            return 0
    return int(picture.shape[1]) if picture.shape == text.shape else 0
