"""When a curve of accuracies by round has become flat."""

from collections.abc import Sequence


def rounds_since_best(curve: Sequence[float]) -> int:
    """The rounds since the first one with the highest accuracy, so that an equal one is no better; 0 without rounds."""
    return len(curve) - 1 - max(range(len(curve)), key=curve.__getitem__) if curve else 0
