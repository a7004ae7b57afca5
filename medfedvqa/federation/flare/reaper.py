"""Ends a run's FLARE processes when the process that started them ends, however it ends, also by SIGKILL.

FLARE's job processes lead sessions of their own, so that no signal reaches them all. The reaper is a small process
that waits for its standard input to close, and then kills FLARE's processes that work in its folders.
"""

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil


class Reaper:
    """A context in which FLARE's processes are started; those that work in `folders` do not survive it."""

    def __init__(self, *folders: Path) -> None:
        self._folders = [str(folder) for folder in folders]
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", __name__, *self._folders]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()
        # The reaper has done this, unless it was killed itself.
        reap(self._folders)
        for process in self._started:
            process.wait()

    def start(
        self, command: list[str], folder: Path, log: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a process in `folder` that writes to `log`, in a session of its own: Ctrl-C is for the caller."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        return process


_IS_FLARE = re.compile(r"nvflare\.private\.|.*sub_start\.sh$").match
_IS_VAULT = re.compile(r"medfedvqa\.vault$").match


def flare_processes(folders: list[str]) -> list[psutil.Process]:
    """FLARE's processes whose command line names one of these folders or a file in it."""
    return [process for process in psutil.process_iter() if _is_in(process, folders, _IS_FLARE)]


def vault_processes(folders: list[str]) -> list[psutil.Process]:
    """The vaults' processes whose command line names one of these folders or a file in it."""
    return [process for process in psutil.process_iter() if _is_in(process, folders, _IS_VAULT)]


def reap(folders: list[str]) -> None:
    """Kill FLARE's processes in these folders, and then the vaults that they started, until there are none."""
    while processes := flare_processes(folders) or vault_processes(folders):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=10)


def _is_in(process: psutil.Process, folders: list[str], kind: Callable[[str], Any]) -> bool:
    with contextlib.suppress(psutil.Error):
        line = process.cmdline()
        return any(map(kind, line)) and any(f"{part}/".startswith(f"{folder}/") for part in line for folder in folders)
    return False


if __name__ == "__main__":
    sys.stdin.buffer.read()
    reap(sys.argv[1:])
