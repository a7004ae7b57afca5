"""A provisioned federation in which one site runs code of its own: it sends weights and accuracies of its choice."""

from collections.abc import Callable
from pathlib import Path

import pytest
from phantoms import Phantoms, short_job
from taps import add_component

from audits import Event, Outcome, read

pytestmark = pytest.mark.slow

LIAR, HONEST = "chest", ("abdomen", "head")
ROUNDS = {"rounds": 2, "blocks": 2}
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


class LyingFederation(Phantoms):
    """A federation with `lies` in one site's processes."""

    modules = True

    def start(self, name: str) -> None:
        if name == LIAR:
            add_component(
                self.kits / name, {"id": "lies", "path": "lies.SiteLies", "args": {"folder": str(self.folder)}}
            )
        super().start(name)


@pytest.fixture(scope="module")
def federation(phantoms: Callable[..., Phantoms]) -> Phantoms:
    """The tests submit one definition once for each lie."""
    return phantoms((LIAR, *HONEST), LyingFederation, methods=["prompt_pfl", "fedavg"], repeats=100)


@pytest.mark.parametrize(
    ("method", "lie", "reason"),
    [pytest.param(*case, id=case[1], marks=() if case[1] in FIRST else pytest.mark.release) for case in CASES],
)
def test_a_lie_on_the_wire_stops_the_job_with_the_sites_name_and_a_fixed_reason(
    federation: Phantoms, tmp_path: Path, method: str, lie: str, reason: str
) -> None:
    """The site's gate let an honest answer pass, which its own code changed. No model moves: no site is sent a mean or
    a mixture, and the server's receipts say that the answer was refused."""
    order = federation.folder / "lie"
    order.write_text(lie)
    try:
        job_id = federation.run(short_job(method, ROUNDS), tmp_path / "job")
    finally:
        order.unlink()
    results = federation.outcome(job_id)
    assert (federation.status(job_id), results["status"]) == ("FINISHED:EXECUTION_EXCEPTION", "failed")
    failure = str(results["failure"])
    assert failure.startswith(f"round 1: site '{LIAR}' sent a message that the job does not declare: ")
    assert failure.endswith(reason) and "patient-17" not in failure
    for site in HONEST:
        assert {entry.task for entry in federation.log(site, job_id) if entry.event is Event.RECEIVE} == {"start"}
    receipts = [entry for entry in read(federation.results(job_id) / "receipts") if entry.peer == LIAR]
    assert [(entry.outcome, str(entry.reason).endswith(reason)) for entry in receipts] == [(Outcome.REFUSED, True)]


def test_the_next_honest_job_runs_to_its_end(federation: Phantoms, tmp_path: Path) -> None:
    """A refused answer hurts no later job."""
    job_id = federation.run(short_job("fedavg", ROUNDS), tmp_path / "job")
    assert federation.status(job_id) == "FINISHED:COMPLETED"
    assert federation.outcome(job_id)["status"] == "finished"
