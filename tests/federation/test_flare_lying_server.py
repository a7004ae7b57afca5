"""A provisioned federation whose server lies: it goes back, chooses numbers of rounds, and asks more than it may."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from flare_liar import ATTACK, OUTCOME
from in_process import cost
from lying_server import charged
from phantoms import Phantoms
from server_lies import LIES

from audits import verify
from medfedvqa.data.phantom import organs
from medfedvqa.federation.flare.provision import SERVER

pytestmark = pytest.mark.slow

SITES = organs(4)


@pytest.fixture(scope="module")
def federation(phantoms: Callable[..., Phantoms]) -> Phantoms:
    """A server that plays attacks in the place of jobs, and four sites that know each other's keys and want sums of
    three sites at least."""
    attackers = {SERVER: "flare_liar.LyingWorkflow"}
    facts = {"methods": ["prompt_pfl", "fedavg"], "min_sites": 3}
    return phantoms(SITES, attackers=attackers, introduced=True, **facts)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "rewound_sum" else pytest.mark.release) for name in LIES]
)
def test_a_server_that_lies_gets_nothing(federation: Phantoms, tmp_path: Path, name: str) -> None:
    """Sites refuse what is out of order, each with one entry in a log that verifies. The ledgers of a private job have
    spent what it planned, to the last digit."""
    lie = LIES[name]
    (federation.folder / ATTACK).write_text(name)
    (federation.folder / OUTCOME).unlink(missing_ok=True)
    job_id = federation.run(lie.job, tmp_path / "job", *SITES)
    assert json.loads((federation.folder / OUTCOME).read_text()) == lie.outcome
    for site in SITES[: lie.refusing]:
        assert federation.codes(site, job_id) == ["order"] and verify(federation.kits / site / "audit").ok
    if lie.job.dp is not None:
        for site in SITES:
            spent, _ = charged(federation.config(site), lie.job.dp.delta)
            assert spent == pytest.approx(cost(lie.job), abs=1e-9)
