"""Reproduces tables and figures of the founding papers, and states how each run differs from the paper."""
