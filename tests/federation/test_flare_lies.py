"""A provisioned federation in which one site runs code of its own: it sends weights and accuracies of its choice."""

from collections.abc import Callable
from pathlib import Path

import pytest
from lies import FIRST, LIES, MARKER, NO_ARRAY
from phantoms import Phantoms, short_job

from audits import Event, Outcome, read

pytestmark = pytest.mark.slow

LIAR, HONEST = "chest", ("abdomen", "head")
ROUNDS = {"rounds": 2, "blocks": 2}
CASES = {name: "prompt_pfl" for name in ("accuracy not a number", "accuracy 1e9")}
CASES |= dict.fromkeys(("weight 1e30", "weight 1e9", "weight negative", "an extra name", "text for an array"), "fedavg")
IN_EVERY_TIER = {"accuracy not a number", "weight 1e9"}
"""One lie to each method; the others are told before a release."""


@pytest.fixture(scope="module")
def federation(phantoms: Callable[..., Phantoms]) -> Phantoms:
    """The tests submit one definition once for each lie."""
    facts = {"methods": ["prompt_pfl", "fedavg"], "repeats": 100}
    return phantoms((LIAR, *HONEST), attackers={LIAR: "lies.SiteLies"}, **facts)


@pytest.mark.parametrize(
    "lie", [pytest.param(name, marks=() if name in IN_EVERY_TIER else pytest.mark.release) for name in CASES]
)
def test_a_lie_on_the_wire_stops_the_job_with_the_sites_name_and_a_fixed_reason(
    federation: Phantoms, tmp_path: Path, lie: str
) -> None:
    """The site's gate let an honest answer pass, which its own code changed. No model moves: no site is sent a mean or
    a mixture, and the server's receipts say that the answer was refused."""
    name = LIES[lie].named({"train_rows": None})
    # The first of a method's arrays may be any.
    reason = NO_ARRAY.partition("'{name}'")[2] if LIES[lie].name == FIRST else LIES[lie].reason.format(name=name)
    order = federation.folder / "lie"
    order.write_text(lie)
    try:
        job_id = federation.run(short_job(CASES[lie], ROUNDS), tmp_path / "job")
    finally:
        order.unlink()
    results = federation.outcome(job_id)
    assert (federation.status(job_id), results["status"]) == ("FINISHED:EXECUTION_EXCEPTION", "failed")
    failure = str(results["failure"])
    assert failure.startswith(f"round 1: site '{LIAR}' sent a message that the job does not declare: ")
    assert failure.endswith(reason) and MARKER not in failure
    for site in HONEST:
        assert {entry.task for entry in federation.log(site, job_id) if entry.event is Event.RECEIVE} == {"start"}
    receipts = [entry for entry in read(federation.results(job_id) / "receipts") if entry.peer == LIAR]
    assert [(entry.outcome, str(entry.reason).endswith(reason)) for entry in receipts] == [(Outcome.REFUSED, True)]


def test_the_next_honest_job_runs_to_its_end(federation: Phantoms, tmp_path: Path) -> None:
    """A refused answer hurts no later job."""
    job_id = federation.run(short_job("fedavg", ROUNDS), tmp_path / "job")
    assert federation.status(job_id) == "FINISHED:COMPLETED"
    assert federation.outcome(job_id)["status"] == "finished"
