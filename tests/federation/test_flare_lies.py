"""A provisioned federation in which one site runs code of its own: it sends weights and accuracies of its choice."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from audits import Event, Outcome, read
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import site_yaml

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

LIAR, HONEST = "chest", ("abdomen", "head")
BACKBONE = "medclip@random"
OPTIONS = {"rounds": 2, "local_epochs": 1, "local_unit": "batches", "batch_rows": 4, "blocks": 2, "hidden": 16}
PATIENCE = 300.0  # seconds
OUTSIDE = "tensor '{}' holds values outside of its declared bounds {}"
UNDECLARED = "1 of the message's tensors are not declared for this task"
CASES = [
    ("prompt_pfl", "accuracy not a number", "tensor 'accuracy' holds values that are not finite"),
    ("prompt_pfl", "accuracy 1e9", OUTSIDE.format("accuracy", "0 to 1")),
    ("fedavg", "weight 1e30", "tensor 'train_rows' does not have its declared dtype int64"),
    ("fedavg", "weight 1e9", OUTSIDE.format("train_rows", "0 to 1e+06")),
    ("fedavg", "weight negative", OUTSIDE.format("train_rows", "0 to 1e+06")),
    ("fedavg", "an extra name", UNDECLARED),
    ("fedavg", "text for an array", "is not a plain numpy array of numbers"),
]
FIRST = {"accuracy not a number", "weight 1e9"}
"""One lie to each method; the others are told before a release."""


class LyingFederation(LoopbackFederation):
    """A federation with `lies` in one site's processes."""

    def start(self, name: str) -> None:
        if name == LIAR:
            path = self.kits / name / "local" / "resources.json.default"
            resources = json.loads(path.read_text())
            resources["components"].append(
                {"id": "lies", "path": "lies.SiteLies", "args": {"folder": str(self.folder)}}
            )
            path.write_text(json.dumps(resources))
        super().start(name)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> Iterator[LyingFederation]:
    folder = tmp_path_factory.mktemp("federation")
    paths = {}
    for name in (LIAR, *HONEST):
        paths[name] = folder / f"{name}.yml"
        own = {place: f"../{place}" for place in ("state", "audit", "ledger")}
        facts = {"reader": "phantom", "organ": name, "methods": ["prompt_pfl", "fedavg"], **own}
        facts |= {"repeats": 100}  # the tests submit one definition once for each lie
        paths[name].write_text(site_yaml(**facts, backbones={BACKBONE: str(random_backbone)}))
    places = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with LyingFederation(folder, paths, {"PYTHONPATH": os.pathsep.join(places)}) as federation:
        yield federation


def run(federation: LyingFederation, folder: Path, method: str) -> tuple[str, str, dict[str, object]]:
    """Runs a job to its end; its id, FLARE's word for how it ended, and its results."""
    options = OPTIONS | ({"local_baseline": False} if method == "prompt_pfl" else {})
    export_job(
        JobSpec.from_dict({"method": method, "options": options, "data": "phantom", "backbone": BACKBONE}), folder
    )
    job_id = federation.submit(folder)
    status = federation.wait(job_id, PATIENCE)
    return job_id, status, json.loads((federation.results(job_id) / "results.json").read_text())


@pytest.mark.parametrize(
    ("method", "lie", "reason"),
    [pytest.param(*case, id=case[1], marks=() if case[1] in FIRST else pytest.mark.release) for case in CASES],
)
def test_a_lie_on_the_wire_stops_the_job_with_the_sites_name_and_a_fixed_reason(
    federation: LyingFederation, tmp_path: Path, method: str, lie: str, reason: str
) -> None:
    """The site's gate let an honest answer pass, which its own code changed. No model moves: no site is sent a mean or
    a mixture, and the server's receipts say that the answer was refused."""
    order = federation.folder / "lie"
    order.write_text(lie)
    try:
        job_id, status, results = run(federation, tmp_path / "job", method)
    finally:
        order.unlink()
    assert status == "FINISHED:EXECUTION_EXCEPTION" and results["status"] == "failed"
    failure = str(results["failure"])
    assert failure.startswith(f"round 1: site '{LIAR}' sent a message that the job does not declare: ")
    assert failure.endswith(reason) and "patient-17" not in failure
    for site in HONEST:
        entries = [entry for entry in read(federation.kits / site / "audit") if entry.job == job_id]
        assert {entry.task for entry in entries if entry.event is Event.RECEIVE} == {"start"}
    receipts = [entry for entry in read(federation.results(job_id) / "receipts") if entry.peer == LIAR]
    assert [(entry.outcome, str(entry.reason).endswith(reason)) for entry in receipts] == [(Outcome.REFUSED, True)]


def test_the_next_honest_job_runs_to_its_end(federation: LyingFederation, tmp_path: Path) -> None:
    """A refused answer hurts no later job."""
    _, status, results = run(federation, tmp_path / "job", "fedavg")
    assert status == "FINISHED:COMPLETED" and results["status"] == "finished"
