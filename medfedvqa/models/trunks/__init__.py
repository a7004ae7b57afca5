"""Trunks of UniCon's paper, trained from scratch on the grid of a frozen backbone; one file for each family."""

from medfedvqa.models.trunks.grid import TrunkBackbone, TrunkConfig, TrunkName

__all__ = ["TrunkBackbone", "TrunkConfig", "TrunkName"]
