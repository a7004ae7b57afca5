"""A value of `-O` is the one that runs, or the command refuses it before anything is trained: never neither."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tiny_clip import TINY
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from medfedvqa.cli import app
from medfedvqa.cli.lazy import LazyCommand
from medfedvqa.research.benchmark import grid
from medfedvqa.research.benchmark.results_file import read

Command = Callable[..., Any]
DATA = ("--data", "phantom")
AS1 = "prompt_pfl AS1 (no prompts; not shared)"
REFUSED = {
    "benchmark": ("benchmark", "--methods", f"{AS1},local (DT)", *DATA, "-O", "learning_rate=0.01"),
    "reproduce": ("reproduce", "prompt-pfl", "table1", "--rows", "AS1", *DATA, "-O", "learning_rate=0.01"),
    "study": ("study", "--methods", f"{AS1},local (DT)", *DATA, "-O", "learning_rate=0.01"),
    "tune": ("tune", "--methods", AS1, *DATA, "-O", "local_baseline=true"),
}
"""Commands whose rows have options of their own."""
DIRECT = {"run", "jobs export", "privacy plan", "audit attack", "audit neighbours"}
"""Commands of one method, which has no options but those given."""


def named(command: Any, name: str = "") -> Iterator[tuple[str, TyperCommand]]:
    """Every command with its name."""
    if isinstance(command, LazyCommand):
        command, _ = command.named([])
    if isinstance(command, TyperGroup):
        for word, each in command.commands.items():
            yield from named(each, f"{name} {word}".strip())
    else:
        yield name, command


def test_every_command_that_takes_options_is_tried() -> None:
    """A new one needs a line above."""
    takes = {name for name, each in named(get_command(app)) if any("-O" in option.opts for option in each.params)}
    assert takes == REFUSED.keys() | DIRECT


@pytest.mark.parametrize("typed", REFUSED.values(), ids=REFUSED)
def test_an_option_that_a_row_sets_itself_is_refused_by_name(
    medfedvqa: Command, tmp_path: Path, typed: tuple[str, ...]
) -> None:
    """Option, row and the row's value are named, and nothing is trained; it was ignored."""
    done = medfedvqa(*typed, "--out", str(tmp_path / "out"))
    own = "local_baseline=True" if typed[0] == "tune" else "learning_rate=0.01"
    value = "False" if typed[0] == "tune" else "0.002"
    assert done.returncode == 1 and f"{own} would not reach every row: '{AS1}' has {value}" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("tune", "--methods", "fedavg", "-O", "learning_rate=0.1"), "its own values of learning_rate: use --rates"),
        (("benchmark", "--methods", "fedavg", "-O", 'unseen=["head"]'), "name the sites that never train by --unseen"),
        (("benchmark", "--methods", "frozen features (equal steps)", "--rounds", "3"), "rounds=3 would not reach"),
        (("benchmark", "--methods", "fedavg", "-O", "tuning=bias"), "'FedAvg adapter' has 'adapter'"),
        (
            ("benchmark", "--methods", "FedAvg adapter", "--tuned", "{tuned}", "-O", "learning_rate=0.1"),
            "learning_rate=0.1 would not reach every row: 'FedAvg adapter' has 0.5",
        ),
    ],
)
def test_options_that_something_else_decides_are_refused(
    medfedvqa: Command, tmp_path: Path, typed: tuple[str, ...], expected: str
) -> None:
    """What a search tries or has chosen, what names sites, and what a label stands for; also by another flag."""
    tuned = tmp_path / "tuned.json"
    chosen = {"FedAvg adapter": {"learning_rate": 0.5, "weight_decay": 0.0}}
    tuned.write_text(json.dumps({"format": 1, "data": "phantom", "backbone": "medclip2-slake", "choices": chosen}))
    words = [word.format(tuned=tuned) if word == "{tuned}" else word for word in typed]
    done = medfedvqa(*words, *DATA, "--out", str(tmp_path / "out"))
    assert done.returncode == 1 and expected in done.stderr and not (tmp_path / "out").exists()


def test_the_row_s_own_value_may_be_repeated(
    medfedvqa: Command, tmp_path: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs, and the page says with which options, from the run's record, and what the paper prints instead."""
    small = ("--seeds", "1", "--rounds", "1", "--local-epochs", "1", "-O", "local_unit=batches", "-O", "hidden=4")
    typed = ("reproduce", "prompt-pfl", "table1", "--rows", "AS1", *DATA, *small, "-O", "learning_rate=0.002")
    # Only this process knows the small backbone.
    monkeypatch.setattr(grid, "ProcessPoolExecutor", lambda workers, **_: ThreadPoolExecutor(workers))
    done = medfedvqa(*typed, "--backbone", TINY, "--backbone-file", str(tiny_backbone), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (ran,) = (each for each in read([tmp_path / "results.jsonl"])[0] if each.system == AS1)
    assert {"rounds": 1, "hidden": 4, "learning_rate": 0.002}.items() <= ran.options.items()
    line = f"- {AS1}: " + ", ".join(f"{name} {value}" for name, value in ran.options.items())
    assert line.replace("_", "") in done.stdout.replace("\\", "").replace("_", "")
    assert "rate: 0.002 in place of 0.01" in done.stdout


def test_values_reach_the_job_of_commands_of_one_method(
    medfedvqa: Command, tmp_path: Path, tiny_backbone: Path
) -> None:
    """`run` in the folder's own record, `jobs export` in the job's files, `privacy plan` in the steps of the rounds."""
    small = ("-O", "rounds=1", "-O", "hidden=4", "-O", "learning_rate=0.01", "-O", "local_unit=batches")
    quick = ("-O", "local_baseline=false", "--backbone", TINY, "--backbone-file", str(tiny_backbone))
    run = medfedvqa("run", "prompt_pfl", *DATA, *small, *quick, "--json", "--out", f"{tmp_path}/run")
    assert run.returncode == 0, run.stderr
    options = json.loads((tmp_path / "run" / "launch.json").read_text())["job"]["options"]
    assert options["learning_rate"] == 0.01 and options["hidden"] == 4
    done = medfedvqa("jobs", "export", "prompt_pfl", *DATA, *small, "--out", f"{tmp_path}/job")
    assert done.returncode == 0, done.stderr
    text = "".join(path.read_text() for path in (tmp_path / "job").rglob("*.json"))
    assert '"learning_rate": 0.01' in text and '"hidden": 4' in text
    plans = [
        json.loads(
            medfedvqa("privacy", "plan", "prompt_pfl", "--epsilon", "3", "-O", "answers=closed", *more, "--json").stdout
        )
        for more in (("-O", "rounds=2"), ("-O", "rounds=4"))
    ]
    assert plans[0] != plans[1]
