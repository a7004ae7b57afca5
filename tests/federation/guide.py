"""A guide whose shell blocks are run as they stand."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
_MARK = "@@@ block "


@dataclass(frozen=True)
class Block:
    """One shell block, and the heading that it stands under."""

    heading: str
    text: str


def blocks(page: str) -> list[Block]:
    """The blocks marked `sh`, in order."""
    headings = [(match.start(), match.group(1)) for match in _HEADING.finditer(page)]
    return [
        Block(next(heading for start, heading in reversed(headings) if start < match.start()), match.group(1))
        for match in _BLOCK.finditer(page)
    ]


def run(page: str, folder: Path, environment: Mapping[str, str], seconds: float) -> list[str]:
    """Run all blocks of a page in one shell, in `folder`; what each printed.

    The shell ends at the first command that fails. Raises `AssertionError` with the last output in that case.
    """
    script = folder.with_suffix(".sh")
    parts = [f"echo {shlex.quote(_MARK)}\n{block.text}" for block in blocks(page)]
    script.write_text("set -euo pipefail\n" + "".join(parts))
    # What the kits' scripts leave behind keeps its output open: a file does not wait for it.
    with folder.with_suffix(".out").open("w+b") as output:
        process = subprocess.Popen(
            ["bash", str(script)], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        output.seek(0)
        printed = output.read().decode().split(f"{_MARK}\n")[1:]
    assert process.returncode == 0, f"block {len(printed)} failed:\n{printed[-1]}"
    return printed


def environment(home: Path, **others: str) -> dict[str, str]:
    """As a user has it whose Python is the one that runs the tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "HOME": str(home), "PATH": path, "COLUMNS": "120", **others}


def transcript(page: str, printed: list[str], hidden: Mapping[str, str]) -> str:
    """The page's blocks with what they printed; `hidden` texts are replaced."""
    lines, heading = [], ""
    for block, output in zip(blocks(page), printed, strict=True):
        if block.heading != heading:
            heading = block.heading
            lines += [f"## {heading}", ""]
        for text, other in hidden.items():
            output = output.replace(text, other)
        output = "\n".join(line.rstrip() for line in output.splitlines()).strip("\n")
        lines += ["```sh", block.text.rstrip("\n"), "```", *(["```text", output, "```"] if output else []), ""]
    return "\n".join(lines).rstrip() + "\n"
