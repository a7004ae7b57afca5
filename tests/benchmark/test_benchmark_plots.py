"""The plot of a benchmark has the curves that there are, and is not drawn without one."""

from pathlib import Path

import pytest

from medfedvqa.research.benchmark.benchmark_table import draw_convergence
from medfedvqa.research.benchmark.results_file import RunOutcome


def outcome(validated: dict[str, list[float]]) -> RunOutcome:
    return RunOutcome({"a": [True]}, validated, {"a": [0]}, 1.0, 1.0, 1.0, 1)


def test_systems_without_a_curve_have_no_line(tmp_path: Path) -> None:
    """Split learning counts batches, and validates at the end."""
    path = draw_convergence(tmp_path, {"curve": [outcome({"a": [0.5, 0.6]})], "none": [outcome({})]})
    assert path is not None and "curve" in path.read_text() and "none<" not in path.read_text()


@pytest.mark.parametrize("count", [9, pytest.param(50, marks=pytest.mark.slow)])
def test_each_of_many_systems_has_a_panel_that_is_not_squeezed(tmp_path: Path, count: int) -> None:
    """A legend of fifty lines left the axes no room, of which matplotlib warns."""
    curves = {f"system {number}": [outcome({"a": [0.5, 0.6]}), outcome({"a": [0.4, 0.7]})] for number in range(count)}
    path = draw_convergence(tmp_path, curves)
    assert path is not None
    drawn = path.read_text()
    assert all(f"<!-- system {number} -->" in drawn for number in range(count)) and f'id="axes_{count}"' in drawn


@pytest.mark.parametrize("more", [0, 9])
def test_systems_with_other_numbers_of_rounds_are_drawn_too(tmp_path: Path, more: int) -> None:
    """In one panel and in many: a system with more rounds does not take the place of the others."""
    curves = {"short": [outcome({"a": [0.5, 0.6]})], "long": [outcome({"a": [0.5] * 90})]}
    curves |= {f"system {number}": [outcome({"a": [0.5, 0.6]})] for number in range(more)}
    path = draw_convergence(tmp_path, curves)
    assert path is not None and all(f"<!-- {label} -->" in path.read_text() for label in curves)


@pytest.mark.parametrize(("other", "drawn"), [([0.5, 0.6], False), ([0.5], True)])
def test_a_single_round_is_a_line_only_if_no_system_has_more(tmp_path: Path, other: list[float], drawn: bool) -> None:
    """One-exchange ridge validates once: beside others its panel would be empty."""
    path = draw_convergence(tmp_path, {"once": [outcome({"a": [0.5]})], "other": [outcome({"a": other})]})
    assert path is not None and ("<!-- once -->" in path.read_text()) is drawn


def test_without_any_curve_there_is_no_plot(tmp_path: Path) -> None:
    """Nor a warning of matplotlib about an empty legend."""
    assert draw_convergence(tmp_path, {"none": [outcome({})]}) is None
    ended = [outcome({"a": [0.5]}), outcome({"a": [0.5, 0.6]})]
    assert draw_convergence(tmp_path, {"seeds that ended after other rounds": ended}) is None
    assert not list(tmp_path.iterdir())
