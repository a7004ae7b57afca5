"""`medfedvqa probe` as a user types it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from medfedvqa.cli import app
from medfedvqa.errors import ConfigError

LOCAL = ("--backbone", "medclip@random", "--backbone-file")


@pytest.mark.slow
def test_a_backbone_stands_beside_what_nobody_trained(random_backbone: Path) -> None:
    """The JSON has one line for each description, in order, and edges are worth more than the question."""
    result = CliRunner().invoke(app, ["probe", "--data", "phantom", *LOCAL, str(random_backbone), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    test = {each["name"]: each["test"] for each in found["probes"]}
    assert found["data"] == "phantom" and list(test)[0] == "question alone"
    assert list(test)[-2:] == ["medclip@random, pooled", "medclip@random, places"] and len(test) == 6
    assert test["edges (HOG), 8 x 8 cells"] > test["question alone"] + 0.2


def test_two_local_backbones_are_refused_before_data_are_read(random_backbone: Path) -> None:
    """One file cannot be that of two names."""
    both = [*LOCAL, str(random_backbone), "--backbone", "medclip@other"]
    result = CliRunner().invoke(app, ["probe", "--data", "phantom", *both])
    assert isinstance(result.exception, ConfigError) and "one after the other" in str(result.exception)
