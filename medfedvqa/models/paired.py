"""A VQA model that sees pictures, questions or both, and projects them into the models' common space."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from medfedvqa.errors import ConfigError
from medfedvqa.models.backbone import BackboneShape, Depth
from medfedvqa.models.families import IMAGE, TEXT
from medfedvqa.models.tuned import TunedModel
from medfedvqa.models.tuning import Values

PROJECTION = "projection."


def check_apart(shape: BackboneShape) -> None:
    """Raises `ConfigError` for a backbone without separate towers for pictures and texts."""
    if shape.towers.keys() != {IMAGE, TEXT}:
        raise ConfigError("this backbone reads picture and text in one tower, and neither alone: choose a CLIP")


@dataclass(frozen=True)
class PairedModel(TunedModel):
    """A model of the modalities in `sees`. Others are not tuned, not projected, and do not reach the answer head.

    Its backbone has a tower for each modality.
    """

    sees: tuple[str, ...] = (IMAGE, TEXT)
    space: int = 256
    """Dimensions of the common space."""

    @property
    def shape(self) -> BackboneShape:
        """The backbone's shape with only the towers that the model sees. Raises `ConfigError`."""
        shape = self.backbone.shape
        check_apart(shape)
        if self.tuning.kind == "full" and len(self.sees) < len(shape.towers):
            raise ConfigError("a model of one modality cannot tune a whole backbone: set 'tuning' to 'blocks'")
        return replace(shape, towers={tower: facts for tower, facts in shape.towers.items() if tower in self.sees})

    @property
    def depth(self) -> Depth:
        return {tower: 0 for tower in self.backbone.shape.towers} | dict(super().depth)

    def projection(self, generator: torch.Generator) -> Values:
        """The initial weights of the projections, by name. They are not among the VQA model's values."""
        return {
            f"{PROJECTION}{tower}": (torch.randn(self.space, facts.width, generator=generator) * facts.width**-0.5).to(
                self.backbone.device
            )
            for tower, facts in self.shape.towers.items()
        }

    def features(self, values: Mapping[str, torch.Tensor], batch: Any) -> torch.Tensor:
        return torch.cat([*self._parts(values, batch).values()], dim=-1)

    def represent(self, values: Mapping[str, torch.Tensor], batch: Any) -> Values:
        """The unit vectors of a batch, [rows, space], by modality. `values` include the projections."""
        parts = self._parts(values, batch)
        return {m: F.normalize(F.linear(part, values[PROJECTION + m]), dim=-1) for m, part in parts.items()}

    def attention(self, values: Mapping[str, torch.Tensor], batch: Any) -> torch.Tensor:
        if IMAGE not in self.sees:
            raise ConfigError("the site's model sees no pictures, so there is no attention over them to show")
        return super().attention(values, batch)

    def _parts(self, values: Mapping[str, torch.Tensor], batch: Any) -> Values:
        towers = self.backbone.shape.towers
        parts = torch.split(super().features(values, batch), [facts.width for facts in towers.values()], dim=-1)
        return {tower: part for tower, part in zip(towers, parts, strict=True) if tower in self.sees}
