"""CreamFL: sites and server teach each other by representations of a public set (Q. Yu et al., ICLR 2023)."""

from medfedvqa.papers.methods.creamfl.method import CreamFL, CreamFLConfig

__all__ = ["CreamFL", "CreamFLConfig"]
