"""What `confine` leaves a process, with and without Landlock, and what it reports of Python code that wants more."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from accounts import ACCOUNT, PYTHON

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, os, sys
from pathlib import Path
from medfedvqa.vault import confinement, isolation
kit, how = Path(sys.argv[1]), sys.argv[2]
parent, reported = os.getppid(), []
if how == "old kernel":
    confinement._CREATE = 100_000
isolation.isolate()
os.environ["HOME"] = str(kit)
confinement.confine(kit, [kit / "local", kit.parent], [kit / "state"], reported.append, None)
def change(path):
    with path.open("a"):
        pass
ATTEMPTS = {
    "read startup": (kit / "startup" / "client.key").read_bytes,
    "change startup": lambda: change(kit / "startup" / "new"),
    "change local": lambda: change(kit / "local" / "site.yml"),
    "change beside": lambda: change(kit.parent / "new"),
    "environment": lambda: open(f"/proc/{parent}/environ", "rb").read(1),
    "signal": lambda: os.kill(parent, 0),
    "read local": (kit / "local" / "site.yml").read_bytes,
    "read beside": (kit.parent / "rows" / "rows.csv").read_bytes,
    "read the cache": (kit / ".cache" / "weights").read_bytes,
    "change state": lambda: change(kit / "state" / "model"),
    "move state": lambda: (kit / "state" / "model").rename(kit / "state" / "deep" / "model"),
    "null": lambda: change(Path(os.devnull)),
}
def succeeds(attempt):
    try:
        attempt()
    except OSError:
        return False
    return True
json.dump([[name for name, attempt in ATTEMPTS.items() if succeeds(attempt)], reported], sys.stdout)
"""
NEEDED = ["read local", "read beside", "read the cache", "change state", "move state", "null"]
BEYOND = ["read startup", "change startup", "change local", "change beside", "signal"]
"""And the environment of another process, which a name space closes as well."""
REPORTED = ["a file of the courier", "a file outside the site's folders", "another process"]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other accounts can reach; those of `tmp_path` lie in closed ones."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("how", ["landlock", "old kernel"])
def test_a_confined_process_has_what_a_job_needs_and_reports_what_it_tries_beyond(open_folder: Path, how: str) -> None:
    """An account without rights: the site's own folders, and files outside of the kit to read. A kernel without
    Landlock leaves the rest open, and each kind is reported all the same, once."""
    kit = open_folder / "kit"
    names = ("kit/startup/client.key", "kit/local/site.yml", "kit/.cache/weights", "rows/rows.csv")
    for path in (open_folder / name for name in names):
        path.parent.mkdir(parents=True)
        path.write_text("text")
    (kit / "state" / "deep").mkdir(parents=True)
    for path in (open_folder, *open_folder.rglob("*")):
        os.chmod(path, 0o777)
    launch = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', *sys.argv[1:]]).returncode)"
    command: list[Any] = [PYTHON, "-c", launch, PROGRAM, str(kit), how]
    result = subprocess.run(command, capture_output=True, check=True, text=True, timeout=240, **ACCOUNT)
    succeeded, reported = json.loads(result.stdout)
    assert reported == REPORTED
    beyond = [] if how == "landlock" else [*BEYOND]
    assert {*succeeded} == {*NEEDED, *beyond}


LIBRARY = """
import json, sys
from medfedvqa.vault import confinement
reported = []
confinement.confine(None, [], [], reported.append, None)
from monai.networks.nets import DenseNet121
json.dump(reported, sys.stdout)
"""


def test_a_network_of_monai_is_no_attempt() -> None:
    """A library that it imports makes a socket to see whether there is IPv6: no site's log has a finding of it."""
    result = subprocess.run([sys.executable, "-c", LIBRARY], capture_output=True, check=True, text=True, timeout=240)
    assert json.loads(result.stdout) == []


STARTED = """
import sys
from pathlib import Path
from medfedvqa.vault.courier import reach
from medfedvqa.vault.place import VaultPlace
config, root, folder = map(Path, sys.argv[1:])
reach(VaultPlace(config, "chest", root, folder))
"""


def test_a_vault_that_a_courier_starts_imports_nothing_of_the_kit(tmp_path: Path) -> None:
    """FLARE's courier works in the kit, and looks for modules there and in a job's folder, which a server fills."""
    kit, vault, marker = tmp_path / "kit", tmp_path / "vault", tmp_path / "imported"
    job = kit / "job" / "custom"
    for folder in (kit, job):
        folder.mkdir(parents=True)
        (folder / "open_clip.py").write_text(f"open({str(marker)!r}, 'w')")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(kit), str(job)])}
    places = kit / "local" / "site.yml", kit / "startup" / "rootCA.pem", vault
    command = [sys.executable, "-c", STARTED, *map(str, places)]
    subprocess.run(command, cwd=kit, env=environment, check=True, timeout=240)
    (process,) = (p for p in psutil.process_iter(["cmdline"]) if str(vault) in (p.info["cmdline"] or ())[-2:])
    try:
        assert not marker.exists()
    finally:
        process.kill()
