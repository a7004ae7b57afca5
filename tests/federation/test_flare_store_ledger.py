"""Two organ sites of one store in a provisioned federation: what one spends is spent at the other."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from in_process import cost
from phantoms import Phantoms, short_job
from stores import make_store

from audits import Event, Refusal, read, verify
from medfedvqa.federation.job_budget import check_ledger
from medfedvqa.ingest.ledger_binding import check_binding
from privacy import Ledger

pytestmark = pytest.mark.slow

SITES = ("abdomen", "chest")
DP = {"noise": 2.0, "count_noise": 20.0, "sample_rate": 0.3, "patient_rows": 4, "physical_patients": 5}
OPTIONS = {"local_epochs": 2, "batch_rows": 16, "answers": "closed"}
JOB = short_job("prompt_pfl", OPTIONS, data="store", dp=DP)


def test_a_job_at_both_sites_uses_up_the_budget_of_both(phantoms: Callable[..., Phantoms], tmp_path: Path) -> None:
    """The limit has room for one job at two sites. The next job is refused by both of them, by the code alone."""
    store = make_store(tmp_path / "store", {"chest": range(8), "abdomen": range(4, 12)})
    ledger = tmp_path / "store.ledger"
    facts = {"reader": "store", "root": str(store), "min_count": 1, "methods": ["prompt_pfl"], "repeats": 100}
    budget = {"require_dp": True, "require_fresh": False, "max_epsilon": 1.001 * cost(JOB, 2), "ledger": str(ledger)}
    federation = phantoms(SITES, **facts, **budget)
    first, second = (federation.run(JOB, tmp_path / name) for name in ("first", "second"))
    assert federation.status(first) == "FINISHED:COMPLETED" != federation.status(second)
    audits = {name: federation.kits / name / "audit" for name in SITES}
    refused = [entry for audit in audits.values() for entry in read(audit) if entry.event is Event.REFUSAL]
    assert refused and {entry.job for entry in refused} == {second}
    assert {(entry.admission or {})["code"] for entry in refused} == {Refusal.BUDGET}
    with closing(Ledger(ledger, "chest")) as opened:
        opened.verify()
        assert opened.sites == set(SITES) and check_binding(store, ledger)
        [worst] = {round(account.spent.epsilon, 9) for account in opened.accounts(JOB.dp.delta)}
        assert worst == pytest.approx(cost(JOB, 2), abs=1e-8)
        for audit in audits.values():
            check_ledger(opened, audit)
            assert verify(audit).ok
