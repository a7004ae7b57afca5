"""A provisioned federation as its coordinator uses it: jobs for some of its sites, and every command of the console."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from audits import Event, Refusal, read
from audits.log_files import segments
from medfedvqa.federation.certificates import federation_of
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.provision import ADMIN, SERVER
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.job_terms import Terms
from medfedvqa.federation.site_config import site_yaml

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

SITES, NAMED, OTHER = ("abdomen", "chest", "head"), ("abdomen", "chest"), "head"
BACKBONE = "medclip@random"
OPTIONS = {"rounds": 2, "local_epochs": 1, "local_unit": "batches", "batch_rows": 4, "tuning": "bias", "blocks": 1}
JOB = JobSpec.from_dict(
    {"method": "fedavg", "options": {**OPTIONS, "hidden": 16}, "data": "phantom", "backbone": BACKBONE, "min_sites": 2}
)
PATIENCE = 300.0  # seconds
LISTED = Path(__file__).parents[2] / "docs" / "measured" / "flare-console.txt"
ROW = re.compile(r"^\| `(.+?)` \| (works|refused) \| (.*) \|$", re.MULTILINE)

REFUSALS = ("not authorized", "does not answer", "invalid_reply", "invalid_request")
CONFIRMED = {
    "abort_job": "y",
    **dict.fromkeys(("delete_job", "remove_study", "disable_client", "enable_client"), ADMIN),
}
CONFIRMED |= dict.fromkeys(("restart", "shutdown"), ADMIN)

SiteFile = Callable[..., str]


@pytest.fixture(scope="module")
def site_file(random_backbone: Path) -> SiteFile:
    """The text of a phantom site's `site.yml`; keywords change what it says."""

    def text(name: str, **changes: object) -> str:
        places = {place: f"../{place}" for place in ("state", "audit", "ledger")}
        facts = {"reader": "phantom", "organ": name, "methods": ["fedavg"], "repeats": 100, **places, **changes}
        return site_yaml(**facts, backbones={BACKBONE: str(random_backbone)})

    return text


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, site_file: SiteFile) -> Iterator[LoopbackFederation]:
    folder = tmp_path_factory.mktemp("federation")
    paths = {name: folder / f"{name}.yml" for name in SITES}
    for name, path in paths.items():
        path.write_text(site_file(name))
    with LoopbackFederation(folder, paths) as federation:
        yield federation


def submitted(federation: LoopbackFederation, folder: Path, job: JobSpec, *sites: str) -> str:
    """A fresh job for these sites, with a README beside it as the shipped folders have."""
    root = federation_of(federation.admin_kit / "startup" / "rootCA.pem")
    terms = Terms.fresh(root, sites) if sites else None
    export_job(job.model_copy(update={"terms": terms}), folder)
    (folder / "README.md").write_text("For people.\n")
    return federation.submit(folder)


def console(federation: LoopbackFederation, *commands: str) -> list[str]:
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
    federation: LoopbackFederation, tmp_path: Path
) -> None:
    """Neither the third site's logs nor any file of its kit has the job's id, and the console says it has no job. The
    results are of the two, and name nobody who was missing."""
    job_id = submitted(federation, tmp_path / "job", JOB, *NAMED)
    status = ""

    def asked() -> bool:
        nonlocal status
        (status,) = console(federation, "check_status client")
        return job_id in status

    wait_for(federation, job_id, asked)
    assert [line for line in status.splitlines() if job_id in line and f"| {OTHER} " in line] == []
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    results = json.loads((federation.results(job_id) / "results.json").read_text())
    assert results["status"] == "finished" and set(results["sites"]) == {*NAMED}
    assert results["expected"] == sorted(NAMED) and results["missing_at_end"] == []
    for name in SITES:
        files = [path for path in (federation.kits / name).rglob("*") if path.is_file()]
        heard = [path for path in files if job_id.encode() in path.read_bytes() or job_id in str(path)]
        assert bool(heard) is (name in NAMED), (name, heard)


@pytest.mark.parametrize(("least", "status"), [(2, "FINISHED:COMPLETED"), (1, "FINISHED:EXECUTION_EXCEPTION")])
def test_a_refusal_by_an_addressed_site_ends_a_job_only_without_a_quorum(
    federation: LoopbackFederation, site_file: SiteFile, tmp_path: Path, least: int, status: str
) -> None:
    """Two of three are enough for one job, which finishes and says who refused and why; the other one names no quorum,
    and ends with the same sentence."""
    own = federation.kits / OTHER / "local" / "site.yml"
    own.write_text(site_file(OTHER, methods=[]))
    try:
        job = JOB.model_copy(update={"min_sites": least})
        job_id = submitted(federation, tmp_path / "job", job, *SITES)
        assert federation.wait(job_id, PATIENCE) == status
    finally:
        own.write_text(site_file(OTHER))
    results = json.loads((federation.results(job_id) / "results.json").read_text())
    assert any(Refusal.METHOD.sentence in note and OTHER in note for note in results["notes"])
    log = [entry for entry in read(federation.kits / OTHER / "audit") if entry.job == job_id]
    assert sum(entry.event is Event.REFUSAL for entry in log) == 1
    assert not any(entry.event is Event.RELEASE for entry in log)


def test_every_command_of_the_console_does_what_the_list_says(federation: LoopbackFederation, tmp_path: Path) -> None:
    """Each row of the table is typed, those to `abort_job` while a job runs, and the answer has the row's words: a
    refusal's sentence, or what the command prints. Every command that the console lists has a row, and no log of server
    or site holds a line of DEBUG."""
    options = {**JOB.options, "rounds": 5000}
    export_job(JOB, tmp_path / "other")
    job_id = submitted(federation, tmp_path / "job", JOB.model_copy(update={"options": options}), *NAMED)
    for name in NAMED:  # once both have begun, they refuse its clone
        wait_for(federation, job_id, lambda name=name: began(federation.kits / name / "audit", job_id))
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


def wait_for(federation: LoopbackFederation, job_id: str, condition: Callable[[], bool]) -> None:
    """Until the condition holds, while the job runs."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert not federation.finished(job_id) and time.monotonic() < deadline
        time.sleep(0.2)


def began(log: Path, job_id: str) -> bool:
    """Whether the site has sent something in the job."""
    return bool(segments(log)) and any(entry.job == job_id and entry.event is Event.RELEASE for entry in read(log))


def typed(command: str, job_id: str, folder: Path) -> str:
    """What is typed for a row, with the line by which the console has some commands confirmed."""
    confirmed = next((answer for name, answer in CONFIRMED.items() if command.split()[0] == name), None)
    filled = command.replace("JOB", job_id).replace("FOLDER", str(folder)).replace("STUDY", "trial-1")
    return filled if confirmed is None else f"{filled}\n{confirmed}"
