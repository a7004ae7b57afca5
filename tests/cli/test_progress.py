"""What a run shows while it goes on, without a terminal and with one."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_clip import TINY

from audits import AuditLog, Event, Kind, Outcome, Protection, Refusal, TensorRecord
from medfedvqa.cli.demo import NEXT, activation
from medfedvqa.cli.progress import Stages, duration, show_results
from medfedvqa.cli.terminal import Terminal
from medfedvqa.federation.hub import TaskAnswer as Progress
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, refusals_of

SITES = ("chest", "head")


def shown(rounds: int, baseline: bool, terminal: bool = False) -> str:
    """The progress of a run whose rounds take 20, 10, 10, ... seconds."""
    times = iter([0.0, 0.0, 20.0, 20.0, 30.0, 30.0, 40.0, 40.0, 50.0, 50.0, 60.0, 60.0])
    console = Terminal(file=io.StringIO(), force_terminal=terminal, width=80)
    with Stages(console, len(SITES), rounds, baseline, clock(times)) as stages:
        for number in range(1, rounds + 1):
            for site in (None, *SITES):
                stages.watch(Progress(number, rounds, "train", site))
        for site in (None, *SITES):
            stages.watch(Progress(rounds, rounds, "evaluate", site))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def clock(times: Iterator[float]) -> Callable[[], float]:
    """The next of these seconds at each call; the first is that of the start."""
    return lambda: next(times)


def test_each_round_is_one_line_where_there_is_no_terminal() -> None:
    """The first line comes as the first round begins; then one for each round, with the time left; then each site."""
    assert shown(3, baseline=True).splitlines() == [
        "round 1 of 3, in which each site loads its data and runs the backbone once",
        "round 1 of 3: 20 s",
        "round 2 of 3: 10 s, about 40 s left",
        "round 3 of 3: 10 s, about 30 s left",
        "evaluating, and training each site's baseline alone, about 30 s left",
        "evaluated chest, 1 of 2 sites",
        "evaluated head, 2 of 2 sites",
    ]


def test_a_line_has_the_released_validation_accuracy() -> None:
    """The accuracy comes with the next task."""
    console = Terminal(file=io.StringIO(), force_terminal=False, width=80)
    with Stages(console, 1, 9, False, clock(iter(map(float, range(30))))) as stages:
        for number, accuracy in enumerate((None, 0.5, 0.625, 0.6, 0.625), 1):
            stages.watch(Progress(number, 9, "train", None, accuracy))
        stages.watch(Progress(5, 9, "evaluate", None, 0.7))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [line.split(", about")[0] for line in text.splitlines()]
    assert lines[1:3] == ["round 1 of 9: 1.0 s, 50.0 % of validation rows right",
                          "round 2 of 9: 1.0 s, 62.5 % of validation rows right"]  # fmt: skip
    assert "round 5 of 9: 1.0 s, 70.0 % of validation rows right" in lines


def test_all_ways_of_answering_fit_into_80_columns() -> None:
    """The demo's seven, with names of sites, words and intervals whole, of whole per cent."""
    right = {"accuracy": 0.612, "interval": [0.521, 0.6961], "correct": 30, "rows": 49}
    baselines = dict.fromkeys(("majority", "question_prior", "alone", "alone_equal"), right)
    site = right | {"n": 49, "baselines": baselines} | dict.fromkeys(("finished", "ensemble", "kept_accuracy"), right)
    results = {"notes": [], "method": "fedavg", "split": {}, "sites": {"abdomen-1of2": site}, "average": site}
    console = Terminal(file=io.StringIO(), force_terminal=False, width=80)
    show_results(console, results)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    words = text.split()
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    assert words.count("52–70") == words.count("61.2") >= 14
    assert {"abdomen-1of2", "majority", "question-", "(released)", "finished"} <= set(words)


def test_the_demo_says_what_it_does_before_torch_is_imported() -> None:
    """Importing torch takes seconds, in which a newcomer would look at an empty screen: here it ends the process."""
    code = """if True:
        import os, sys

        class Ends:
            def find_spec(self, name, path=None, target=None):
                if name == "torch" and "medfedvqa.data" in sys.modules:
                    os._exit(7)

        sys.meta_path.insert(0, Ends())
        from medfedvqa.cli import main
        sys.argv = ["medfedvqa", "demo"]
        main()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 7 and done.stderr.startswith("medfedvqa demo: hospitals train together")


def test_after_make_demo_the_next_step_is_to_make_the_command_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`make` starts the program of an environment that is not active; where the shell knows the command, no line is."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").touch()
    program = programs / "medfedvqa"
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert NEXT.format(out="runs/demo", activate=activation()).splitlines()[2] == "  . .venv/bin/activate"
    monkeypatch.setenv("PATH", str(programs))
    assert activation() == ""


def test_the_next_steps_of_the_demo_end_well(
    medfedvqa: Callable[..., Any], tmp_path: Path, tiny_backbone: Path
) -> None:
    """Typed after a run on one machine, `audit show` and `audit verify` find what they look for: the exit code is 0."""
    out = tmp_path / "run"
    quick = ["-O", "local_unit=batches", "-O", "local_baseline=false", "--rounds", "1", "--local-epochs", "1"]
    quick += ["--backbone", TINY, "--backbone-file", str(tiny_backbone)]
    assert medfedvqa("run", "prompt_pfl", "--data", "phantom", *quick, "--quiet", "--out", str(out)).returncode == 0
    lines = NEXT.format(out=out, activate="").splitlines()
    typed = [
        line.split()[1:] for line in lines if line.startswith(("  medfedvqa audit show", "  medfedvqa audit verify"))
    ]
    assert len(typed) == 2
    for words in typed:
        assert medfedvqa(*words).returncode == 0, words


def test_without_a_baseline_nothing_is_expected_of_the_evaluation() -> None:
    """The time left is that of the rounds alone."""
    lines = shown(3, baseline=False).splitlines()
    assert lines[2:5] == ["round 2 of 3: 10 s, about 10 s left", "round 3 of 3: 10 s", "evaluating"]


def test_a_terminal_has_a_bar_and_no_lines() -> None:
    """The stage stands in the bar."""
    text = shown(2, baseline=False, terminal=True)
    assert "evaluating, 2 of 2 sites" in text and "evaluated" not in text


def test_seconds_are_written_as_people_say_them() -> None:
    assert [duration(seconds) for seconds in (0.42, 37.2, 125.0)] == ["0.4 s", "37 s", "2 min 5 s"]


def test_a_failure_says_what_the_logs_of_the_sites_say(tmp_path: Path) -> None:
    """A server is told a code only; on one machine the reason stands in the site's log, and the sentence quotes it."""
    launch = Launch(JobSpec(method="fedavg"), None, tmp_path, SITES)
    log = AuditLog(launch.audit_folders["chest"], "chest")
    refused = {"outcome": Outcome.REFUSED, "reason": "no GPU is there", "admission": {"code": Refusal.DEVICE.value}}
    log.append(Event.REFUSAL, job="job", **refused)
    log.close()
    assert refusals_of(launch) == "; the log of 'chest' says: no GPU is there"


def test_a_log_is_shown_in_80_columns_and_nothing_of_it_is_cut(medfedvqa: Callable[..., Any], tmp_path: Path) -> None:
    """Times, long names and shapes stand there whole; `--json` has the entries as the log has them."""
    log = AuditLog(tmp_path / "audit", "chest")
    name = "prompt.image.of.a.rather.long.name.that.fits.nowhere"
    tensor = TensorRecord(name, (6, 4, 128), "float32", 12288, None, Kind.PARAMETERS, Protection.NONE)
    more = {"tensors": (tensor,), "nbytes": 12288, "outcome": Outcome.SENT, "direction": "out"}
    log.append(Event.RELEASE, job="a-job-with-a-long-identifier", round=3, task="train", peer="server", **more)
    log.close()
    done = medfedvqa("audit", "show", str(tmp_path / "audit"))
    (entry,) = [
        json.loads(line) for line in medfedvqa("audit", "show", str(tmp_path / "audit"), "--json").stdout.splitlines()
    ]
    assert entry["site"] == "chest" and entry["tensors"][0]["name"] == name
    assert (
        f"{entry['time']}  round 3, train, release sent, peer server, job a-job-with-a-long-identifier" in done.stdout
    )
    assert f"tensor {name}: 6 x 4 x 128, 12,288 bytes" in done.stdout and "…" not in done.stdout


def test_results_are_printed_as_json(medfedvqa: Callable[..., Any]) -> None:
    """Each is one document on standard output, and nothing else."""
    settings = json.loads(medfedvqa("privacy", "settings", "--json").stdout)
    assert settings["delta"] == 1e-5
    plan = medfedvqa(
        "privacy", "plan", "prompt_pfl", "--epsilon", "3", "--rounds", "2", "-O", "answers=closed", "--json"
    )
    told = json.loads(plan.stdout)
    assert told["costs"][-1]["tasks"] == told["tasks"] and 2.5 < told["costs"][-1]["epsilon"] <= 3.0
