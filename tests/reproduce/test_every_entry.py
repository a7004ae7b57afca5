"""Every table and figure of the papers that has a command starts as it is typed, and ends with its page or pictures."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from medfedvqa.cli import app
from medfedvqa.research.reproduce.catalogue import PAPERS, tier_of
from medfedvqa.research.reproduce.entries import Paper, PaperEntry, PaperTable, Program, Scale, Trunks

ENTRIES = [
    pytest.param(paper, entry, id=f"{paper.name}-{entry.name}", marks=getattr(pytest.mark, tier))
    for paper in PAPERS
    for entry in paper.entries
    if (tier := tier_of(paper, entry)) and not isinstance(entry.protocol, Program)
]
"""What `medfedvqa reproduce list` says of each entry. Programs are started in `tests/benchmark/test_programs.py`."""
SMALL = "--data phantom --seeds 1 --rounds 1 --local-epochs 1 -O batch_rows=64"
"""Drawn pictures stand in for data that has to be had."""
ONE_BATCH = "-O local_unit=batches"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the frozen backbone makes of the drawn pictures, once for all entries."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(("paper", "entry"), ENTRIES)
def test_an_entry_starts_and_ends_with_its_page(
    paper: Paper, entry: PaperEntry, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row of a table at the smallest budget, on the phantom set."""
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", paper.name, entry.name, *SMALL.split(), "--cache", str(cache), "--out", "out"]
    words += ONE_BATCH.split() if paper.name != "unicon" else []
    words += ["--rows", "1"] * isinstance(entry.protocol, PaperTable | Trunks | Scale)
    words += ["-O", "trunk_width=16"] * isinstance(entry.protocol, Trunks)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (done.exception, done.output[-2000:])
    assert [*(tmp_path / "out").rglob("reproduced.md"), *(tmp_path / "out").rglob("*.png"), *tmp_path.rglob("*.svg")]
