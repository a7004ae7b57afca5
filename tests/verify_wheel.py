"""Installs the wheel with the verifier's dependencies alone, and verifies with it: a program, as it makes environments.

The dependencies come from the package index, by the hashes in `requirements-verify.lock`. What is verified is made by
the environment that runs this program: a federation under differential privacy, and reports of its sites.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from medfedvqa.cli.lazy import TRAINING

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-verify.lock"
RUN = ["run", "prompt_pfl", "--data", "phantom", "--epsilon", "3", "--secagg", "--rounds", "1", "--local-epochs", "1"]
QUICK = ["-O", "local_unit=batches", "-O", "answers=closed", "-O", "local_baseline=false", "--site", "site-001"]
QUICK += ["--site", "site-002", "--site", "site-003"]
SITE = "site-001"
FULL = [sys.executable, "-c", "from medfedvqa.cli import main; main()"]
KEY = "medfedvqa/audit/chest+44a991ec+AdjUvRNc6+T8VaQVca965/8TBdVc4v6a691gPHys9e1E"
"""The key of the example report, as its README shows it."""
MOST_BYTES, MOST_KILOBYTES, MOST_SECONDS = 100_000_000, 80_000, 0.5
"""Of the installed dependencies; of memory and processor time of `audit verify --help`."""
SHOWN, BROKEN, NOT_SHOWN = 0, 1, 2
"""Exit codes."""


def call(*command: str | Path, ends: tuple[int, ...] = (0,)) -> str:
    """Run a command outside of the source folder, and return what it prints. Another exit code is a failure of ours."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"COLUMNS": "200"}
    if command[0] == sys.executable:
        environment["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(
            [str(part) for part in command], cwd=elsewhere, env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode not in ends:
        raise SystemExit(f"{command[1:]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


def environment(folder: Path) -> Path:
    """A new environment with the wheel and the locked dependencies; its folder of programs."""
    call(sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "--no-build-isolation", "-q", "-w", folder)
    call(sys.executable, "-m", "venv", folder / "light")
    programs = folder / "light" / "bin"
    call(programs / "pip", "install", "-q", "--require-hashes", "-r", LOCK)
    call(programs / "pip", "install", "-q", "--no-deps", next(folder.glob("medfedvqa-*.whl")))
    call(programs / "pip", "check")
    return programs


def sizes(folder: Path) -> Iterator[tuple[str, int]]:
    """The distributions of the environment but pip, setuptools and the project, and bytes of each without bytecode."""
    site = next((folder / "light" / "lib").glob("python*/site-packages"))
    for found in importlib.metadata.distributions(path=[str(site)]):
        if found.name not in ("pip", "setuptools", "medfedvqa"):
            files = (Path(str(found.locate_file(one))) for one in found.files or ())
            yield (
                f"{found.name} {found.version}",
                sum(one.stat().st_size for one in files if one.suffix != ".pyc" and one.exists()),
            )


def check_sizes(folder: Path) -> None:
    """Print the dependencies with their sizes; all together have to be below 100 MB."""
    found = sorted(sizes(folder), key=lambda one: -one[1])
    for name, size in [*found, ("all", total := sum(size for _, size in found))]:
        print(f"{name:32} {size / 1e6:6.1f} MB")
    if total >= MOST_BYTES:
        raise SystemExit("the verifier's dependencies are larger than 100 MB")


def check_start(programs: Path) -> None:
    """Print what `audit verify --help` costs, the least of several runs: another program may have the processor."""
    costs = []
    for _ in range(5):
        child = subprocess.Popen([programs / "medfedvqa", "audit", "verify", "--help"], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        costs.append((used.ru_utime + used.ru_stime, used.ru_maxrss))
    seconds, kilobytes = min(one for one, _ in costs), min(most for _, most in costs)
    print(f"audit verify --help: {seconds:.2f} s of processor time, {kilobytes / 1e3:.0f} MB")
    if seconds > MOST_SECONDS or kilobytes > MOST_KILOBYTES:
        raise SystemExit("the verifier takes too much to start")


def main() -> None:
    """Fails unless what a full installation made is verified by the light one, and found broken when it was changed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = environment(folder)
        light = programs / "medfedvqa"
        for module in sorted(TRAINING):
            call(programs / "python", "-c", f"import {module}", ends=(1,))
        check_sizes(folder)
        check_start(programs)
        run, report, own = folder / "run", folder / "report", folder / "run" / "sites" / SITE
        call(*FULL, *RUN, *QUICK, "--out", run)
        call(*FULL, "privacy", "report", "--site", own / "site.yml", "--no-network", "--out", report)
        call(light, "audit", "verify", "--no-network", run)
        call(light, "audit", "show", run)
        call(light, "audit", "export", "--format", "fhir", "--out", folder / "log.ndjson", run)
        call(light, "audit", "proof", own / "audit", "0", "--out", folder / "proof.json")
        key = call(light, "audit", "key", "--site", own / "site.yml").strip()
        call(light, "audit", "check", folder / "proof.json", "--key", key)
        call(programs / "python", "-c", "from audits.ui import AuditServer; AuditServer({}, {}).server_close()")
        call(light, "privacy", "spent", "--site", own / "site.yml")
        call(light, "privacy", "ledger", "--site", own / "site.yml")
        call(light, "privacy", "verify-report", report, "--key", key, "--log", own / "audit", ends=(SHOWN, NOT_SHOWN))
        call(light, "privacy", "verify-report", ROOT / "docs" / "examples" / "report" / "chest", "--key", KEY)
        for golden in sorted((ROOT / "tests" / "golden").glob("formats-*")):
            call(light, "audit", "verify", "--no-network", golden / "log", ends=(SHOWN, NOT_SHOWN))
        told = call(light, "run", "fedavg", "--data", "phantom", ends=(1,))
        if "pip install 'medfedvqa[train]'" not in told:
            raise SystemExit(f"a light installation that is asked to train does not name the extra: {told}")
        log = own / "audit" / "log.jsonl"
        log.write_bytes(log.read_bytes().replace(b'"seq":2,', b'"seq":3,'))
        call(light, "audit", "verify", "--no-network", run, ends=(BROKEN,))
        text = (report / "report.json").read_text(encoding="utf-8")
        (report / "report.json").write_text(
            re.sub(r'("claim.epsilon".*"value": )\d', r"\g<1>9", text), encoding="utf-8"
        )
        call(light, "privacy", "verify-report", report, "--key", key, ends=(BROKEN,))
        print("a log and a report of a run, and the example report, are verified; changed ones are found broken")


if __name__ == "__main__":
    main()
