"""Shape cards made from backbone shapes, and the reverse."""

from collections.abc import Mapping
from pathlib import Path

from medfedvqa.backbone_names import parse
from medfedvqa.errors import BackboneError
from medfedvqa.models.backbone import BackboneShape, TowerShape
from medfedvqa.models.backbones import shape_of
from medfedvqa.models.local_folders import layout_of
from medfedvqa.shape_cards import ShapeCard, TowerCard


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
        raise BackboneError(f"the shape of the backbone '{name}' is out of the bounds of a shape card") from None


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
            f"the job's shape card of '{name}' is not that of this site's files: compare their versions"
        )
