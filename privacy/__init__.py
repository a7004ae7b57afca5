"""How contributions of sites are combined: the arithmetic that any transport of it must reproduce."""

from privacy.aggregation import (
    AggregationError,
    Mixture,
    Reliability,
    mean,
    mix,
    reliability_weights,
)

__all__ = ["AggregationError", "Mixture", "Reliability", "mean", "mix", "reliability_weights"]
