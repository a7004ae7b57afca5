"""What tests of backups share: a site with a log, a ledger and states, and its backup by the command."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from doctored import SITE, TASK, charge, edit_site, log_of
from typer.testing import CliRunner, Result

import medfedvqa as package
from audits import Event
from medfedvqa.cli import app
from medfedvqa.federation.site_config import load_site_config
from privacy import Ledger, Limits, PlannedTask

PASSPHRASE = "correct horse battery"
LIMITS = Limits(None, 1e-3)


def medfedvqa(*words: object) -> Result:
    """Runs the command in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def refusal(*words: object) -> str:
    """The sentence with which the command fails."""
    result = medfedvqa(*words)
    assert result.exit_code and result.exception is not None, result.output
    return str(result.exception)


def site_file(kit: Path) -> Path:
    return kit / "local" / "site.yml"


def begun(kit: Path, job: str, tasks: int = 1) -> None:
    """Charges tasks of a job in the ledger, and opens the job in the log."""
    with closing(Ledger(kit / "ledger", SITE)) as ledger, closing(log_of(kit)) as log:
        log.append(Event.OPEN, job=job, method="prompt_pfl")
        ledger.reserve(job, "prompt_pfl", ["a"], [PlannedTask("train", n, (TASK,)) for n in range(1, 4)], LIMITS)
        for number in range(1, tasks + 1):
            ledger.begin(job, "train", number, LIMITS)


def lived_in(kit: Path) -> Path:
    """A kit with a job that is over, one that is open, their states, and keys."""
    charge(kit)
    (kit / "state").mkdir()
    with closing(log_of(kit)) as log:
        for event in (Event.OPEN, Event.CLOSE):
            log.append(event, job="job-1", method="prompt_pfl")
    begun(kit, "job-2")
    (kit / "state" / "job-1.pt").write_bytes(b"the model that a finished run left")
    (kit / "state" / "job-2.pt").write_bytes(b"the state of a job that runs")
    medfedvqa("identity", "--site", site_file(kit))
    edit_site(kit, require_dp=True, max_epsilon=1000.0, delta=1e-3)
    return kit


def passphrase_in(folder: Path, text: str = PASSPHRASE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "passphrase"
    path.write_text(f"{text}\n")
    return path


def backed_up(kit: Path, folder: Path) -> tuple[Path, tuple[Any, ...]]:
    """A backup under a key, and the options that open it."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ("--key", folder / "backup.key")
    result = medfedvqa("backup", folder, "--site", site_file(kit), *options, "--json")
    assert result.exit_code == 0, result.exception
    return Path(json.loads(result.stdout)["file"]), options


def restored(backup: Path, kit: Path, *options: object) -> dict[str, Any]:
    """What the command did, as its JSON says."""
    result = medfedvqa("restore", backup, "--to", kit, *options, "--json")
    assert result.exit_code == 0, result.exception
    return dict(json.loads(result.stdout))


def contents(folder: Path) -> dict[str, str]:
    """The digests of all files that are not hidden, by path; of the ledger its head, which any copy shares."""
    files = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }
    files = {name: digest for name, digest in files.items() if not name.startswith("ledger/ledger.sqlite")}
    if (folder / "ledger" / "ledger.sqlite").exists():
        with closing(Ledger(folder / "ledger", SITE)) as ledger:
            files["ledger"] = ledger.head()[1]
    return files


def spent(kit: Path) -> float:
    """Epsilon that is charged, of a patient who was in every job."""
    config = load_site_config(site_file(kit), SITE)
    with closing(Ledger(config.ledger, SITE)) as ledger:
        return ledger.together(1e-3, reserved=False).epsilon


def lose(kit: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(kit / name)


@contextmanager
def killed(work: str, origin: Path, place: Path, backup: Path, every: int = 1) -> Iterator[Iterator[None]]:
    """Yields an iterator that stops after each kill by `kill_steps.py`, until the work ends by itself."""
    script = Path(__file__).with_name("kill_steps.py")
    environment = os.environ | {"PYTHONPATH": str(Path(package.__file__).parents[1])}
    command = [sys.executable, str(script), work, *map(str, (origin, place, backup, every))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdin and process.stdout

        def steps() -> Iterator[None]:
            while (line := process.stdout.readline()) == "killed\n":  # type: ignore[union-attr]
                yield
                process.stdin.write("\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
            assert line == "ended 0\n"

        try:
            yield steps()
        finally:
            process.kill()
