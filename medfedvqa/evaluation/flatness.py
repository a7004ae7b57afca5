"""Measures of how flat a curve of accuracies by round has become."""

from collections.abc import Sequence


def rounds_since_best(curve: Sequence[float]) -> int:
    """The rounds since the first one with the highest accuracy, so that an equal one is no better; 0 without rounds."""
    return len(curve) - 1 - max(range(len(curve)), key=curve.__getitem__) if curve else 0


def late_gain(curve: Sequence[float]) -> float:
    """The best of all rounds minus the best of the first two thirds; 0 for fewer than 2 rounds."""
    early = curve[: len(curve) * 2 // 3]
    return max(curve) - max(early) if early else 0.0
