"""The server's receipts of what sites answer on shares, against the sites' own logs."""

from pathlib import Path

import pytest
from in_process import Engine
from untrained import FIVE, Averaged, Make, Mixed

from audits import VerdictState, examine
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.server_receipts import ServerReceipts

CASES = [
    (True, "before start/mean"),
    (True, "before start/mix"),
    ("crypten", ""),
    ("crypten", "before start/mean"),
    ("crypten", "after start/mean"),
]


@pytest.mark.parametrize(("secagg", "moment"), CASES)
def test_every_receipt_is_of_a_message_in_the_sites_log(
    job_on_shares: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secagg: bool | str, moment: str
) -> None:
    """Also of the answers by which sites say that another one broke an attempt, and of the sums that members open. No
    answer of a site that dies with it arrives, and so it has no receipt."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 2.0)
    method = Mixed if moment.endswith("mix") else Averaged
    configs, job = job_on_shares(method, FIVE, rounds=2, secagg=secagg)
    notary = ServerReceipts(job.exchange(), "job", FIVE, tmp_path / "keys", tmp_path / "out")
    engine = Engine(configs, job)
    if moment:
        when, task = moment.split()
        getattr(engine, when)[task] = {"a"}
    results = serve_job(job, FIVE, engine.call, tmp_path / "out", "local", receipts=notary)
    engine.local.close()
    notary.close()
    assert results["status"] == "finished" and any("broke off" in note for note in results["notes"]) is bool(moment)
    for site in FIVE:
        parts = examine(configs[site].audit, site, (tmp_path / "out",), network=False).consistency.parts
        assert {part.state for part in parts if part.name == "receipts"} == {VerdictState.SHOWN}, site
