"""A benchmark meets bad input: what it cannot use is refused or repeated, and what it has is kept."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from medfedvqa.data import Split, load_site
from medfedvqa.errors import ConfigError, DataError
from medfedvqa.research.benchmark.benchmark_table import markdown
from medfedvqa.research.benchmark.grid import OUTCOME, Grid, _is_done, run
from medfedvqa.research.benchmark.results_file import RESULTS, Result, RunOutcome, read
from medfedvqa.research.benchmark.single_run import centralised
from medfedvqa.research.benchmark.statistics import compared
from medfedvqa.research.benchmark.systems import System

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "formats-1" / "benchmark.jsonl"
DEADLINE = 300.0
"""Seconds that a command has."""


def test_rows_of_all_sites_without_a_listed_answer_are_refused(tmp_path: Path) -> None:
    """Centralised training goes past the sites, and is held to the same rule: it would train on nothing."""
    system = System("CT", "local", {"tuning": "classifier", "answers": ("left lobe", "right lobe")}, centralised=True)
    grid = Grid("phantom", None, tmp_path, (system,), 1, {"rounds": 1}, ("site-001",))
    data = {"site-001": load_site("phantom", None, "site-001", Split())}
    with pytest.raises(DataError, match="list the classes or answers"):
        centralised(grid.job(system, 0), tmp_path, data)


def test_a_site_with_three_test_rows_of_one_patient_has_no_interval_of_a_gain() -> None:
    """The table says so by what it leaves out, and shows an interval of the accuracy that excludes nothing."""
    line = json.loads(GOLDEN.read_text().splitlines()[0]) | {"alone": "alone"}
    few = {"lung": {"right": "110", "patients": [0, 0, 0]}}
    both = [line | {"sites": few}, line | {"system": "alone", "sites": {"lung": few["lung"] | {"right": "100"}}}]
    text = markdown(compared([Result.model_validate_json(json.dumps(each)) for each in both]))
    row = next(text_line for text_line in text.splitlines() if text_line.startswith("| FedAvg adapter |"))
    assert "| 66.7 ± 0.0 [0, 100] |" in row and "| +33.3 |" in row


def test_a_damaged_run_is_repeated_and_one_of_a_newer_version_is_named_and_kept(tmp_path: Path) -> None:
    """A file that ends early or is no run counts as none. A field that this version does not know stops all runs."""
    system = System("bag of words", "bag_of_words")
    grid = Grid("phantom", None, tmp_path, (system,), 1, {"rounds": 1}, ("site-001",))
    outcome = RunOutcome({"site-001": [True]}, {}, {"site-001": [0]}, 1.0, 0.0, 1.0, 1)
    record = {"job": grid.job(system, 0).to_dict(), "sites": ["site-001"], "outcome": vars(outcome)}
    file = grid.folder(system, 0) / OUTCOME
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(record))
    assert _is_done(grid, system, 0)
    for damaged in (json.dumps(record)[:-1], "", "[]", '{"outcome": null}'):
        file.write_text(damaged)
        assert not _is_done(grid, system, 0)
    newer = json.dumps(record | {"outcome": vars(outcome) | {"explained": {}}})
    file.write_text(newer)
    with pytest.raises(ConfigError, match="a newer version ran 'bag of words' in this folder"):
        list(run(grid, 1))
    assert file.read_text() == newer


@pytest.mark.slow
def test_a_killed_benchmark_resumes_and_no_run_is_lost_or_mixed(tmp_path: Path) -> None:
    """The command is killed, without a chance to tidy up, when its first run has ended. The same command then ends:
    the first run stands as it was, the table is complete, and each run has one line."""
    arguments = ["--data", "phantom", "--seeds", "1", "--rounds", "1", "-O", "local_unit=batches"]
    methods = "bag of words,frozen features"
    program = [sys.executable, "-c", "from medfedvqa.cli import main; main()", "benchmark", "--methods", methods]
    command = [*program, *arguments, "--local-epochs", "1", "--out", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    first = tmp_path / "runs" / "bag-of-words-0" / OUTCOME
    with (tmp_path / "output").open("w") as output:
        killed = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        try:
            until = time.monotonic() + DEADLINE
            while not first.exists():
                assert killed.poll() is None and time.monotonic() < until, (tmp_path / "output").read_text()
                time.sleep(0.05)
        finally:
            os.killpg(killed.pid, signal.SIGKILL)
            killed.wait(DEADLINE)
    stamp = first.stat().st_mtime_ns
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=DEADLINE)
    assert first.stat().st_mtime_ns == stamp
    results, remarks = read([tmp_path / RESULTS])
    assert not remarks
    assert {each.system for each in results} == {"majority", "question-only prior", *methods.split(",")}
    assert len((tmp_path / RESULTS).read_text().splitlines()) == 4
    assert all(f"| {system} |" in (tmp_path / "benchmark.md").read_text() for system in methods.split(","))
