"""The demo from its first line to its last, through FLARE's simulator."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from medfedvqa.cli import demo


@pytest.mark.slow
def test_the_demo_ends_when_its_curve_is_flat_and_says_what_its_table_shows(
    medfedvqa: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On drawn data, at a rate at which nothing is learned: no round is better than the first, so that training ends
    long before its last round. The sentences have the figures of `results.json`."""
    monkeypatch.delenv("MEDFEDVQA_DATA", raising=False)
    monkeypatch.setattr(demo, "PATIENCE", 2)
    small = {"rounds": 500, "local_epochs": 1, "local_unit": "batches", "blocks": 1, "hidden": 8, "keep": "best"}
    monkeypatch.setattr(demo, "DEMO_OPTIONS", {**small, "learning_rate": 1e-9})
    done = medfedvqa("demo", "--out", str(tmp_path / "run"))
    assert done.returncode == 0 and "this run uses the phantom set" in done.stderr
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    rounds, curve = results["rounds"], [line for line in done.stderr.splitlines() if "of validation rows right" in line]
    assert 3 <= len(rounds) < 500 and len(curve) == len(rounds)
    assert f"Training ended after {len(rounds)} of at most 500 rounds; round 1 was best" in done.stdout
    shares = (
        results["average"]["baselines"]["question_prior"],
        results["average"]["baselines"]["alone"],
        results["average"],
    )
    for start, share in zip(("What is free:", "What training alone gives:", "What sharing adds:"), shares, strict=True):
        (line,) = (line for line in done.stdout.splitlines() if line.startswith(start))
        assert f"right in {100 * share['accuracy']:.1f} %" in line
    assert "What to do next:" in done.stdout
