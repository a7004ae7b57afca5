"""The numerical analysis behind both accountants, by Opacus or by NumPy alone.

A site charges its patients by the functions of Opacus, a library that many people check. Opacus needs torch; a verifier
of reports should not. So `with_numpy` computes the same quantities, implemented from the papers. Tests show that both
agree far within the tolerance of a report's verification.
"""

from functools import cache
from importlib.util import find_spec

from privacy.analysis.quantities import Analysis, Floats, Losses, PrivacyLoss

__all__ = ["LEAST_DELTA", "Analysis", "Floats", "Losses", "PrivacyLoss", "analysis", "recomputes_at"]

LEAST_DELTA = 1e-7
"""At smaller deltas, rounding of probabilities alone changes epsilon by more than a report's tolerance, and differently
in each implementation."""


@cache
def analysis() -> Analysis:
    """Opacus where it is installed, as at every site that trains; NumPy alone elsewhere."""
    if find_spec("opacus") is None:
        from privacy.analysis import with_numpy

        return with_numpy
    # Opacus takes seconds to import, and jobs without differential privacy do without it.
    from privacy.analysis import with_opacus

    return with_opacus


def recomputes_at(delta: float) -> bool:
    """Whether this machine can recompute figures that a site computed with Opacus, within a report's tolerance."""
    return delta >= LEAST_DELTA or find_spec("opacus") is not None
