"""Progress of a job through a file: the server process writes it, whoever started the job follows it."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from medfedvqa.federation.flare.run_folder import PROGRESS
from medfedvqa.federation.hub import TaskAnswer


def write_event(out: Path, event: TaskAnswer) -> None:
    """Append one event to the progress file in `out`."""
    with (out / PROGRESS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(event)) + "\n")


class ProgressReader:
    """Reads the events that were written since the last call."""

    def __init__(self) -> None:
        self._position = 0

    def events(self, out: Path) -> Iterator[TaskAnswer]:
        """New events of the run in `out`, which may move between calls; none while there is no file."""
        path = out / PROGRESS
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._position)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if line.endswith(b"\n"):
                self._position += len(line)
                yield TaskAnswer(**json.loads(line))
