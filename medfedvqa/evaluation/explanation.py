"""Explains a table of accuracies in three sentences made from its figures: free baseline, alone, and shared."""

from collections.abc import Mapping
from math import hypot
from typing import Any

from medfedvqa.evaluation.accuracy import Interval, percent

Entry = Mapping[str, Any]
"""An accuracy with its interval, as in `results.json`."""


def explained(results: Mapping[str, Any]) -> list[str]:
    """Sentences on the averages over sites: on the best answer without training, training alone, and sharing.

    A sentence whose figures are missing is left out: a run may have no baseline, or keep its scores at the sites.
    """
    average, baselines = results["average"], results["average"]["baselines"]
    untrained = [baselines[name] for name in ("question_prior", "majority") if baselines[name]]
    alone = baselines["alone"]
    if not untrained or average["accuracy"] is None:
        return []
    free = max(untrained, key=lambda entry: float(entry["accuracy"]))
    words = "the most frequent answer to the same question" if free is untrained[0] else "the most frequent answer"
    sentences = [f"What is free: {words}, which looks at no picture and trains nothing, is right in {_cell(free)}."]
    if alone:
        sentences.append(
            f"What training alone gives: each site's model, trained without the others, is right in {_cell(alone)}, "
            f"{_gain(alone, free)} against what is free{_judged(alone, free)}."
        )
    against, of = (alone, "training alone") if alone else (free, "what is free")
    sentences.append(
        f"What sharing adds: {results['method']} is right in {_cell(average)}, {_gain(average, against)} against {of}"
        f"{_judged(average, against)}."
    )
    return sentences


def difference(one: Entry, other: Entry) -> tuple[float, Interval]:
    """The difference of two accuracies in -1..1 with its 95 % interval, by variance recovery from both intervals.

    The two are taken as independent. They share their test rows, so the interval is rather too wide than too narrow.
    Source: R. Newcombe, "Interval estimation for the difference between independent proportions", 1998, method 10.
    """
    gain = one["accuracy"] - other["accuracy"]
    below = hypot(one["accuracy"] - one["interval"][0], other["interval"][1] - other["accuracy"])
    above = hypot(one["interval"][1] - one["accuracy"], other["accuracy"] - other["interval"][0])
    return gain, (gain - below, gain + above)


def _gain(one: Entry, other: Entry) -> str:
    """`+6.4 points [0.1, 12.6]`."""
    gain, (low, high) = difference(one, other)
    return f"{100 * gain:+.1f} points [{100 * low:.1f}, {100 * high:.1f}]"


def _judged(one: Entry, other: Entry) -> str:
    _, (low, high) = difference(one, other)
    if low > 0 or high < 0:
        return ""
    return ", which these test rows do not tell apart from none"


def _cell(entry: Entry) -> str:
    low, high = entry["interval"]
    return f"{percent(entry['accuracy'])} [{100 * low:.1f}, {100 * high:.1f}] of the test rows"
