"""What it costs to start: processor seconds and imported modules of every command's `--help`.

    python benchmarks/start_up.py [--most 0.5] [--repetitions 3]

With --most the exit code is 1 if a command takes more. A machine that is busy with other work shows more seconds.
"""

import argparse
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


def main() -> None:
    """Prints a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--most", type=float)
    arguments = parser.parse_args()
    slowest = 0.0
    print(f"{'seconds':>7}  {'modules':>7}  command")
    for words in names():
        seconds, modules = measured(words, arguments.repetitions)
        slowest = max(slowest, seconds)
        print(f"{seconds:7.2f}  {modules:7d}  {' '.join(('medfedvqa', *words, '--help'))}", flush=True)
    sys.exit(arguments.most is not None and slowest > arguments.most)


if __name__ == "__main__":
    main()
