"""The plot of a benchmark has the curves that there are, and is not drawn without one."""

from pathlib import Path

from medfedvqa.benchmark.benchmark_plots import draw_convergence
from medfedvqa.benchmark.outcome import RunOutcome


def outcome(validated: dict[str, list[float]]) -> RunOutcome:
    return RunOutcome({"a": [True]}, validated, {"a": [0]}, 1.0, 1.0, 1.0, 1)


def test_systems_without_a_curve_have_no_line(tmp_path: Path) -> None:
    """Split learning counts batches, and validates at the end."""
    path = draw_convergence(tmp_path, {"curve": [outcome({"a": [0.5, 0.6]})], "none": [outcome({})]})
    assert path is not None and "curve" in path.read_text() and "none<" not in path.read_text()


def test_without_any_curve_there_is_no_plot(tmp_path: Path) -> None:
    """Nor a warning of matplotlib about an empty legend."""
    assert draw_convergence(tmp_path, {"none": [outcome({})]}) is None
    assert not list(tmp_path.iterdir())
