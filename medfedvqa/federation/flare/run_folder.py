"""Names of a job's classes, and of files in its run folder at the server. It is light, since every process uses it."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

EXECUTOR = "medfedvqa.federation.flare.executor.SiteExecutor"
CONTROLLER = "medfedvqa.federation.flare.controller.FederationController"
"""The classes that a job may name: a site's courier, and the server's end."""

RESULTS = "medfedvqa"
"""The folder of a run's results, inside FLARE's folder for the job."""
PROGRESS = "progress.jsonl"
"""The file of the job's events, in the folder of its results."""


def has_events(out: Path) -> bool:
    """Whether a process of the job, whose results are in `out`, wrote any event before."""
    return (out / PROGRESS).exists()


def has_finished(out: Path) -> bool:
    """Whether a process of the job wrote results with the status `finished`."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return bool(json.loads((out / "results.json").read_bytes())["status"] == "finished")
    return False


_LAST_BYTES = 1 << 16
"""Bytes that are read from the end of a log."""
_LAST_WORD = re.compile(r"^(?:Traceback [^\n]*:\n(?:[ \t].*\n|\n)*|[\w.]+\.py: error: )(\S.*)$", re.MULTILINE)
"""The line with which Python, or a command that refuses its arguments, ends a process."""


def last_words(folder: Path) -> Iterator[str]:
    """For each log in a run's folder, the line with which a process last ended by an error, if one did.

    They are shown to the person who started the run here, and are written to no log.
    """
    for log in sorted(folder.rglob("*.log")):
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LAST_BYTES))
            found = _LAST_WORD.findall(file.read().decode(errors="replace"))
        if found:
            yield f"the last error in '{log.relative_to(folder)}' is: {found[-1]}"
