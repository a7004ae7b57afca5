"""The command in this process: what it prints and how it ends, without the seconds that a new process takes."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from medfedvqa.cli import main


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def medfedvqa(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `medfedvqa` with these arguments."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["medfedvqa", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setenv("NO_COLOR", "1")
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return run
