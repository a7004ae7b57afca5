"""The `medfedvqa` command as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

COMMAND = [str(Path(sys.executable).with_name("medfedvqa"))]
SITES = ("site-001", "site-002", "site-003")
QUICK = [
    "-O",
    "local_unit=batches",
    "-O",
    "batch_rows=16",
    "-O",
    "blocks=2",
    "-O",
    "hidden=16",
    "-O",
    "local_baseline=false",
]


def installed(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command in a process of its own."""
    shown = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", **environment}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=240, env=shown, check=False)


def run_arguments(backbone: Path, out: Path, *more: str) -> list[str]:
    chosen = ["--data", "phantom", "--backbone", "medclip@random", "--backbone-file", str(backbone)]
    chosen += [part for site in SITES for part in ("--site", site)]
    return ["run", "prompt_pfl", *chosen, "--local-epochs", "1", *QUICK, "--out", str(out), *more]


@pytest.mark.slow
def test_run_then_verify_then_show(random_backbone: Path, tmp_path: Path) -> None:
    """A run prints the table; `audit verify` shows all three verdicts of every log; `audit show` lists what left."""
    out = tmp_path / "run"
    run = installed(*run_arguments(random_backbone, out, "--rounds", "2"))
    assert run.returncode == 0, run.stderr
    assert "question-only prior" in run.stdout and "prompt_pfl" in run.stdout and "total" in run.stdout
    verify = installed("audit", "verify", str(out), "--no-network")
    assert verify.returncode == 0 and verify.stdout.count("cosigned by 3 parties") == 3
    show = installed("audit", "show", str(out))
    assert show.returncode == 0 and "prompt.image" in show.stdout and "6 x 4" not in show.stdout
    log = out / "sites" / SITES[2] / "audit" / "log.jsonl"
    log.write_text(log.read_text().replace('"round":1', '"round":7', 1))
    broken = installed("audit", "verify", str(out))
    assert broken.returncode == 1 and broken.stdout.count("integrity: BROKEN") == 1
    assert broken.stdout.count("integrity: shown") == 2
    again = installed(*run_arguments(random_backbone, out, "--rounds", "2"))
    assert again.returncode == 1 and "already holds a run" in again.stderr


@pytest.mark.slow
def test_interrupting_a_run_leaves_usable_results(random_backbone: Path, tmp_path: Path) -> None:
    """Ctrl-C once: the round is finished and evaluated, and results.json says that the run was stopped."""
    out = tmp_path / "run"
    command = [*COMMAND, *run_arguments(random_backbone, out, "--rounds", "200")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not (out / "results.json").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    results = json.loads((out / "results.json").read_text())
    assert results["status"] == "stopped" and 0 < len(results["rounds"]) < 200
    assert all(facts["accuracy"] is not None for facts in results["sites"].values())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "prompt_pfi", "--data", "phantom"], "there is no method 'prompt_pfi': did you mean 'prompt_pfl'?"),
        (
            ["run", "prompt_pfl", "--data", "phantom", "-O", "round=3"],
            "there is no option 'round' of 'prompt_pfl': did you mean 'rounds'?",
        ),
        (["run", "prompt_pfl", "--data", "phantom", "-O", "rounds"], "NAME=VALUE"),
        (["run", "prompt_pfl", "--data", "mri"], "unknown data 'mri'"),
        (["run", "prompt_pfl", "--data", "slake", "--data-root", "/nowhere"], "of --data-root does not exist"),
        (
            ["run", "prompt_pfl", "--data", "phantom", "--engine", "cloud"],
            "'cloud' is not one of 'local', 'simulator', 'provisioned'",
        ),
        (["run", "prompt_pfl", "--data", "phantom", "--backbone", "clip"], "unknown backbone 'clip'"),
        (["audit", "verify", "/nowhere"], "no"),
        (["run", "prompt_pfl", "--data", "phantom", "--epsilon", "-1"], "'epsilon'"),
        (["run", "prompt_pfl", "--data", "phantom", "--dp", "noise=1"], "'count_noise'"),
        (
            ["run", "prompt_pfl", "--data", "phantom", "--epsilon", "1", "--dp", "sigma=2"],
            "there is no setting of differential privacy 'sigma'",
        ),
        (["run", "prompt_pfl", "--data", "phantom", "--secagg", "--committee", "2"], "at least 3 sites"),
        (["run", "prompt_pfl", "--data", "phantom", "--secagg", "--committee", "head,chest"], "at least 3 sites"),
        (["run", "prompt_pfl", "--data", "phantom", "--committee", "3"], "ask for secure aggregation as well"),
        (["privacy", "plan", "prompt_pfl"], "--epsilon"),
        (["benchmark", "--data", "phantom", "--scale", "abc"], "--scale needs numbers"),
        (["benchmark", "--data", "phantom", "--scale", "3,five"], "--scale needs numbers"),
        (["benchmark", "--data", "phantom", "--scale", "0"], "--scale needs numbers"),
        (["study", "--data", "phantom", "--regimes", "rowz"], "did you mean 'rows'"),
        (["privacy", "spent", "--site", "/nowhere/site.yml"], "site.yml"),
        (["kit", "prepare", "/nowhere"], "not the startup kit"),
        (["kit", "root", "/nowhere", "--out", "/nowhere/ca"], "no project"),
    ],
)
def test_bad_input_is_one_sentence_and_a_non_zero_exit(
    medfedvqa: Callable[..., Any], arguments: list[str], said: str, tmp_path: Path
) -> None:
    """A user's mistake gives an error that names it, no traceback, and no output folder."""
    out = ["--out", str(tmp_path / "run")] if arguments[0] in ("run", "benchmark", "study") else []
    done = medfedvqa(*arguments, *out)
    assert done.returncode != 0 and said in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_benchmark_does_not_begin_in_a_file(medfedvqa: Callable[..., Any], tmp_path: Path) -> None:
    """Its folder may be there already, to be continued; a file in its place is one sentence."""
    file = tmp_path / "file"
    file.touch()
    done = medfedvqa("benchmark", "--data", "phantom", "--out", str(file))
    assert done.returncode == 1 and "is a file" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [[], ["run"], ["demo"], ["methods"], ["pretrain"], ["jobs", "export"], ["audit", "verify"], ["audit", "show"]]
    + [["audit", name] for name in ("proof", "check", "key", "expire", "export", "ui", "attack", "controls")]
    + [["benchmark"], ["attention"], ["identity"], ["ingest"], ["doctor"]]
    + [["kit", name] for name in ("prepare", "root")]
    + [["privacy", name] for name in ("plan", "spent", "ledger", "settings", "report", "verify-report")]
    + [["privacy", name] for name in ("join-reports", "verify-joined", "registry-entry")],
)
def test_every_command_explains_itself(medfedvqa: Callable[..., Any], command: list[str]) -> None:
    """--help works for every command."""
    done = medfedvqa(*command, "--help")
    assert done.returncode == 0 and "Usage" in done.stdout


@pytest.mark.parametrize(("asked", "committee"), [("5", 5), ("head,chest,abdomen", ["abdomen", "chest", "head"])])
def test_a_committee_is_asked_for_by_its_size_or_by_its_members(
    medfedvqa: Callable[..., Any], tmp_path: Path, asked: str, committee: Any
) -> None:
    """The exported job says so to the server and to every site."""
    out = tmp_path / "job"
    done = medfedvqa("jobs", "export", "prompt_pfl", "--secagg", "--committee", asked, "--out", str(out))
    assert done.returncode == 0, done.stderr
    configs = sorted(out.glob("app/config/*.json"))
    assert len(configs) == 2
    for config in configs:
        assert f'"committee": {json.dumps(committee)}' in json.dumps(json.loads(config.read_text()))


def test_options_of_a_method_are_listed_with_types_defaults_and_sources(medfedvqa: Callable[..., Any]) -> None:
    """`methods` is a short table; `methods NAME` shows each option's type, default and meaning, and the paper."""
    every = medfedvqa("methods")
    assert every.returncode == 0 and "decay_every" not in every.stdout and len(every.stdout.splitlines()) < 60
    done = medfedvqa("methods", "prompt_pfl")
    assert done.returncode == 0 and "decay_every" in done.stdout and "(paper: 30)" in done.stdout
    told = json.loads(medfedvqa("methods", "fedprox", "--json").stdout)
    (mu,) = [option for option in told["options"] if option["name"] == "mu"]
    assert mu["default"] == 0.01 and mu["type"].startswith("number, 0 to") and "MLSys 2020" in told["source"]
    assert "did you mean 'fedprox'" in medfedvqa("methods", "fedprx").stderr
