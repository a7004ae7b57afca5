"""A job in a provisioned federation: real kits, mutual TLS, a process per party and job, and real kills."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.recipe import ProdEnv
from phantoms import BACKBONE, PATIENCE, Phantoms, short_job, wait_for

from audits import Event, Examination, Outcome, Refusal, VerdictState, examine, read, verify
from audits.byte_ledger import Reconciliation, reconcile
from medfedvqa.cli.options import config_of
from medfedvqa.core import create
from medfedvqa.evaluation import load_transcript
from medfedvqa.federation.flare.admin_client import AdminClient, open_session
from medfedvqa.federation.flare.job_folder import read_files
from medfedvqa.federation.flare.provision import ADMIN, SERVER
from medfedvqa.federation.flare.recipe import MedfedvqaRecipe, export_job
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job_signature import submitter
from medfedvqa.federation.serve import serve_job
from medfedvqa.models import shape_of
from medfedvqa.report.collect import evidence_of
from privacy.report import report_of

pytestmark = pytest.mark.slow

SITES = ("abdomen", "chest", "head")
ROUNDS = 3
JOB = short_job("prompt_pfl", {"rounds": ROUNDS, "local_epochs": 12, "batch_rows": 16, "blocks": 2})


@pytest.fixture(scope="module")
def federation(phantoms: Callable[..., Phantoms]) -> Phantoms:
    """The tests submit one folder again and again."""
    return phantoms(SITES, methods=["prompt_pfl"], repeats=100)


@pytest.fixture(scope="module")
def job_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job, as it is submitted."""
    folder = tmp_path_factory.mktemp("job") / "job"
    export_job(JOB, folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(federation: Phantoms, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Every array that the in-process engine's server saw in the same job."""
    folder = tmp_path_factory.mktemp("undisturbed")
    places = {name: {place: folder / name / place for place in ("state", "audit")} for name in SITES}
    configs = {name: federation.config(name).model_copy(update=places[name]) for name in SITES}
    serve_job(JOB, SITES, LocalEngine(configs, JOB, "undisturbed").call, folder, "local")
    return arrays(folder)


def arrays(out: Path) -> dict[str, np.ndarray]:
    """The arrays of a run's transcript by kind, site and tensor name."""
    transcript = load_transcript(out)
    return {
        f"{kind}/{site}/{name}": array
        for kind, sites in (("uploads", transcript.uploads), ("shared", transcript.shared))
        for site, tensors in sites.items()
        for name, array in tensors.items()
    }


def identical(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Same names, same bytes."""
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def examined(federation: Phantoms, site: str, out: Path) -> Examination:
    """The verdicts on a site's log, the bytes on its network among them, against what others hold."""
    others = [federation.kits / other / "audit" for other in SITES if other != site]
    return examine(federation.kits / site / "audit", site, [out, *others])


def settled(federation: Phantoms, site: str, job_id: str) -> Reconciliation:
    """The site's byte ledger once it has all counts of the job."""
    wait_for(lambda: any(entry.event is Event.CLOSE for entry in federation.log(site, job_id)))
    return reconcile(read(federation.kits / site / "audit"))


def job_process(federation: Phantoms, site: str) -> psutil.Process:
    """The process that runs a site's tasks."""
    (process,) = federation.processes(site, job=True)
    return process


def test_a_job_submitted_by_flares_own_command_logs_exactly_the_declared_bytes(
    federation: Phantoms, job_folder: Path, undisturbed: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """Bytes per round and site in the logs equal the exchange's; prompts equal the in-process engine's bit for bit.

    Each names who submitted the job. By the other sites' copies and the receipts in the downloaded results, each log is
    whole, complete and agreed on.
    """
    nvflare = Path(sys.executable).with_name("nvflare")
    command = [nvflare, "job", "submit", "-j", job_folder, "--startup-kit", federation.admin_kit, "--format", "json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    job_id = json.loads(answer.stdout)["data"]["job_id"]
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    out = federation.results(job_id)
    assert identical(arrays(out), undisturbed)
    results = federation.outcome(job_id)
    assert (results["status"], results["engine"]) == ("finished", "provisioned")
    exchange = create(JOB.method, JOB.options).exchange(shape_of(BACKBONE))
    expected = [("start", 1), *(("train", number) for number in range(2, ROUNDS + 1)), ("evaluate", ROUNDS)]
    for site in SITES:
        assert verify(federation.kits / site / "audit").ok
        log = federation.log(site, job_id)
        sent = {(entry.task, entry.round): entry.nbytes for entry in log if entry.outcome == Outcome.SENT}
        received = {(entry.task, entry.round): entry.nbytes for entry in log if entry.outcome == Outcome.ACCEPTED}
        assert sent == {(task, number): exchange.task(task).bytes_up for task, number in expected}
        assert received == {(task, number): exchange.task(task).bytes_down for task, number in expected}
        wait_for(lambda site=site: examined(federation, site, out).state is VerdictState.SHOWN)
        said = {part.name: part.said for part in examined(federation, site, out).consistency.parts}
        assert "cosigned by 3 parties" in said["checkpoints"] and f"all {ROUNDS + 1} messages" in said["receipts"]
        assert not any(entry.event is Event.FINDING for entry in log)
    assert_submitter_is_named(federation, job_id, tmp_path)
    assert_reported(federation, job_id, out)


def assert_submitter_is_named(federation: Phantoms, job_id: str, folder: Path) -> None:
    """By the fingerprint of the administrator's certificate; by none, had a file of the job been changed since."""
    pem = (federation.admin_kit / "startup" / "client.crt").read_bytes()
    fingerprint = x509.load_pem_x509_certificate(pem).fingerprint(SHA256()).hex()
    for site in SITES:
        log = federation.log(site, job_id)
        assert {entry.actor for entry in log if entry.event in (Event.OPEN, Event.RELEASE)} == {fingerprint}
    root = federation.kits / "head" / "startup" / "rootCA.pem"
    app = shutil.copytree(federation.kits / "head" / job_id / "app_head", folder / "app")
    assert submitter(read_files(app), root) == fingerprint
    with (app / "config" / "config_fed_client.json").open("a") as file:
        file.write(" ")
    assert submitter(read_files(app), root) == ""


def assert_reported(federation: Phantoms, job_id: str, out: Path) -> None:
    """A kit tells of its last job from its own site.yml while its client runs, bytes on the network included."""
    others = [out, federation.kits / "head" / "audit"]
    config = config_of(federation.kits / "chest" / "local" / "site.yml")
    report = report_of(evidence_of(config, None, out / "results.json", None, None, others, network=True))
    told = report.sections
    assert (told.identity.job, told.identity.state, told.claim.made) == (job_id, "closed", False)
    sent = [one.nbytes for one in federation.log("chest", job_id) if one.outcome == Outcome.SENT]
    assert told.egress.nbytes == sum(sent)
    assert {entry.record["event"] for entry in report.evidence.log.entries} >= {"open", "release", "wire", "close"}
    states = {rule.rule: rule.state for rule in told.verdicts.rules}
    assert {states[rule] for rule in ("log", "all of it", "whole log", "agreement", "settings")} == {"shown"}


def test_killed_job_processes_come_back_and_no_round_is_lost_or_counted_twice(
    federation: Phantoms, undisturbed: dict[str, np.ndarray]
) -> None:
    """SIGKILL inside a task at one site and between tasks at another leaves the result bit for bit what it is. The job
    is submitted from Python, by the recipe in FLARE's production environment."""
    env = ProdEnv(startup_kit_location=str(federation.admin_kit), login_timeout=60.0, username=ADMIN)
    job_id = MedfedvqaRecipe(JOB).execute(env).get_job_id()
    wait_for(lambda: federation.logged("chest", job_id, Event.RECEIVE, 2), 0.02)
    assert not federation.logged("chest", job_id, Event.RELEASE, 2)
    inside = job_process(federation, "chest")
    # With chest held up, abdomen answers and then waits for the next round: it is between tasks.
    inside.send_signal(signal.SIGSTOP)
    wait_for(lambda: federation.logged("abdomen", job_id, Event.RELEASE, 2))
    between = job_process(federation, "abdomen")
    for process in (inside, between):
        process.kill()
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    assert identical(arrays(federation.results(job_id)), undisturbed)
    results = federation.outcome(job_id)
    assert [record["round"] for record in results["rounds"]] == list(range(1, ROUNDS + 1))
    assert "Traceback" not in (federation.kits / "localhost" / "process.log").read_text()
    assert all(verify(federation.kits / site / "audit").ok for site in SITES)
    assert all(settled(federation, site, job_id).ok for site in SITES)


@pytest.mark.release
def test_a_site_whose_client_and_job_process_are_killed_takes_the_job_up_again_when_it_is_started(
    federation: Phantoms, job_folder: Path, undisturbed: dict[str, np.ndarray]
) -> None:
    """As when a hospital's machine restarts in the middle of a round."""
    job_id = federation.submit(job_folder)
    wait_for(lambda: federation.logged("head", job_id, Event.RECEIVE, 2))
    federation.kill("head")
    federation.start("head")
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    assert identical(arrays(federation.results(job_id)), undisturbed)
    wait_for(lambda: not (federation.kits / "head" / job_id / "launch.json").exists())
    # Also what the killed processes had counted and not yet logged.
    assert settled(federation, "head", job_id).ok


def test_an_aborted_job_ends_and_its_processes_stay_down(federation: Phantoms, job_folder: Path) -> None:
    """A site does not start again what was ended on purpose."""
    job_id = federation.submit(job_folder)
    wait_for(lambda: federation.logged("chest", job_id, Event.RECEIVE, 1))
    federation.abort(job_id)
    assert federation.wait(job_id, PATIENCE) == "FINISHED:ABORTED"
    # What a restart would need goes once the process is gone, so that none begins afterwards.
    wait_for(lambda: not list(federation.kits.glob(f"*/{job_id}/launch.json")))
    assert not any(federation.processes(site, job=True) for site in SITES)


def test_an_unexpected_error_at_a_site_leaves_it_by_its_name_only(
    federation: Phantoms, job_folder: Path, tmp_path: Path
) -> None:
    """A path that the error's own text quotes does not reach the server."""
    blocked = tmp_path / "secret-folder"
    blocked.write_text("not a folder")
    with federation.changed("chest", state=str(blocked / "state")):
        job_id = federation.submit(job_folder)
        assert federation.wait(job_id, PATIENCE) == "FINISHED:EXECUTION_EXCEPTION"
    failure = federation.outcome(job_id)["failure"]
    assert failure == f"site 'chest' stopped the job: {Refusal.FAILED.sentence}"
    server = federation.folder / "results" / job_id
    assert not [path for path in server.rglob("*") if path.is_file() and b"secret-folder" in path.read_bytes()]


def test_a_server_that_pauses_for_longer_than_flare_waits_is_neither_asked_nor_logged_into_again(
    federation: Phantoms,
) -> None:
    """FLARE's five seconds are not enough for the server of a busy machine."""
    logins = []

    def login(*arguments: Any, **options: Any) -> Session:
        logins.append(open_session(*arguments, **options))
        return logins[-1]

    (server,) = federation.processes(SERVER, job=False)
    with closing(AdminClient(ADMIN, federation.admin_kit, PATIENCE, login)) as administrator:
        before = {site.name for site in administrator.sites()}
        resuming = Timer(8.0, server.resume)
        server.suspend()
        resuming.start()
        try:
            assert {site.name for site in administrator.sites()} == before == set(SITES)
        finally:
            resuming.join()
    assert len(logins) == 1
