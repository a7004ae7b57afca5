"""UniCon's tables beside runs: the t-test by trunk, and what a results file gives of each column."""

import json
from pathlib import Path
from typing import Any

import pytest

from medfedvqa.evaluation.patient_intervals import student_p
from medfedvqa.papers.networks.trunks import TRUNKS
from medfedvqa.research.benchmark.benchmark_table import (
    CONTRASTIVE,
    PRINTED_TRUNKS,
    SUPERVISED,
    TRUNK_COLUMNS,
    TRUNK_SPLIT,
    markdown,
    trunk_figures,
    trunk_pairs,
)
from medfedvqa.research.benchmark.results_file import RESULTS, Result, append, read
from medfedvqa.research.benchmark.statistics import compared, paired_t, unpaired_t

GOLDEN = Path(__file__).parents[1] / "golden" / "formats-1" / "benchmark.jsonl"


def result(system: str, right: str, types: str, baseline: bool = False) -> Result:
    """One site, one patient a row."""
    record: dict[str, Any] = json.loads(GOLDEN.read_text().splitlines()[0])
    site = {"right": right, "patients": list(range(len(right))), "types": types}
    return Result.model_validate(record | {"system": system, "baseline": baseline, "sites": {"lung": site}})


def test_the_paper_s_t_is_the_unpaired_one_and_its_pairs_differ_significantly() -> None:
    """Table 3, overall: 1.357 with 12 degrees of freedom; by trunk 7.05 with 6, far above 2.447."""
    first, second = ([PRINTED_TRUNKS[trunk][column][0] for trunk in TRUNKS] for column in (CONTRASTIVE, TRUNK_SPLIT))
    paired, unpaired = paired_t(first, second), unpaired_t(first, second)
    assert paired and (round(paired.t, 2), paired.freedom) == (7.05, 6) and paired.p < 0.001
    assert unpaired and (round(unpaired.t, 3), unpaired.freedom) == (1.357, 12) and unpaired.p > 0.19


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (6, 2.44691), (12, 2.17881), (60, 2.0003)]
)
def test_p_is_a_twentieth_at_the_printed_quantiles(freedom: int, quantile: float) -> None:
    """Student's 97.5 % quantiles, on both sides of 0; p is 1 at 0."""
    assert student_p(quantile, freedom) == student_p(-quantile, freedom) == pytest.approx(0.05, abs=1e-6)
    assert student_p(0.0, freedom) == pytest.approx(1)


def test_without_pairs_that_vary_there_is_no_test() -> None:
    """One pair has no deviation, and equal differences have none either."""
    assert paired_t([1.0], [0.0]) is None and paired_t([1.0, 2.0], [0.5, 1.5]) is None and unpaired_t([], []) is None
    assert unpaired_t([1.0, 1.0], [2.0, 2.0]) is None


def test_every_printed_figure_agrees_with_the_paper_s_own_overall() -> None:
    """Overall is the mean of types by their questions in VQA v2's validation set; two of UniCon's do not agree."""
    weights = {1: 80541, 2: 28134, 3: 105679}
    off = []
    for trunk, columns in PRINTED_TRUNKS.items():
        for column in (CONTRASTIVE, TRUNK_SPLIT):
            overall = sum(columns[column][place] * weight for place, weight in weights.items()) / sum(weights.values())
            off += [(trunk, column)] if abs(overall - columns[column][0]) > 0.015 else []
    assert off == [("butd", TRUNK_SPLIT), ("mcan-large", TRUNK_SPLIT)]


def test_results_alone_make_the_table_and_its_test(tmp_path: Path) -> None:
    """By hand: butd 3 of 4 against 1 of 4, mfb 2 of 4 against 1 of 4; numbers of butd 1 of 2; no dash is a zero."""
    path, types = tmp_path / RESULTS, "ynno"
    rights = {"centralised contrastive butd": "1101", "UniCon butd": "1000", "centralised butd": "1111"}
    rights |= {"centralised contrastive mfb": "1001", "UniCon mfb": "0001"}
    results = [result(system, right, types) for system, right in rights.items()]
    append(path, [*results, result("majority", "0000", types, baseline=True)])
    comparison = compared(read([path])[0])
    assert trunk_figures(comparison, CONTRASTIVE, "butd") == [75, 100, 50, 100]
    assert trunk_figures(comparison, SUPERVISED, "mfb") == [None] * 4 and trunk_pairs(comparison) == (
        [50, 75],
        [25, 25],
    )
    text = markdown(comparison)
    assert (
        "| butd | centralised contrastive | 45.08 | 75.00 | 75.82 | 100.00 | 29.27 | 50.00 | 25.86 | 100.00 |" in text
    )
    assert "| mfb | centralised | 65.35 | – |" in text
    assert "Here 2 trunks, +37.50 points: paired t = 3.000 (1 degrees of freedom, p = 0.2048)" in text
    assert "paired t = 7.047" in text and "unpaired t = 1.357" in text
    assert "Tables 2 and 3" not in markdown(compared([result("majority", "0000", types, baseline=True)]))
    assert {column for columns in PRINTED_TRUNKS.values() for column in columns} == set(TRUNK_COLUMNS)
