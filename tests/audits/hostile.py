"""Files that are none, or have no end; and a process with little memory that meets them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import audits

MEMORY = 8 << 30
"""Bytes of address space that a process that meets them gets; each of these files has more, or no end."""
PATIENCE = 240.0
"""Seconds; a process that waits for one of these files never ends."""


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 10 << 30)


KINDS: dict[str, Callable[[Path], object]] = {
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "pipe": lambda path: os.mkfifo(path),
    "folder": lambda path: path.mkdir(),
    "sparse": _sparse,
}


def put(path: Path, kind: str) -> None:
    """One of these in the place of a file."""
    path.unlink(missing_ok=True)
    KINDS[kind](path)


def alone(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a process with bounded memory and time."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))\n"
    return subprocess.run(
        [sys.executable, "-c", limit + code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(Path(audits.__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
