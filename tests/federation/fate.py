"""Where a process of a test stops."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from medfedvqa.federation.job import JobSpec

PROGRAM = """
import json, os, signal, sys
from pathlib import Path
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import plan, resume, run
out, fatal, seen = Path(sys.argv[1]), int(sys.argv[2]), 0
def watch(event):
    global seen
    seen += 1
    if seen == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
if out.exists():
    resume(out, watch)
else:
    job = JobSpec.from_dict(json.loads(sys.argv[3]))
    run(plan(job, None, out, tuple(sys.argv[5].split(",")), 1, {job.backbone: Path(sys.argv[4])}), "local", watch)
"""


@dataclass
class Fate:
    """Where in its job one process stops: in a task of a round, at a moment or a number of relayed messages."""

    task: str = ""
    moment: str | int = ""
    """`working`, `saved` (before the answer), `answered`, or before which message, from 0, both ways counted."""
    signal: int = signal.SIGKILL
    now: str = ""
    messages: int = 0

    here: ClassVar["Fate"]
    """This process's own."""

    def begin(self, task: str, round: int) -> None:
        """A task; its messages are counted anew."""
        self.now, self.messages = f"{task} {round}", 0

    def message(self) -> None:
        """The process is about to send or to receive one."""
        self.meet(self.messages)
        self.messages += 1

    def meet(self, moment: str | int) -> None:
        """Stops the process here, if this is the moment; once."""
        if (self.task, self.moment) == (self.now, moment):
            self.task = ""
            os.kill(os.getpid(), self.signal)


Fate.here = Fate()


def killed(
    out: Path, event: int, job: JobSpec, backbone: Path, sites: Collection[str] = ("chest", "head"), first: str = ""
) -> bool:
    """Run, or continue, a job in a process that kills itself at its n-th event of progress; whether it died. `first`:
    code that runs before."""
    words = (out, event, json.dumps(job.to_dict()), backbone, ",".join(sites))
    command = [sys.executable, "-c", first + PROGRAM, *map(str, words)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode in (0, -signal.SIGKILL), process.stderr
    return process.returncode != 0
