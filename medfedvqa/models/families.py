"""The towers of a two-tower model from any library, and the shape that follows from its modules."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Union

import torch
from torch import nn

from medfedvqa.errors import ConfigError
from medfedvqa.models.backbone import BackboneShape, TowerShape
from medfedvqa.models.towers import ClassTextTower, ImageTower, TextTower

if TYPE_CHECKING:
    from medfedvqa.models.library_towers import LibraryImageTower, LibraryTextTower

Images = Union[ImageTower, "LibraryImageTower"]
Texts = Union[TextTower, "LibraryTextTower"]
IMAGE, TEXT = "image", "text"


def image_tower(model: Any, tuned: int) -> Images:
    """The picture tower, tuned in its last blocks. Raises `BackboneError` for a class that no encoder reads."""
    if hasattr(model, "visual") and hasattr(getattr(model.visual, "transformer", None), "resblocks"):
        return ImageTower(model.visual, tuned)
    from medfedvqa.models.encoders import image_encoder  # CLIP's own towers need neither of them
    from medfedvqa.models.library_towers import LibraryImageTower

    return LibraryImageTower(image_encoder(model), tuned)


def text_tower(model: Any, tuned: int) -> Texts:
    """The text tower, tuned in its last blocks. Raises `BackboneError` for a class that no encoder reads."""
    text = getattr(model, "text", model)
    if getattr(text, "cls_emb", None) is not None:
        return ClassTextTower(model, tuned)
    if hasattr(text, "transformer") and hasattr(text.transformer, "resblocks"):
        return TextTower(model, tuned)
    from medfedvqa.models.encoders import text_encoder
    from medfedvqa.models.library_towers import LibraryTextTower

    return LibraryTextTower(text_encoder(model), tuned)


def has_places(shape: BackboneShape) -> bool:
    """Whether a backbone of this shape gives a grid of a picture's places (`Backbone.places`).

    The places are a picture tower's own states; open_clip's attentional pooling changes their width.
    """
    image = shape.towers.get(IMAGE)
    return image is not None and image.blocks == "visual.transformer.resblocks" and not image.features


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
    tower = image_tower(model, 1)
    if not isinstance(tower, ImageTower):
        return tower.shape(model), tower.encoder.aside
    visual = model.visual
    width, block = len(visual.class_embedding), visual.transformer.resblocks[0]
    features = 0 if visual.attn_pool is None else visual.ln_post.normalized_shape[0]
    shape = plain_tower(len(visual.transformer.resblocks), width, block.attn.num_heads, "visual.")
    return replace(shape, features=features), ("visual.proj",)


def _text_shape(model: Any) -> tuple[TowerShape, tuple[str, ...], int]:
    tower = text_tower(model, 1)
    if isinstance(tower, TextTower):
        text, prefix = tower._text, "text." if tower._text is not model else ""
        width, block = text.positional_embedding.shape[1], text.transformer.resblocks[0]
        aside = tuple(f"{prefix}text_projection{part}" for part in ("", ".weight", ".bias"))
        return plain_tower(tower.layers, width, block.attn.num_heads, prefix), aside, width
    return tower.shape(), tower.encoder.aside, tower.encoder.table.embedding_dim


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
