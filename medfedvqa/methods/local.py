"""Decentralised training: every site by itself, the lower bound of the tables (DT)."""

from medfedvqa.core.averaging import Averaging
from medfedvqa.core.network_options import NetworkOptions
from medfedvqa.core.registry import register
from medfedvqa.core.trunk_options import TrunkOptions
from medfedvqa.models import BackboneShape, Shapes


class LocalConfig(NetworkOptions, TrunkOptions, frozen=True):
    """Options; `own` chooses the answer list: that of a shared head, or the site's own."""


@register
class Local(Averaging[LocalConfig]):
    """Local training alone, of the same model for the same number of rounds."""

    name = "local"
    config_type = LocalConfig
    shares = False

    def shared(self, shape: BackboneShape) -> Shapes:
        """No tensors: nothing is shared."""
        return {}
