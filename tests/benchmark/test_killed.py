"""A benchmark that is killed leaves no process behind."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

LONG = ("--data", "phantom", "--rounds", "10000", "--seeds", "2", "--workers", "2")
STARTED, ENDED = 240, 60
"""Seconds within which each worker has begun a run, and within which all have ended."""


@pytest.mark.slow
def test_the_workers_of_a_killed_benchmark_end_in_the_middle_of_their_runs(tmp_path: Path) -> None:
    """The command, with two workers and runs of ten thousand rounds."""
    command = [Path(sys.executable).with_name("medfedvqa"), "benchmark", "--methods", "FedAvg classifier", *LONG]
    parent = subprocess.Popen([*command, "--out", tmp_path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + STARTED
        while len(list(tmp_path.glob("runs/*"))) < 2:
            assert parent.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        children = psutil.Process(parent.pid).children(recursive=True)
        assert len(children) >= 2
    finally:
        parent.kill()
        parent.wait()
    left = psutil.wait_procs(children, ENDED)[1]
    for process in left:
        process.kill()
    assert not left
