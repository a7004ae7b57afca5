"""Names in a job's run folder at the server. This module is light: the server's own process, without torch, uses it."""

import contextlib
import json
from pathlib import Path

RESULTS = "medfedvqa"
"""The folder of a run's results, inside FLARE's folder for the job."""
PROGRESS = "progress.jsonl"
"""The file of the job's events, in the folder of its results."""


def has_events(out: Path) -> bool:
    """Whether a process of the job, whose results are in `out`, wrote any event before."""
    return (out / PROGRESS).exists()


def has_finished(out: Path) -> bool:
    """Whether a process of the job wrote its results before it died."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return bool(json.loads((out / "results.json").read_bytes())["status"] == "finished")
    return False
