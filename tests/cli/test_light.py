"""What starts and works where torch, NVIDIA FLARE and all that training needs are not installed."""

import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from audits import VerdictState
from medfedvqa.cli import COMMANDS, GROUPS
from medfedvqa.cli.lazy import TRAINING, CommandSource
from privacy import accounting, analysis
from privacy.report import read_report, verify

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs" / "examples" / "report" / "chest"
SOURCES = {(name,): source for name, source in COMMANDS.items()} | {
    (group, name): source for group, (commands, _) in GROUPS.items() for name, source in commands.items()
}
LIGHT = [("audit", name) for name in ("verify", "show", "proof", "check", "receipt", "key", "export", "ui")] + [
    ("privacy", name) for name in ("verify-report", "verify-joined", "registry-entry", "spent", "ledger", "settings")
]
HEAVY = sorted(TRAINING)
WITHOUT = f"""
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)

sys.meta_path.insert(0, Refusing())
import importlib.util
importlib.util.find_spec = lambda name, find=importlib.util.find_spec: (
    None if name.partition(".")[0] in {HEAVY} else find(name)
)
from medfedvqa.cli import main
sys.argv[0] = "medfedvqa"
main()
"""
"""Runs the command as if nothing of the extra `train` were installed."""


def without(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that finds none of the packages for training."""
    command = [sys.executable, "-c", WITHOUT, *arguments]
    shown = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=shown, check=False)


@pytest.mark.parametrize("names", SOURCES, ids=" ".join)
def test_the_list_of_commands_says_what_each_command_says(names: tuple[str, ...]) -> None:
    """The sentence, which is read without importing the command's module, is the first of its docstring."""
    source: CommandSource = SOURCES[names]
    function = getattr(import_module(f"medfedvqa.cli.{source.module}"), source.function)
    first = re.split(r"\n\s*\n", inspect.getdoc(function) or "")[0]
    assert " ".join(first.split()) == source.summary


@pytest.mark.parametrize("names", LIGHT, ids=" ".join)
def test_a_verifying_command_starts_without_the_packages_for_training(names: tuple[str, ...]) -> None:
    """Its module and all that it imports need only the verifier's dependencies."""
    done = without(*names, "--help")
    assert done.returncode == 0 and "Usage" in done.stdout, done.stderr


def test_all_commands_are_listed_without_the_packages_for_training() -> None:
    """`medfedvqa --help` names every command, also those that could not run."""
    done = without("--help")
    assert done.returncode == 0 and all(name in done.stdout for name in [*COMMANDS, *GROUPS])


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "prompt_pfl", "--data", "phantom"],
        ["demo"],
        ["privacy", "plan", "fedavg"],
        ["doctor", "."],
        ["audit", "rerun", "."],
    ],
)
def test_training_without_its_packages_is_one_sentence_that_names_the_extra(arguments: list[str]) -> None:
    """No traceback; exit code 1."""
    done = without(*arguments)
    assert done.returncode == 1 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert "pip install 'medfedvqa[train]'" in done.stderr


def test_the_extra_brings_every_module_that_the_sentence_is_about() -> None:
    """Each module whose absence the sentence explains belongs to a distribution that the extra asks for, or to one
    that these bring; none belongs to the verifier's own dependencies."""
    brought, light = set(closure("medfedvqa", "train")), set(closure("medfedvqa", ""))
    homes = packages_distributions()
    for module in TRAINING:
        names = {canonical(name) for name in homes[module]}
        assert names & brought and not names & light, module


def closure(name: str, extra: str) -> Iterator[str]:
    """The distributions that pyproject.toml asks for with an extra, and all that these ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = list(project["optional-dependencies"][extra] if extra else project["dependencies"])
    known: set[str] = set()
    while waiting:
        wanted = Requirement(waiting.pop())
        key = canonical(wanted.name)
        if key in known or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        known.add(key)
        waiting += requires(key) or []
    yield from known


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_example_report_is_verified_without_the_packages_for_training() -> None:
    """Every figure is recomputed by the analysis that needs NumPy alone: the same verdicts as with Opacus."""
    command = ["privacy", "verify-report", str(REPORT), "--json"]
    done = without(*command)
    full = subprocess.run(
        [sys.executable, "-c", "from medfedvqa.cli import main; main()", *command],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == full.returncode, done.stderr
    states = [{one["name"]: one["state"] for one in json.loads(run.stdout)["parts"]} for run in (done, full)]
    assert states[0] == states[1] and states[0]["figures"] == "shown"


@pytest.mark.parametrize("number", ["epsilon", "delta"])
def test_an_edited_figure_is_noticed_without_the_packages_for_training(number: str, tmp_path: Path) -> None:
    """A figure that differs in its fifth digit is broken."""
    told = json.loads((REPORT / "report.json").read_text(encoding="utf-8"))
    (row,) = (row for row in told["rows"] if row["id"] == f"claim.{number}")
    row["value"] *= 1 + 1e-5
    (tmp_path / "report.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    done = without("privacy", "verify-report", str(tmp_path), "--json")
    assert done.returncode == 1 and '"broken"' in done.stdout


@pytest.fixture
def without_opacus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Figures are computed by NumPy, and none of them is kept for other tests."""
    monkeypatch.setattr(analysis, "find_spec", lambda name: None)
    caches = (analysis.analysis, accounting._spent, accounting._rdp)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def test_a_delta_below_rounding_is_recomputed_with_opacus() -> None:
    """Where Opacus is installed every figure is compared."""
    assert analysis.recomputes_at(1e-9) and analysis.recomputes_at(1e-5)


@pytest.mark.usefixtures("without_opacus")
def test_a_figure_at_a_delta_below_rounding_is_not_called_broken_without_opacus(monkeypatch: Any) -> None:
    """There both implementations differ by more than the tolerance of a report; with Opacus it is compared."""
    assert not analysis.recomputes_at(1e-9) and analysis.recomputes_at(1e-5)
    report = read_report((REPORT / "report.json").read_bytes())
    lowered = report.changed({"accounting.remaining": 0.123})
    assert next(verify._figures(lowered, "")).state is VerdictState.BROKEN
    monkeypatch.setattr(analysis, "LEAST_DELTA", 1e-4)
    assert next(verify._figures(lowered, "")).state is VerdictState.NOT_SHOWN
    assert next(verify._figures(report, "")).state is VerdictState.SHOWN


def test_a_command_starts_with_little() -> None:
    """`audit verify --help` imports neither NumPy nor anything heavier, and stays below 80 MB of memory."""
    code = (
        "import sys\nfrom medfedvqa.cli import main\nsys.argv = ['medfedvqa', 'audit', 'verify', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"heavy = {{*{HEAVY}, 'numpy', 'yaml'}} & sys.modules.keys()\n"
        # Not `ru_maxrss`, which a process inherits from the one that started it.
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(sorted(heavy), peak.split()[1], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    imported, kilobytes = done.stderr.rsplit(" ", 1)
    assert imported == "[]" and int(kilobytes) < 80_000


COUNTING = """
import contextlib, sys
from pathlib import Path
from medfedvqa.cli import main
sys.argv[0] = "medfedvqa"
with contextlib.suppress(SystemExit):
    main()
packages = "audits", "medfedvqa", "privacy"
loaded = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in packages}
assert not any(name.startswith("audits.ui") for name in loaded)
print(sum(len(Path(module.__file__).read_text(encoding="utf-8").splitlines()) for module in loaded.values()))
"""
"""Runs the command, then prints how many lines of the project it loaded."""


@pytest.mark.parametrize(
    ("arguments", "most"),
    [
        (("audit", "verify", str(ROOT / "tests" / "golden" / "formats-1" / "log"), "--no-network"), 7_500),
        (("privacy", "verify-report", str(REPORT)), 14_500),
    ],
)
def test_who_checks_a_log_or_a_report_loads_little_of_the_project(arguments: tuple[str, ...], most: int) -> None:
    """An auditor need trust, or read, no more than that: neither the pages for browsers nor what trains."""
    command = [sys.executable, "-c", COUNTING, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert "Verdict" in done.stdout and done.stderr == ""
    assert 2_000 < int(done.stdout.splitlines()[-1]) <= most
