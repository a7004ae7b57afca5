"""The sharing study: in which regimes federated systems are better than training alone, pooled rows, or FedAvg."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from audits.escaping import for_markdown
from medfedvqa.atomic_files import write_whole
from medfedvqa.errors import ConfigError
from medfedvqa.figures import COLOURS, MARKERS, new_figure, styled, svg_file
from medfedvqa.research.benchmark.benchmark_table import ABSENT, cell, gain_cell, p_cell, table
from medfedvqa.research.benchmark.grid import Grid
from medfedvqa.research.benchmark.results_file import Result
from medfedvqa.research.benchmark.single_run import EVERY, Regime, has_joiners
from medfedvqa.research.benchmark.statistics import Comparison, Gain, SeedSummary, average, compared, gain, holm, paired

REGIMES: Mapping[str, tuple[Regime, ...]] = {
    "rows": (Regime(0.1), Regime(0.25), Regime(0.5), Regime()),
    "hospitals": (Regime(), Regime(hospitals=2), Regime(hospitals=3), Regime(hospitals=4)),
    "labels": (Regime(hospitals=2, mislabelled=0.5), Regime(hospitals=2, mislabelled=1.0)),
    "joining": (
        *(Regime(hospitals=2, joining=count) for count in (0, 2, 5, 10, 20, EVERY)),
        # Without a labelled row, a hospital of a new organ is refused.
        *(Regime(hospitals=2, joining=count, new_organ=True) for count in (2, 5, 10, 20, EVERY)),
    ),
}
"""The regimes by the name of the question that they answer."""
SYSTEMS = (
    *("frozen features", "frozen features (rows of all sites)", "local classifier", "FedAvg classifier"),
    *("FedProx classifier", "ridge (not shared)", "ridge", "stepwise", "stepwise (own bias)"),
    *("stepwise (own last layer)", "stepwise (finished)", "stepwise (by organ)", "stepwise (by reliability)"),
)
"""The labels of the systems that are compared unless others are named."""
POOLED = "frozen features (rows of all sites)"
FEDAVG = "FedAvg classifier"
LEVEL = 0.05
"""A difference counts as significant if its corrected p value is below this."""


@dataclass(frozen=True)
class SystemDifference:
    """The difference between two systems' accuracies on the same test rows."""

    gain: Gain
    p: float
    """Two-sided, over patients and seeds, Holm-corrected over all comparisons of this kind in the study."""

    @property
    def sign(self) -> int:
        """1 if it is better, -1 if it is worse, 0 if the difference is not significant."""
        return 0 if self.p >= LEVEL else 1 if self.gain.mean > 0 else -1


@dataclass(frozen=True)
class Finding:
    """The result of one federated system in one regime."""

    regime: str
    system: str
    accuracy: SeedSummary
    alone: SystemDifference
    """Against the same model trained alone with equal steps."""
    pooled: SystemDifference | None
    """Against one model trained on all rows; None if it was not run."""
    fedavg: SystemDifference | None
    """Against `FEDAVG`; None for itself, and if it was not run."""


def systems_of(base: Grid, regime: Regime) -> Grid:
    """The grid of a regime, with its own folder and only the systems that the regime is defined for."""
    systems = base.systems
    if regime.joining is not None:
        systems = tuple(system for system in systems if has_joiners(base.job(system, 0), regime))
    if not systems:
        raise ConfigError(f"no chosen system is defined with {regime.name}: choose others, or other --regimes")
    folder = "-".join(re.findall(r"\w+", regime.name))
    return replace(base, out=base.out / folder, lines=base.results_file, regime=regime, systems=systems)


def findings(results: Sequence[Result]) -> list[Finding]:
    """A finding for each system whose model was also trained alone. Raises `ConfigError` where `compared` does."""
    by_regime: dict[str, list[Result]] = {}
    for result in results:
        by_regime.setdefault(result.regime, []).append(result)
    raw = [each for regime, part in by_regime.items() for each in _raw(regime, compared(part))]
    alone, pooled, fedavg = (
        _corrected([getattr(each, kind) for each in raw]) for kind in ("alone", "pooled", "fedavg")
    )
    return [
        replace(each, alone=alone[place] or each.alone, pooled=pooled[place], fedavg=fedavg[place])
        for place, each in enumerate(raw)
    ]


def _corrected(differences: Sequence[SystemDifference | None]) -> list[SystemDifference | None]:
    """The differences with p values corrected for all of them."""
    values = holm({str(place): each.p for place, each in enumerate(differences) if each})
    return [each and replace(each, p=values[str(place)]) for place, each in enumerate(differences)]


def _raw(regime: str, comparison: Comparison) -> Iterator[Finding]:
    """The findings of a regime, p values uncorrected."""

    def difference(label: str, other: str | None) -> SystemDifference | None:
        rows = comparison.rows
        if other is None or other == label or other not in rows or not paired(rows[label], rows[other]):
            return None
        over = gain(rows[label], rows[other])
        return SystemDifference(over, over.p)

    for label, runs in comparison.rows.items():
        alone = difference(label, comparison.pair(label, comparison.alone))
        if alone:
            yield Finding(regime, label, average(runs), alone, difference(label, POOLED), difference(label, FEDAVG))


def sentences(found: Sequence[Finding]) -> list[str]:
    """One sentence for each regime, and one for the whole study."""
    by_regime: dict[str, list[Finding]] = {}
    for each in found:
        by_regime.setdefault(each.regime, []).append(each)
    words = {
        1: "better than training alone",
        -1: "worse than training alone",
        0: "not significantly different from training alone",
    }
    texts = []
    for regime, part in by_regime.items():
        groups = {sign: [each for each in part if each.alone.sign == sign] for sign in words}
        listed = [
            f"{_listed(group)} {'is' if len(group) == 1 else 'are'} {words[sign]}"
            for sign, group in groups.items()
            if group
        ]
        texts.append(f"With {regime}: {'; '.join(listed)}.")
    better = [each for each in found if each.alone.sign == 1]
    if not found:
        return ["Nothing can be said about sharing: no system was run beside its training alone."]
    if not better:
        return [
            *texts,
            f"Sharing never pays here: in none of {len(found)} comparisons is it better than training alone.",
        ]
    best = max(better, key=lambda each: each.alone.gain.mean)
    return [
        *texts,
        f"Sharing pays in {len(better)} of {len(found)} comparisons, most with {best.regime}, where {best.system} has "
        f"{_points(best.alone)} over training alone.",
    ]


def _listed(group: Sequence[Finding]) -> str:
    return ", ".join(f"{each.system} ({_points(each.alone)})" for each in group)


def _points(difference: SystemDifference) -> str:
    return f"{gain_cell(difference.gain)} points, p {p_cell(difference.p).replace('<', '< ')}"


def page(found: Sequence[Finding]) -> str:
    """The study in Markdown: findings in sentences, the table, and notes on how to read it."""
    head = ["regime", "system", "average", "over alone", "p", "over all rows pooled", "p", f"over {FEDAVG}", "p"]
    rows = []
    for each in found:
        cells = [for_markdown(each.regime), for_markdown(each.system), cell(each.accuracy)]
        for difference in (each.alone, each.pooled, each.fedavg):
            cells += [gain_cell(difference.gain), p_cell(difference.p)] if difference else [ABSENT, ABSENT]
        rows.append(cells)
    reading = (
        "Points of the average accuracy over sites, with 95 % intervals over patients and seeds, not corrected; "
        "p of the same t, corrected after Holm within each column. Alone: the same model at each site "
        "by itself, for equal steps."
    )
    parts = ["\n".join(f"- {for_markdown(text)}" for text in sentences(found)), table(head, rows), reading]
    return "\n\n".join(parts) + "\n"


@styled()
def draw(path: Path, found: Sequence[Finding]) -> Path:
    """The gain over training alone of each system, with its interval, regime by regime."""
    regimes = list(dict.fromkeys(each.regime for each in found))
    systems = list(dict.fromkeys(each.system for each in found))
    figure = new_figure(8.0, 4.2)
    axes = figure.subplots()
    for number, system in enumerate(systems):
        own = [each for each in found if each.system == system]
        shift = 0.6 * (number - (len(systems) - 1) / 2) / len(systems)
        means = [100 * each.alone.gain.mean for each in own]
        bounds = [each.alone.gain.interval or (each.alone.gain.mean,) * 2 for each in own]
        axes.errorbar(
            [regimes.index(each.regime) + shift for each in own],
            means,
            [[mean - 100 * low for mean, (low, _) in zip(means, bounds, strict=True)]]
            + [[100 * high - mean for mean, (_, high) in zip(means, bounds, strict=True)]],
            label=system,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number // len(COLOURS) % len(MARKERS)],
            linestyle="none",
            capsize=2,
        )
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(regimes)), regimes, rotation=20, ha="right")
    axes.set_ylabel("points over training alone")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
    return write_whole(path, svg_file(figure))
