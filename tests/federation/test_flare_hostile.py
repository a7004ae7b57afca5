"""A provisioned federation whose server runs old jobs again, and whose jobs are aborted at any moment."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import budget
from phantoms import PATIENCE, Phantoms, short_job, wait_for

from audits import Event, Refusal, VerdictState, examine, read, verify
from medfedvqa.data.phantom import organs
from medfedvqa.federation.site_config import SiteConfig

pytestmark = pytest.mark.slow

SITES = organs(3)
DP = {"noise": 8.0, "count_noise": 40.0, "sample_rate": 0.3, "patient_rows": 4}
JOB = short_job("prompt_pfl", {"rounds": 2, "blocks": 2, "answers": "closed"}, dp=DP)
ABORTS = int(os.environ.get("MEDFEDVQA_ABORTS", "3"))
"""At how many random moments a job is aborted."""


@pytest.fixture(scope="module")
def federation(phantoms: Callable[..., Phantoms]) -> Phantoms:
    return phantoms(SITES, methods=["prompt_pfl"], data_refusals=100)


@pytest.fixture(scope="module")
def configs(federation: Phantoms) -> dict[str, SiteConfig]:
    return {name: federation.config(name) for name in SITES}


def failure(federation: Phantoms, job_id: str) -> str:
    """What the server was told."""
    return str(federation.outcome(job_id)["failure"])


def test_a_private_job_without_fresh_terms_is_refused_and_costs_nothing_and_the_clean_one_runs_once(
    federation: Phantoms, configs: dict[str, SiteConfig], tmp_path: Path
) -> None:
    """A job without terms is refused, and so is one that was signed for another federation. The next clean one runs.
    A copy of it, which carries the administrator's signature and her nonce with it, is refused however often the server
    runs it. Nobody is charged for what is refused."""
    before = {name: budget(config) for name, config in configs.items()}
    other = JOB.model_copy(
        update={"terms": federation.terms().model_copy(update={"federation": "SHA256" + ":00" * 32})}
    )
    for number, (job, code) in enumerate([(JOB, Refusal.FRESH), (other, Refusal.FEDERATION)]):
        job_id = federation.run(job, tmp_path / str(number))
        assert code.sentence in failure(federation, job_id)
    assert {name: budget(config) for name, config in configs.items()} == before
    clean = federation.run(JOB, tmp_path / "clean", *SITES)
    assert federation.status(clean) == "FINISHED:COMPLETED"
    after = {name: budget(config) for name, config in configs.items()}
    assert all(authorised == charged > before[name][0] for name, (charged, authorised) in after.items())
    for _ in range(2):
        copy = federation._admin._request(lambda session: session.clone_job(clean))
        assert federation.wait(copy, PATIENCE).startswith("FINISHED:")
        assert Refusal.REPLAY.sentence in failure(federation, copy)
        refused = [federation.codes(name, copy) for name in SITES]
        assert [Refusal.REPLAY] in refused and all(found in ([], [Refusal.REPLAY]) for found in refused)
    assert {name: budget(config) for name, config in configs.items()} == after


@pytest.mark.release
def test_an_abort_at_any_moment_leaves_no_reservation_and_a_closed_log(
    federation: Phantoms, configs: dict[str, SiteConfig], tmp_path: Path
) -> None:
    """Without a command: the site's own process settles and closes the job, however its process ended."""
    moments = random.Random(7)
    for number in range(ABORTS):
        job_id = federation.submit_job(JOB, tmp_path / str(number), *SITES)
        time.sleep(moments.uniform(0, 20))
        if not federation.finished(job_id):
            federation.abort(job_id)
        federation.wait(job_id, PATIENCE)
        wait_for(lambda: all(is_over(config) for config in configs.values()))  # no reservation stands, no log is open
    for name, config in configs.items():
        assert verify(config.audit).ok
        parts = {part.name: part.state for part in examine(config.audit, name).completeness.parts}
        assert parts["jobs"] is VerdictState.SHOWN


def is_over(config: SiteConfig) -> bool:
    """Whether no job is open in the log, and nothing is reserved."""
    still = set()
    for entry in read(config.audit):
        if entry.event in (Event.ADMITTED, Event.OPEN):
            still.add(entry.job)
        elif entry.event in (Event.CLOSE, Event.REFUSAL):
            still.discard(entry.job)
    charged, authorised = budget(config)
    return not still and charged == authorised
