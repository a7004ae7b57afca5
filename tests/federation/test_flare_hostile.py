"""A provisioned federation whose server runs old jobs again, and whose jobs are aborted at any moment."""

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from audits import Event, Refusal, VerdictState, examine, read, verify
from medfedvqa.data.phantom import organs
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from privacy import Ledger

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

SITES = organs(3)
BACKBONE = "medclip@random"
OPTIONS = {"rounds": 2, "local_epochs": 1, "local_unit": "batches", "batch_rows": 4, "blocks": 2, "hidden": 16}
JOB = JobSpec.from_dict(
    {
        "method": "prompt_pfl",
        "options": {**OPTIONS, "local_baseline": False, "answers": "closed"},
        "data": "phantom",
        "backbone": BACKBONE,
        "dp": {"noise": 8.0, "count_noise": 40.0, "sample_rate": 0.3, "patient_rows": 4},
    }
)
PATIENCE = 300.0  # seconds
ABORTS = int(os.environ.get("MEDFEDVQA_ABORTS", "3"))
"""At how many random moments a job is aborted."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> Iterator[LoopbackFederation]:
    out = tmp_path_factory.mktemp("sites")
    paths = write_sites(Launch(JOB, None, out, SITES, backbone_files={BACKBONE: random_backbone}))
    for path in paths.values():
        path.write_text(path.read_text().replace("data_refusals: 3", "data_refusals: 100"))
    with LoopbackFederation(tmp_path_factory.mktemp("federation"), paths) as federation:
        yield federation


@pytest.fixture(scope="module")
def configs(federation: LoopbackFederation) -> dict[str, SiteConfig]:
    return {name: load_site_config(federation.kits / name / "local" / "site.yml", name) for name in SITES}


def submitted(federation: LoopbackFederation, folder: Path, job: JobSpec) -> str:
    export_job(job, folder)
    return federation.submit(folder)


def fresh(federation: LoopbackFederation, job: JobSpec = JOB) -> JobSpec:
    return job.model_copy(update={"terms": federation.terms()})


def spent(config: SiteConfig) -> tuple[float, float]:
    """Spent and authorised by all jobs."""
    with closing(Ledger(config.ledger, config.name)) as ledger:
        return ledger.together(1e-5, False).epsilon, ledger.together(1e-5, True).epsilon


def codes(config: SiteConfig, job_id: str) -> list[str]:
    """Of the refusals of a job in a site's log."""
    return [
        entry.admission["code"]
        for entry in read(config.audit)
        if entry.job == job_id and entry.event is Event.REFUSAL and entry.admission
    ]


def failure(federation: LoopbackFederation, job_id: str) -> str:
    """What the server was told."""
    return str(json.loads((federation.results(job_id) / "results.json").read_text())["failure"])


def test_a_signed_job_that_the_server_runs_again_is_refused_and_costs_nothing(
    federation: LoopbackFederation, configs: dict[str, SiteConfig], tmp_path: Path
) -> None:
    """The copy carries the administrator's signature, and her nonce with it."""
    job_id = submitted(federation, tmp_path / "job", fresh(federation))
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    before = {name: spent(config) for name, config in configs.items()}
    assert all(authorised == charged > 0 for charged, authorised in before.values())
    for _ in range(2):
        copy = federation._admin._request(lambda session: session.clone_job(job_id))
        assert federation.wait(copy, PATIENCE).startswith("FINISHED:")
        assert Refusal.REPLAY.sentence in failure(federation, copy)
        refused = [codes(config, copy) for config in configs.values()]
        assert [Refusal.REPLAY] in refused and all(found in ([], [Refusal.REPLAY]) for found in refused)
    assert {name: spent(config) for name, config in configs.items()} == before


def test_a_private_job_without_terms_is_refused_and_the_next_clean_one_runs(
    federation: LoopbackFederation, configs: dict[str, SiteConfig], tmp_path: Path
) -> None:
    """What was signed for another federation does not run either; nobody is charged for what is refused."""
    before = {name: spent(config) for name, config in configs.items()}
    other = JOB.model_copy(
        update={"terms": federation.terms().model_copy(update={"federation": "SHA256" + ":00" * 32})}
    )
    for number, (job, code) in enumerate([(JOB, Refusal.FRESH), (other, Refusal.FEDERATION)]):
        job_id = submitted(federation, tmp_path / str(number), job)
        assert federation.wait(job_id, PATIENCE).startswith("FINISHED:")
        assert code.sentence in failure(federation, job_id)
    assert {name: spent(config) for name, config in configs.items()} == before
    clean = submitted(federation, tmp_path / "clean", fresh(federation))
    assert federation.wait(clean, PATIENCE) == "FINISHED:COMPLETED"


@pytest.mark.release
def test_an_abort_at_any_moment_leaves_no_reservation_and_a_closed_log(
    federation: LoopbackFederation, configs: dict[str, SiteConfig], tmp_path: Path
) -> None:
    """Without a command: the site's own process settles and closes the job, however its process ended."""
    moments = random.Random(7)
    for number in range(ABORTS):
        job_id = submitted(federation, tmp_path / str(number), fresh(federation))
        time.sleep(moments.uniform(0, 20))
        if not federation.finished(job_id):
            federation.abort(job_id)
        federation.wait(job_id, PATIENCE)
        end = time.monotonic() + PATIENCE
        while not all(is_over(config) for config in configs.values()):
            assert time.monotonic() < end, f"abort {number}: a reservation stands, or a log is open"
            time.sleep(0.5)
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
    charged, authorised = spent(config)
    return not still and charged == authorised
