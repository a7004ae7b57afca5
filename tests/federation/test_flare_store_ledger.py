"""Two organ sites of one store in a provisioned federation: what one spends is spent at the other."""

from contextlib import closing
from pathlib import Path

import pytest
from stores import make_store

from audits import Event, Refusal, read, verify
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.job_budget import check_ledger
from medfedvqa.federation.site_config import site_yaml
from medfedvqa.ingest.ledger_binding import check_binding
from privacy import Ledger, spent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

SITES = ("abdomen", "chest")
BACKBONE = "medclip@random"
OPTIONS = {"rounds": 1, "local_epochs": 2, "local_unit": "batches", "batch_rows": 16, "blocks": 1, "hidden": 16}
JOB = JobSpec.from_dict(
    {
        "method": "prompt_pfl",
        "options": {**OPTIONS, "local_baseline": False, "answers": "closed"},
        "data": "store",
        "backbone": BACKBONE,
        "dp": {"noise": 2.0, "count_noise": 20.0, "sample_rate": 0.3, "patient_rows": 4, "physical_patients": 5},
    }
)
PATIENCE = 300.0  # seconds


def cost(times: int) -> float:
    """What a patient has spent who was in the whole job so many times."""
    assert JOB.dp is not None
    return spent([event for one in JOB.build().plan() for event in one.events] * times, JOB.dp.delta).epsilon


def test_a_job_at_both_sites_uses_up_the_budget_of_both(tmp_path: Path, random_backbone: Path) -> None:
    """The limit has room for one job at two sites. The next job is refused by both of them, by the code alone."""
    store = make_store(tmp_path / "store", {"chest": range(8), "abdomen": range(4, 12)})
    ledger, paths = tmp_path / "store.ledger", {}
    for name in SITES:
        facts = {
            "reader": "store",
            "root": str(store),
            "min_count": 1,
            "organ": name,
            "methods": ["prompt_pfl"],
            "repeats": 100,
        }
        budget = {"require_dp": True, "require_fresh": False, "max_epsilon": 1.001 * cost(2), "ledger": str(ledger)}
        places = {place: f"../{place}" for place in ("state", "audit")}
        paths[name] = tmp_path / f"{name}.yml"
        paths[name].write_text(site_yaml(**facts, **budget, **places, backbones={BACKBONE: str(random_backbone)}))
    export_job(JOB, tmp_path / "job")
    with LoopbackFederation(tmp_path / "federation", paths) as federation:
        first = federation.submit(tmp_path / "job")
        assert federation.wait(first, PATIENCE) == "FINISHED:COMPLETED"
        second = federation.submit(tmp_path / "job")
        assert federation.wait(second, PATIENCE) != "FINISHED:COMPLETED"
        audits = {name: federation.kits / name / "audit" for name in SITES}
    refused = [entry for audit in audits.values() for entry in read(audit) if entry.event is Event.REFUSAL]
    assert refused and {entry.job for entry in refused} == {second}
    assert {(entry.admission or {})["code"] for entry in refused} == {Refusal.BUDGET}
    with closing(Ledger(ledger, "chest")) as opened:
        opened.verify()
        assert opened.sites == set(SITES) and check_binding(store, ledger)
        [worst] = {round(account.spent.epsilon, 9) for account in opened.accounts(JOB.dp.delta)}
        assert worst == pytest.approx(cost(2), abs=1e-8)
        for audit in audits.values():
            check_ledger(opened, audit)
            assert verify(audit).ok
