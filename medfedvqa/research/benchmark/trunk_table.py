"""UniCon's Tables 2 and 3 beside runs here: each trunk supervised, contrasted on all rows, and split among sites.

Source: Y. Sun and H. Ochiai, 2023, whose figures are per cent of VQA v2's validation questions.
"""

from collections.abc import Mapping
from statistics import fmean

from medfedvqa.core.trunk_options import TrunkName
from medfedvqa.public_answers import ANSWER_TYPES
from medfedvqa.research.benchmark.results_file import of_type
from medfedvqa.research.benchmark.statistics import Comparison, TTest, average, paired_t, unpaired_t
from medfedvqa.research.benchmark.systems import CONTRASTIVE, SUPERVISED, TRUNKS

SPLIT = "UniCon"
COLUMNS = (SUPERVISED, CONTRASTIVE, SPLIT)
"""The label prefixes of a trunk's systems, in the order of the paper's columns."""
HEADINGS = ("overall", *ANSWER_TYPES)

_Four = tuple[float, float, float, float]
_TABLES: tuple[tuple[TrunkName, _Four, _Four, _Four], ...] = (
    ("ban", (65.86, 83.53, 46.36, 57.56), (36.23, 66.90, 12.71, 19.11), (35.11, 63.84, 11.06, 19.61)),
    ("butd", (63.84, 81.40, 43.81, 55.78), (45.08, 75.82, 29.27, 25.86), (40.96, 66.98, 13.34, 28.74)),
    ("mfb", (65.35, 83.23, 45.31, 57.05), (46.98, 73.95, 32.81, 30.20), (42.43, 68.65, 23.33, 27.52)),
    ("mcan-small", (67.17, 84.82, 49.31, 58.48), (53.18, 81.06, 41.95, 34.93), (48.42, 74.93, 30.88, 32.89)),
    ("mcan-large", (67.50, 85.14, 49.66, 58.80), (53.32, 81.21, 42.66, 34.90), (48.44, 77.44, 30.72, 32.01)),
    ("mmnas-small", (67.79, 85.02, 52.25, 58.80), (51.54, 78.06, 39.76, 34.46), (45.14, 70.55, 28.04, 30.33)),
    ("mmnas-large", (67.98, 85.22, 52.04, 59.09), (53.82, 80.06, 42.86, 36.75), (49.89, 74.85, 36.88, 34.33)),
)
PRINTED: Mapping[TrunkName, Mapping[str, _Four]] = {
    trunk: dict(zip(COLUMNS, figures, strict=True)) for trunk, *figures in _TABLES
}
"""For each trunk and column the figures under `HEADINGS`."""


def trunks_in(comparison: Comparison) -> list[TrunkName]:
    """The trunks with at least one system in the table, in the project's order."""
    return [trunk for trunk in TRUNKS if any(f"{column} {trunk}" in comparison.rows for column in COLUMNS)]


def figures(comparison: Comparison, column: str, trunk: TrunkName) -> list[float | None]:
    """The averages over sites for `HEADINGS`, in per cent; None where the table has none."""
    runs = comparison.rows.get(f"{column} {trunk}", ())
    parts = [runs, *(of_type(runs, letter) for letter in ANSWER_TYPES.values())]
    return [100 * average(part).mean if part else None for part in parts]


def pairs(comparison: Comparison) -> tuple[list[float], list[float]]:
    """The overall averages by contrast on all rows and by UniCon, in per cent, of the trunks that have both."""
    both = [(figures(comparison, CONTRASTIVE, trunk)[0], figures(comparison, SPLIT, trunk)[0]) for trunk in TRUNKS]
    complete = [(first, second) for first, second in both if first is not None and second is not None]
    return [first for first, _ in complete], [second for _, second in complete]


def beside_tables_2_and_3(comparison: Comparison) -> list[list[str]]:
    """The lines of the table: trunk, training, then for each heading the paper's figure and ours."""
    lines = []
    for trunk in trunks_in(comparison):
        for column in COLUMNS:
            cells = [trunk, column]
            for printed, here in zip(PRINTED[trunk][column], figures(comparison, column, trunk), strict=True):
                cells += [f"{printed:.2f}", "–" if here is None else f"{here:.2f}"]
            lines.append(cells)
    return lines


HEAD = ["trunk", "training", *(f"{heading} ({which})" for heading in HEADINGS for which in ("paper", "here"))]


def tests(comparison: Comparison) -> str:
    """The paired t-test by trunk, and the paper's unpaired one, of its figures and ours."""
    printed = tuple([PRINTED[trunk][column][0] for trunk in TRUNKS] for column in (CONTRASTIVE, SPLIT))
    return (
        f"Contrast on all rows against UniCon, overall, by trunk. In the paper {_tested(*printed)}; the 1.357 that it "
        f"calls paired is the unpaired one. Here {_tested(*pairs(comparison))}. The paper has VQA v2's questions about "
        "photographs, a detector's regions and two clients; here the sites are the run's, and the trunk reads a frozen "
        "backbone's grid, or region files that --backbone names."
    )


def _tested(first: list[float], second: list[float]) -> str:
    paired, unpaired = paired_t(first, second), unpaired_t(first, second)
    if paired is None or unpaired is None:
        return "fewer than two trunks have both, or the differences do not vary"
    difference = fmean(first) - fmean(second)
    return f"{len(first)} trunks, {difference:+.2f} points: paired {_shown(paired)}, unpaired {_shown(unpaired)}"


def _shown(test: TTest) -> str:
    return f"t = {test.t:.3f} ({test.freedom} degrees of freedom, p = {test.p:.4f})"
