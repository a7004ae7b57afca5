"""Where a process of a test stops."""

import os
import signal
from dataclasses import dataclass
from typing import ClassVar


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
