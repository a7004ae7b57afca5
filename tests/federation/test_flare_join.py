"""A hospital joins a provisioned federation: real kits, mutual TLS, a server that keeps the model of an earlier job."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from audits import Event, Outcome, Refusal, read, verify
from medfedvqa.answering.kept_run import load_kept
from medfedvqa.core import EVALUATE
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.shared_model import MODEL, MODELS, SharedModel
from medfedvqa.federation.site_config import site_yaml

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

SITES = {"abdomen": "site-001", "chest": "site-002", "new": "site-003"}
TRAINING = ("abdomen", "chest")
BACKBONE = "medclip@random"
OPTIONS = {"rounds": 3, "schedule": "stepwise", "tuning": "classifier", "batch_rows": 16, "hidden": 16}
JOB = JobSpec.from_dict({"method": "fedavg", "options": OPTIONS, "data": "phantom", "backbone": BACKBONE})
PATIENCE = 600.0  # seconds


def site_file(backbone: Path, name: str, **changes: object) -> str:
    """The new hospital allows to join, and no training for others."""
    facts = {"reader": "phantom", "organ": SITES[name], "methods": ["join"] if name == "new" else ["fedavg"]}
    facts |= {"state": "../state", "audit": "../audit", "backbones": {BACKBONE: str(backbone)}, "min_count": 1}
    return site_yaml(**{**facts, **changes})


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> Iterator[LoopbackFederation]:
    """Two hospitals that train, one that does not, and a server, all on the loopback interface."""
    folder = tmp_path_factory.mktemp("federation")
    paths = {}
    for name in SITES:
        paths[name] = folder / f"{name}.yml"
        paths[name].write_text(site_file(random_backbone, name))
    with LoopbackFederation(folder, paths) as federation:
        yield federation


@pytest.fixture(scope="module")
def trained(federation: LoopbackFederation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The downloaded results of a job of the two hospitals that train."""
    folder = tmp_path_factory.mktemp("job") / "job"
    terms = federation.terms().model_copy(update={"sites": TRAINING})
    export_job(JOB.model_copy(update={"terms": terms}), folder)
    job_id = federation.submit(folder)
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    return federation.results(job_id)


def joined(federation: LoopbackFederation, trained: Path, out: Path, *arguments: str) -> str:
    """The id of a job that `medfedvqa join` makes of these results for the new hospital, once it is over."""
    command = [Path(sys.executable).with_name("medfedvqa"), "join", trained, "--job-folder", out, "--site", "new"]
    subprocess.run([*command, "--kit", federation.admin_kit, *arguments], check=True, timeout=PATIENCE)
    job_id = federation.submit(out)
    federation.wait(job_id, PATIENCE)
    return job_id


def test_a_hospital_joins_from_the_servers_own_copy_and_its_model_answers(
    federation: LoopbackFederation, trained: Path, tmp_path: Path
) -> None:
    """It gets the model that the others trained, sends counts alone, and keeps one that answers; others hear nothing.

    The server reads it by the digest that the job names, and its copy is that of the downloaded results.
    """
    model = SharedModel.read(trained / MODEL)
    (kept,) = (federation.kits / SERVER / MODELS).iterdir()
    assert kept.name == f"{model.digest}.npz" and kept.read_bytes() == (trained / MODEL).read_bytes()
    job_id = joined(federation, trained, tmp_path / "join", "--finish", "2")
    assert federation.status(job_id) == "FINISHED:COMPLETED"
    log = [entry for entry in read(federation.kits / "new" / "audit") if entry.job == job_id]
    sent = [entry for entry in log if entry.tensors]
    messages = [(entry.task, entry.outcome, {tensor.kind for tensor in entry.tensors}) for entry in sent]
    assert messages == [(EVALUATE, Outcome.ACCEPTED, {"parameters"}), (EVALUATE, Outcome.SENT, {"statistic"})]
    assert verify(federation.kits / "new" / "audit").ok
    assert not any(entry.job == job_id for name in TRAINING for entry in read(federation.kits / name / "audit"))
    out = federation.results(job_id)
    results = json.loads((out / "results.json").read_text())
    assert (results["status"], [*results["sites"]]) == ("finished", ["new"])
    site = load_kept(out, str(federation.kits / "new" / "local" / "site.yml"))
    data = site.own_data()
    answering = site.job.build().answering(site.site(data), site.state)
    right = answering.probabilities(site.site(data), data.test).argmax(dim=1)
    answers = [answering.answers[place] for place in right.tolist()]
    truth = [data.answers[place] for place in data.test.answers.tolist()]
    entry = results["sites"]["new"]
    assert sum(a == b for a, b in zip(answers, truth, strict=True)) == entry["kept_accuracy"]["correct"]


def test_a_hospital_that_does_not_allow_it_refuses_and_receives_nothing(
    federation: LoopbackFederation, trained: Path, tmp_path: Path, random_backbone: Path
) -> None:
    """Its own site.yml decides: by the method, and by the kind of what would come down."""
    own = federation.kits / "new" / "local" / "site.yml"
    own.write_text(site_file(random_backbone, "new", kinds=["statistic", "public"]))
    try:
        job_id = joined(federation, trained, tmp_path / "join")
    finally:
        own.write_text(site_file(random_backbone, "new"))
    assert federation.status(job_id) == "FINISHED:EXECUTION_EXCEPTION"
    log = [entry for entry in read(federation.kits / "new" / "audit") if entry.job == job_id]
    (refusal,) = [entry for entry in log if entry.event is Event.REFUSAL]
    assert refusal.admission is not None and refusal.admission["code"] == Refusal.KIND
    assert not any(entry.tensors for entry in log)


def test_a_server_that_no_longer_has_the_model_says_so(
    federation: LoopbackFederation, trained: Path, tmp_path: Path
) -> None:
    """Whoever keeps the server deletes the file to end what can be joined; the job ends with a sentence."""
    for path in (federation.kits / SERVER / MODELS).iterdir():
        path.unlink()
    job_id = joined(federation, trained, tmp_path / "join")
    assert federation.status(job_id) == "FINISHED:EXECUTION_EXCEPTION"
    results = json.loads((federation.results(job_id) / "results.json").read_text())
    assert results["status"] == "failed" and "keeps no model of the digest" in results["failure"]
