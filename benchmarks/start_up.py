"""What it costs to start: processor seconds of every command's `--help`, and what each import takes.

    python benchmarks/start_up.py [--most 0.5] [--repetitions 3] [--only imports]

With --most the exit code is 1 if a command takes more. A machine that is busy with other work shows more seconds.
"""

import argparse
import re
import resource
import subprocess
import sys

from medfedvqa.cli import COMMANDS, GROUPS

CODE = """
import sys
from medfedvqa.cli import main
sys.argv[0] = "medfedvqa"
try:
    main()
finally:
    print(len(sys.modules), file=sys.stderr)
"""
IMPORTS = ("medfedvqa", "audits", "privacy.report", "medfedvqa.cli", "medfedvqa.library.run_job")
"""Light ones, and last the one that brings torch: what the first call of `medfedvqa.run` waits for."""
LINE = re.compile(r"import time:\s*(\d+) \|\s*(\d+) \|( *)(\S+)")
SLOWEST = 5


def names() -> list[tuple[str, ...]]:
    """Every command, as its words."""
    grouped = [(group, name) for group, (commands, _) in GROUPS.items() for name in commands]
    return [(), *((name,) for name in COMMANDS), *((group,) for group in GROUPS), *grouped]


def measured(words: tuple[str, ...], repetitions: int) -> tuple[float, int]:
    """The fewest processor seconds of a new process, and the modules that it imported."""
    seconds, modules = [], 0
    for _ in range(repetitions):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", CODE, *words, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        modules = int(done.stderr.splitlines()[-1])
    return min(seconds), modules


def import_times(module: str, repetitions: int) -> list[tuple[int, int, str]]:
    """Own and cumulative microseconds of each module that an import brings, of the fastest new process."""
    runs = []
    for _ in range(repetitions):
        command = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        runs.append([(int(own), int(total), name) for own, total, _, name in LINE.findall(done.stderr)])
    return min(runs, key=lambda lines: sum(own for own, _, _ in lines))


def print_imports(repetitions: int) -> None:
    """A line for each import: milliseconds beyond Python's own start, modules, and the slowest of them."""
    started = {name for _, _, name in import_times("sys", repetitions)}
    print(f"{'ms':>7}  {'modules':>7}  import (the slowest of its modules, in milliseconds of their own)")
    for module in IMPORTS:
        lines = [line for line in import_times(module, repetitions) if line[2] not in started]
        slowest = sorted(lines, reverse=True)[:SLOWEST]
        listed = ", ".join(f"{name} {own / 1e3:.1f}" for own, _, name in slowest)
        print(f"{sum(own for own, _, _ in lines) / 1e3:7.1f}  {len(lines):7d}  {module} ({listed})", flush=True)


def main() -> None:
    """Prints a line for each import and each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--most", type=float)
    parser.add_argument("--only", choices=["imports", "commands"])
    arguments = parser.parse_args()
    if arguments.only != "commands":
        print_imports(arguments.repetitions)
    slowest = 0.0
    if arguments.only != "imports":
        print(f"{'seconds':>7}  {'modules':>7}  command")
        for words in names():
            seconds, modules = measured(words, arguments.repetitions)
            slowest = max(slowest, seconds)
            print(f"{seconds:7.2f}  {modules:7d}  {' '.join(('medfedvqa', *words, '--help'))}", flush=True)
    sys.exit(arguments.most is not None and slowest > arguments.most)


if __name__ == "__main__":
    main()
