"""A hospital joins a provisioned federation: real kits, mutual TLS, a server that keeps the model of an earlier job."""

from collections.abc import Callable
from pathlib import Path

import pytest
from phantoms import PATIENCE, Phantoms, short_job
from typer.testing import CliRunner

from audits import Outcome, Refusal, verify
from medfedvqa.answering.kept_run import load_kept
from medfedvqa.cli import app
from medfedvqa.core import EVALUATE
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.shared_model import MODEL, MODELS, SharedModel

pytestmark = pytest.mark.slow

SITES, TRAINING = ("abdomen", "chest", "new"), ("abdomen", "chest")
JOB = short_job("fedavg", {"rounds": 3, "schedule": "stepwise", "tuning": "classifier", "batch_rows": 16})


@pytest.fixture(scope="module")
def federation(phantoms: Callable[..., Phantoms]) -> Phantoms:
    """Two hospitals that train, one that allows to join and no training for others, and a server."""
    made = phantoms(SITES, methods=["fedavg"], min_count=1)
    (made.kits / "new" / "local" / "site.yml").write_text(made.site_file("new", methods=["join"]))
    return made


@pytest.fixture(scope="module")
def trained(federation: Phantoms, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The downloaded results of a job of the two hospitals that train."""
    job_id = federation.run(JOB, tmp_path_factory.mktemp("job") / "job", *TRAINING)
    assert federation.status(job_id) == "FINISHED:COMPLETED"
    return federation.results(job_id)


def joined(federation: Phantoms, trained: Path, out: Path, *arguments: str) -> str:
    """The id of a job that `medfedvqa join` makes of these results for the new hospital, once it is over."""
    command = ["join", trained, "--job-folder", out, "--site", "new", "--kit", federation.admin_kit, *arguments]
    done = CliRunner().invoke(app, [str(word) for word in command])
    assert done.exit_code == 0, done.output
    job_id = federation.submit(out)
    federation.wait(job_id, PATIENCE)
    return job_id


def test_a_hospital_joins_from_the_servers_own_copy_and_its_model_answers(
    federation: Phantoms, trained: Path, tmp_path: Path
) -> None:
    """It gets the model that the others trained, sends counts alone, and keeps one that answers; others hear nothing.

    The server reads it by the digest that the job names, and its copy is that of the downloaded results.
    """
    model = SharedModel.read(trained / MODEL)
    (kept,) = (federation.kits / SERVER / MODELS).iterdir()
    assert kept.name == f"{model.digest}.npz" and kept.read_bytes() == (trained / MODEL).read_bytes()
    job_id = joined(federation, trained, tmp_path / "join", "--finish", "2")
    assert federation.status(job_id) == "FINISHED:COMPLETED"
    log = federation.log("new", job_id)
    sent = [entry for entry in log if entry.tensors]
    messages = [(entry.task, entry.outcome, {tensor.kind for tensor in entry.tensors}) for entry in sent]
    assert messages == [(EVALUATE, Outcome.ACCEPTED, {"parameters"}), (EVALUATE, Outcome.SENT, {"statistic"})]
    assert verify(federation.kits / "new" / "audit").ok
    assert not any(federation.log(name, job_id) for name in TRAINING)
    out, results = federation.results(job_id), federation.outcome(job_id)
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
    federation: Phantoms, trained: Path, tmp_path: Path
) -> None:
    """Its own site.yml decides: by the method, and by the kind of what would come down."""
    with federation.changed("new", methods=["join"], kinds=["statistic", "public"]):
        job_id = joined(federation, trained, tmp_path / "join")
    assert federation.status(job_id) == "FINISHED:EXECUTION_EXCEPTION"
    log = federation.log("new", job_id)
    assert federation.codes("new", job_id) == [Refusal.KIND]
    assert not any(entry.tensors for entry in log)


def test_hospitals_train_again_from_the_servers_own_copy(federation: Phantoms, trained: Path, tmp_path: Path) -> None:
    """A further job starts from the model that they trained before: it comes down first, by the job's digest."""
    model = SharedModel.read(trained / MODEL)
    job_id = federation.run(model.starting(JOB), tmp_path / "job", *TRAINING)
    assert federation.status(job_id) == "FINISHED:COMPLETED"
    for name in TRAINING:
        first = next(entry for entry in federation.log(name, job_id) if entry.tensors)
        assert (first.task, first.outcome) == ("start", Outcome.ACCEPTED)
        assert {tensor.name for tensor in first.tensors} == {*model.tensors}


def test_a_server_that_no_longer_has_the_model_says_so(federation: Phantoms, trained: Path, tmp_path: Path) -> None:
    """Whoever keeps the server deletes the file to end what can be joined; the job ends with a sentence."""
    for path in (federation.kits / SERVER / MODELS).iterdir():
        path.unlink()
    job_id = joined(federation, trained, tmp_path / "join")
    assert federation.status(job_id) == "FINISHED:EXECUTION_EXCEPTION"
    results = federation.outcome(job_id)
    assert results["status"] == "failed" and "has no model with the digest" in results["failure"]
