"""Trunks of UniCon's paper, trained from scratch on the grid of a frozen backbone; one file for each family."""

from medfedvqa.papers.networks.trunks.grid import TrunkBackbone, TrunkConfig

__all__ = ["TrunkBackbone", "TrunkConfig"]
