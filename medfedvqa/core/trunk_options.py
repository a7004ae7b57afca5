"""The options of methods that can train a trunk of the literature on the frozen backbone."""

from pydantic import Field, ValidationInfo, field_validator

from medfedvqa.bounds import MOST_SPACE
from medfedvqa.core.averaging import TunedConfig
from medfedvqa.models import Backbone, BackboneShape, TrunkBackbone, TrunkConfig, TrunkName
from medfedvqa.training import Site


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
            raise ValueError("a trunk starts from random weights, so all of it is trained: give 'tuning' as 'full'")
        return trunk

    def trained_shape(self, shape: BackboneShape) -> BackboneShape:
        """See `TunedConfig`. Raises `ConfigError` for a trunk on a backbone that gives no grid of places."""
        trunk = self._trunk
        return shape if trunk is None else trunk.shape(shape)

    def trained_backbone(self, site: Site) -> Backbone:
        """See `TunedConfig`. All sites of a job begin with the same trunk."""
        trunk = self._trunk
        return site.backbone if trunk is None else TrunkBackbone(site.backbone, trunk, site.seed)

    @property
    def _trunk(self) -> TrunkConfig | None:
        return None if self.trunk is None else TrunkConfig(self.trunk, self.trunk_width)
