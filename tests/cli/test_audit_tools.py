"""`medfedvqa audit export`, `audit curves` and `audit ui`."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest

from audits import AuditLog, Event, Outcome, read
from medfedvqa.cli.audit import _points


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with the logs of two sites."""
    for site in ("chest", "head"):
        log = AuditLog(tmp_path / "run" / "sites" / site / "audit", site)
        log.append(Event.OPEN, job="job-1")
        log.append(Event.CLOSE, job="job-1")
        log.close()
    return tmp_path / "run"


@pytest.mark.parametrize("form", ["fhir", "jsonl", "syslog"])
def test_export_writes_the_entries_of_all_sites(
    medfedvqa: Callable[..., Any], run: Path, tmp_path: Path, form: str
) -> None:
    """One file, in the order of sites and entries."""
    out = tmp_path / "out"
    done = medfedvqa("audit", "export", str(run), "--format", form, "--out", str(out))
    assert done.returncode == 0 and done.stdout == "4 entries of 2 logs written\n"
    lines = out.read_text().splitlines()
    assert len(lines) == 4 and ["chest" in line for line in lines] == [True, True, False, False]
    if form == "fhir":
        assert {json.loads(line)["resourceType"] for line in lines} == {"AuditEvent"}


def test_export_says_what_is_wrong(medfedvqa: Callable[..., Any], run: Path, tmp_path: Path) -> None:
    """An unknown format, a file that exists and a broken log are sentences, and leave no file."""
    out = tmp_path / "out"
    done = medfedvqa("audit", "export", str(run), "--format", "xml", "--out", str(out))
    assert done.returncode == 2 and "fhir" in done.stderr
    log = run / "sites" / "head" / "audit" / "log.jsonl"
    log.write_text(log.read_text().replace("job-1", "job-2", 1))
    done = medfedvqa("audit", "export", str(run), "--format", "jsonl", "--out", str(out))
    assert done.returncode == 1 and "head breaks at entry 0" in done.stderr and not out.exists()
    out.touch()
    done = medfedvqa("audit", "export", str(run / "sites" / "chest" / "audit"), "--format", "jsonl", "--out", str(out))
    assert done.returncode == 1 and "exists already" in done.stderr


def test_curves_are_what_the_log_says_round_by_round(medfedvqa: Callable[..., Any], run: Path, tmp_path: Path) -> None:
    """Bytes add up over a job's rounds, refused messages do not count, epsilon stands where a release was charged, and
    TensorBoard's own reader finds them; of a broken log there is nothing."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = AuditLog(run / "sites" / "chest" / "audit", "chest")
    for number, outcome, nbytes, epsilon in (
        (1, Outcome.SENT, 100, 0.5),
        (1, Outcome.REFUSED, 7, None),
        (2, Outcome.SENT, 50, 0.75),
    ):
        log.append(
            Event.RELEASE, job="job-1", round=number, direction="out", nbytes=nbytes, outcome=outcome,
            epsilon_before=None if epsilon is None else 0.0, epsilon_after=epsilon,
        )  # fmt: skip
    log.append(Event.RECEIVE, job="job-1", round=2, direction="in", nbytes=30, outcome=Outcome.ACCEPTED)
    log.close()
    out = tmp_path / "curves"
    done = medfedvqa("audit", "curves", str(run), "--out", str(out))
    assert done.returncode == 0 and done.stdout == "5 data points of 2 logs written\n", done.stderr
    drawn = EventAccumulator(str(out)).Reload()
    curves = {tag: [(point.step, point.value) for point in drawn.Scalars(tag)] for tag in drawn.Tags()["scalars"]}
    assert curves == {
        "chest/job-1/bytes sent": [(1, 100), (2, 150)],
        "chest/job-1/bytes received": [(2, 30)],
        "chest/job-1/epsilon": [(1, 0.5), (2, 0.75)],
    }
    broken = run / "sites" / "head" / "audit" / "log.jsonl"
    broken.write_text(broken.read_text().replace("job-1", "job-2", 1))
    done = medfedvqa("audit", "curves", str(run), "--out", str(tmp_path / "none"))
    assert done.returncode == 1 and "audit verify" in done.stderr and not (tmp_path / "none").exists()


def test_a_point_without_a_readable_date_is_kept(run: Path) -> None:
    """As the export keeps such entries: the date is the site's word, and a wrong one hides no bytes."""
    [opened, _] = read(run / "sites" / "chest" / "audit")
    sent = replace(opened, direction="out", outcome=Outcome.SENT, nbytes=5, round=3, time="yesterday")
    assert list(_points(iter([sent]))) == [("chest/job-1/bytes sent", 5, 3, None)]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts what it puts in the background without Ctrl-C, which the command would inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ui_serves_until_it_is_interrupted(run: Path, interruptible: None) -> None:
    """It prints one address, which answers; Ctrl-C ends it without a complaint."""
    command = [str(Path(sys.executable).with_name("medfedvqa")), "audit", "ui", str(run), "--no-network"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as ui:
        assert ui.stdout is not None
        url = ui.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", url)
        with build_opener(ProxyHandler({})).open(url, timeout=120) as answer:
            assert answer.status == 200 and "Site chest" in answer.read().decode()
        ui.send_signal(signal.SIGINT)
        _, errors = ui.communicate(timeout=120)
    assert ui.returncode == 0 and errors == ""


def test_ui_says_what_is_wrong(medfedvqa: Callable[..., Any], run: Path, tmp_path: Path) -> None:
    """No log and a damaged key are sentences, before anything is served."""
    done = medfedvqa("audit", "ui", str(tmp_path / "nowhere"))
    assert done.returncode == 1 and "there is no audit log here" in done.stderr
    done = medfedvqa("audit", "ui", str(run), "--key", "chest+0+x")
    assert done.returncode == 1 and "verifier key" in done.stderr
