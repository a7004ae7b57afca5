"""The options of methods that can train a trunk of the literature on the frozen backbone."""

from pkgutil import resolve_name
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from medfedvqa.bounds import MOST_SPACE
from medfedvqa.core.averaging import TunedConfig
from medfedvqa.models import Backbone, BackboneShape
from medfedvqa.training import Site

TrunkName = Literal["mfb", "butd", "ban", "mcan-small", "mcan-large", "mmnas-small", "mmnas-large"]
TRUNKS = "medfedvqa.papers.networks.trunks"
"""The package of the trunks, imported only for a job with a trunk."""


class TrunkOptions(TunedConfig, frozen=True):
    """Options of a trunk. Without `trunk`, the backbone itself is tuned."""

    trunk: TrunkName | None = Field(
        None,
        description="a network of the literature, trained from scratch, that joins the backbone's frozen grid of a "
        "picture with the frozen embeddings of the question's words; it goes with 'tuning' as 'full'; null is none",
    )
    trunk_width: int | None = Field(
        None, ge=8, le=MOST_SPACE, multiple_of=8, description="width of the trunk's states; null is its paper's"
    )

    @field_validator("trunk")
    @classmethod
    def _is_trained_as_a_whole(cls, trunk: TrunkName | None, info: ValidationInfo) -> TrunkName | None:
        if trunk is not None and info.data.get("tuning") != "full":
            raise ValueError("a trunk starts from random weights, so all of it is trained: set 'tuning' to 'full'")
        return trunk

    def trained_shape(self, shape: BackboneShape) -> BackboneShape:
        """See `TunedConfig`. Raises `ConfigError` for a trunk on a backbone that gives no grid of places."""
        if self.trunk is None:
            return shape
        of_trunk: BackboneShape = self._trunk().shape(shape)
        return of_trunk

    def trained_backbone(self, site: Site) -> Backbone:
        """See `TunedConfig`. All sites of a job begin with the same trunk."""
        if self.trunk is None:
            return site.backbone
        backbone: Backbone = resolve_name(f"{TRUNKS}:TrunkBackbone")(site.backbone, self._trunk(), site.seed)
        return backbone

    def _trunk(self) -> Any:
        return resolve_name(f"{TRUNKS}:TrunkConfig")(self.trunk, self.trunk_width)
