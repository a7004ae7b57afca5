"""A provisioned federation as its coordinator uses it: jobs for some of its sites, and every command of the console."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from phantoms import PATIENCE, Phantoms, short_job, wait_for

from audits import Event, Outcome, Refusal
from medfedvqa.federation.flare.provision import ADMIN, SERVER
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec

pytestmark = pytest.mark.slow

SITES, NAMED, OTHER = ("abdomen", "chest", "head"), ("abdomen", "chest"), "head"
JOB = short_job("fedavg", {"rounds": 2, "tuning": "bias"}, min_sites=2)
LISTED = Path(__file__).parents[2] / "docs" / "measured" / "flare-console.txt"
ROW = re.compile(r"^\| `(.+?)` \| (works|refused) \| (.*) \|$", re.MULTILINE)

REFUSALS = ("not authorized", "does not answer", "invalid_reply", "invalid_request")
CONFIRMED = {
    "abort_job": "y",
    **dict.fromkeys(("delete_job", "remove_study", "disable_client", "enable_client"), ADMIN),
}
CONFIRMED |= dict.fromkeys(("restart", "shutdown"), ADMIN)


@pytest.fixture(scope="module")
def federation(phantoms: Callable[..., Phantoms]) -> Phantoms:
    return phantoms(SITES, methods=["fedavg"], repeats=100)


def submitted(federation: Phantoms, folder: Path, job: JobSpec, *sites: str) -> str:
    """A fresh job for these sites, with a README beside it as the shipped folders have."""
    export_job(job.model_copy(update={"terms": federation.terms().model_copy(update={"sites": sites})}), folder)
    (folder / "README.md").write_text("For people.\n")
    return federation.submit(folder)


def console(federation: Phantoms, *commands: str) -> list[str]:
    """What FLARE's console prints to each command, typed one after the other, without the times that it took."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    typed = "\n".join([ADMIN, *commands, "bye", ""])
    script = ["bash", str(federation.admin_kit / "startup" / "fl_admin.sh")]
    run = subprocess.run(
        script, input=typed, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, "PATH": path}
    )
    answers = re.split(r"^> ", run.stdout, flags=re.MULTILINE)[1 : len(commands) + 1]
    assert len(answers) == len(commands), run.stdout + run.stderr
    return [re.sub(r"Done \[.*", "", answer).strip() for answer in answers]


def test_a_job_for_two_of_three_connected_sites_finishes_and_the_third_hears_nothing(
    federation: Phantoms, tmp_path: Path
) -> None:
    """Neither the third site's logs nor any file of its kit has the job's id, and the console says it has no job. The
    results are of the two, and name nobody who was missing."""
    job_id = submitted(federation, tmp_path / "job", JOB, *NAMED)
    status = ""

    def asked() -> bool:
        nonlocal status
        (status,) = console(federation, "check_status client")
        return job_id in status

    while_running(federation, job_id, asked)
    assert [line for line in status.splitlines() if job_id in line and f"| {OTHER} " in line] == []
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    results = federation.outcome(job_id)
    assert results["status"] == "finished" and set(results["sites"]) == {*NAMED}
    assert results["expected"] == sorted(NAMED) and results["missing_at_end"] == []
    for name in SITES:
        files = [path for path in (federation.kits / name).rglob("*") if path.is_file()]
        heard = [path for path in files if job_id.encode() in path.read_bytes() or job_id in str(path)]
        assert bool(heard) is (name in NAMED), (name, heard)


@pytest.mark.parametrize(("least", "status"), [(2, "FINISHED:COMPLETED"), (1, "FINISHED:EXECUTION_EXCEPTION")])
def test_a_refusal_by_an_addressed_site_ends_a_job_only_without_a_quorum(
    federation: Phantoms, tmp_path: Path, least: int, status: str
) -> None:
    """Two of three are enough for one job, which finishes and says who refused and why; the other one names no quorum,
    and ends with the same sentence."""
    with federation.changed(OTHER, methods=[]):
        job_id = submitted(federation, tmp_path / "job", JOB.model_copy(update={"min_sites": least}), *SITES)
        assert federation.wait(job_id, PATIENCE) == status
    results = federation.outcome(job_id)
    assert any(Refusal.METHOD.sentence in note and OTHER in note for note in results["notes"])
    if least == 1:
        assert results["status"] == "failed" and Refusal.METHOD.sentence in results["failure"]
        assert f"site '{OTHER}' stopped the job" in results["failure"]
    log = federation.log(OTHER, job_id)
    assert [bool(entry.reason) for entry in log if entry.outcome == Outcome.REFUSED] == [True]
    assert sum(entry.event is Event.REFUSAL for entry in log) == 1
    assert not any(entry.event is Event.RELEASE or entry.outcome == Outcome.SENT for entry in log)


def test_every_command_of_the_console_does_what_the_list_says(federation: Phantoms, tmp_path: Path) -> None:
    """Each row of the table is typed, those to `abort_job` while a job runs, and the answer has the row's words: a
    refusal's sentence, or what the command prints. Every command that the console lists has a row, and no log of server
    or site holds a line of DEBUG."""
    options = {**JOB.options, "rounds": 5000}
    export_job(JOB, tmp_path / "other")
    job_id = submitted(federation, tmp_path / "job", JOB.model_copy(update={"options": options}), *NAMED)
    for name in NAMED:  # once both have begun, they refuse its clone
        while_running(federation, job_id, lambda name=name: began(federation, name, job_id))
    rows = ROW.findall(LISTED.read_text(encoding="utf-8"))
    lines = [typed(command, job_id, tmp_path / "other") for command, _, _ in rows]
    ended = next(place for place, line in enumerate(lines, 1) if line.startswith("abort_job"))
    answers = console(federation, *lines[:ended])
    jobs = [job_id, *re.findall(r"(?:Submitted job|as): (\S+)", "\n".join(answers))]
    assert len(jobs) == 3 and all(federation.wait(job, PATIENCE) for job in jobs)
    answers += console(federation, *lines[ended:], "help")
    for (command, state, words), answer in zip(rows, answers, strict=False):
        assert typed(words.strip("`"), job_id, tmp_path) in answer, (command, answer)
        refused = any(sentence in answer for sentence in REFUSALS)
        assert refused is (state == "refused"), (command, answer)
    listed = set(re.findall(r"^\| ([a-z_]+) +\|", answers[-1], re.MULTILINE))
    assert listed and listed - {"bye", "help"} <= {command.split()[0] for command, _, _ in rows}
    for name in (SERVER, *SITES):
        for path in (federation.kits / name).rglob("*log*.txt"):
            assert "DEBUG" not in path.read_text(), path


def while_running(federation: Phantoms, job_id: str, condition: Callable[[], bool]) -> None:
    """Until the condition holds, while the job runs."""

    def holds() -> bool:
        assert not federation.finished(job_id)
        return condition()

    wait_for(holds)


def began(federation: Phantoms, name: str, job_id: str) -> bool:
    """Whether the site has sent something in the job."""
    return any(entry.event is Event.RELEASE for entry in federation.log(name, job_id))


def typed(command: str, job_id: str, folder: Path) -> str:
    """What is typed for a row, with the line by which the console has some commands confirmed."""
    confirmed = next((answer for name, answer in CONFIRMED.items() if command.split()[0] == name), None)
    filled = command.replace("JOB", job_id).replace("FOLDER", str(folder)).replace("STUDY", "trial-1")
    return filled if confirmed is None else f"{filled}\n{confirmed}"
