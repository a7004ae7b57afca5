"""Where the command runs: folders, homes, terminals and disks as people have them."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ODD = "Läufe von O'Brien (neu) #1"
"""A name that a shell would split, and that never ends its quote."""
FULL = "Error: no space is left on the disk: free some, or choose another place"
RUN = ("run", "prompt_pfl", "--data", "phantom", "--site", "chest", "--site", "head", "--rounds", "1")
DIES = """\
import os, sys, traceback
if any("simulator_worker" in word for word in sys.orig_argv):
    try:
        raise RuntimeError("the worker has no legs")
    except RuntimeError:
        traceback.print_exc()
        os._exit(1)
"""


def command(*words: str, folder: Path, python: Path | None = None, most: int | None = None, **changes: str) -> str:
    """What the command prints, beside its exit code. `most`: the largest file that it may write, in bytes."""

    def limit() -> None:
        if most is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    ended = subprocess.run(
        [python or sys.executable, "-c", "from medfedvqa.cli import main; main()", *words],
        cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1", **changes}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=800, check=False, preexec_fn=limit,
    )  # fmt: skip
    return f"{ended.returncode}\n{ended.stdout.decode(errors='replace')}"


@pytest.mark.parametrize("engine", ["local", "simulator", "provisioned"])
def test_folders_and_an_environment_whose_names_a_shell_would_split_end_no_run(tmp_path: Path, engine: str) -> None:
    """FLARE starts its processes by a string that it splits. The run's folder lies behind a link."""
    place = tmp_path / ODD
    (place / ODD).mkdir(parents=True)
    (place / "link").symlink_to(place / ODD)
    (place / "env").symlink_to(sys.prefix)
    python = place / "env" / Path(sys.executable).relative_to(sys.prefix)
    printed = command(*RUN, "--engine", engine, "--out", "link/the run", folder=place, python=python)
    assert printed.startswith("0\n"), printed
    assert (place / ODD / "the run" / "results.json").is_file()


def test_the_error_of_a_run_ends_with_the_last_line_of_the_worker_that_died(tmp_path: Path) -> None:
    """FLARE says only that its process died."""
    (tmp_path / "sitecustomize.py").write_text(DIES)
    search = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    printed = command(*RUN, "--engine", "simulator", "--out", "out", folder=tmp_path, PYTHONPATH=search)
    assert printed.startswith("1\n")
    assert "the last error in 'simulator.log' is: RuntimeError: the worker has no legs" in printed.splitlines()[-1]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_that_lacks_characters_shows_the_results_of_a_run(tmp_path: Path, encoding: str) -> None:
    """An error here would come after the training."""
    changes = {"PYTHONIOENCODING": encoding, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    printed = command(*RUN, "--out", ODD, folder=tmp_path, **changes)
    assert printed.startswith("0\n"), printed
    assert "average" in printed
    assert (tmp_path / ODD / "results.json").is_file()


@pytest.mark.parametrize("most", [2_000, 20_000, 200_000], ids="{} bytes".format)
def test_a_disk_that_is_full_is_said_in_one_sentence_wherever_it_is_noticed(tmp_path: Path, most: int) -> None:
    """The limit of a file's size stands for the disk: the same call fails, for the job's files, the log, the state."""
    printed = command(*RUN, "--out", "out", folder=tmp_path, most=most)
    assert printed.startswith("1\n")
    assert printed.splitlines()[-1] == FULL
    assert "Traceback" not in printed


def test_a_site_whose_disk_is_full_is_named_with_the_reason_by_the_simulators_run(tmp_path: Path) -> None:
    printed = command(*RUN, "--engine", "simulator", "--out", "out", folder=tmp_path, most=30_000)
    assert printed.startswith("1\n")
    assert "stopped the job: the site's disk is full" in printed


def test_a_home_that_cannot_be_written_and_a_strict_umask_change_nothing(tmp_path: Path) -> None:
    """No file of a run is for other accounts under that umask."""
    nowhere = {"HOME": "/proc/1/nowhere", "XDG_CACHE_HOME": "/proc/1/nowhere", "MPLCONFIGDIR": ""}
    before = os.umask(0o077)
    try:
        printed = command(*RUN, "--out", "out", folder=tmp_path, **nowhere)
    finally:
        os.umask(before)
    assert printed.startswith("0\n"), printed
    assert not [path for path in (tmp_path / "out").rglob("*") if path.stat().st_mode & 0o077]
