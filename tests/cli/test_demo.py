"""The demo from its first line to its last, through FLARE's simulator."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from medfedvqa.cli import demo


@pytest.mark.slow
def test_the_demo_compares_hospitals_alone_with_hospitals_together(
    medfedvqa: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plots: None
) -> None:
    """On drawn data, with six hospitals and few steps: the sentences have the figures of `results.json`, the picture is
    there, and a hospital's patients are nobody else's."""
    monkeypatch.delenv("MEDFEDVQA_DATA", raising=False)
    monkeypatch.setattr(demo, "DRAWN_HOSPITALS", 2)
    monkeypatch.setattr(demo, "DEMO_OPTIONS", {**demo.DEMO_OPTIONS, "rounds": 8, "hidden": 16, "finish_epochs": 1})
    done = medfedvqa("demo", "--out", str(tmp_path / "run"))
    assert done.returncode == 0 and "this run uses the phantom set" in done.stderr
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert len(results["sites"]) == 6 and {*results["sites"]} >= {"chest-1of2", "chest-2of2"}
    assert len(results["rounds"]) == 8 and (tmp_path / "run" / "plots" / "together.png").exists()
    shares = (
        results["average"]["baselines"]["question_prior"],
        results["average"]["baselines"]["alone"],
        results["average"],
    )
    for start, share in zip(("What is free:", "What training alone gives:", "What sharing adds:"), shares, strict=True):
        (line,) = (line for line in done.stdout.splitlines() if line.startswith(start))
        assert f"right in {100 * share['accuracy']:.1f} %" in line
    assert "What to do next:" in done.stdout
