"""Secure aggregation through FLARE: sites are processes, and the server relays what they say to each other."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from audits import Event, Outcome, read, verify
from audits.log_files import LOG_NAME
from medfedvqa.core import Tensors
from medfedvqa.evaluation import load_transcript
from medfedvqa.federation.flare.engine import run_on_flare
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.progress import ProgressReader
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.flare.server_side import SITE_PATIENCE
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig, load_site_config, site_yaml
from medfedvqa.federation.site_state import StateFile
from privacy.secagg import Identity

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # FLARE's transport, on one of its threads.
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]

ORGANS = {"abdomen": "site-001", "chest": "site-002", "head": "site-003", "thorax": "site-004"}
BACKBONE = "medclip@random"
ROUNDS = 3
OPTIONS = {"rounds": ROUNDS, "local_epochs": 6, "local_unit": "batches", "batch_rows": 16, "blocks": 2, "hidden": 16}
JOB = JobSpec.from_dict(
    {
        "method": "prompt_pfl",
        "options": {**OPTIONS, "local_baseline": False},
        "data": "phantom",
        "backbone": BACKBONE,
        "secagg": True,
    }
)
PATIENCE = 400.0  # seconds

Paths = dict[str, Path]
MakeSites = Callable[..., Paths]


def written(folder: Path, backbone: Path, names: tuple[str, ...]) -> Paths:
    """The `site.yml` of phantom sites that pin each other's keys."""
    places = {name: folder / name for name in names}
    for place in places.values():
        place.mkdir(parents=True)
    peers = {name: Identity.create(place / "identity.key").fingerprint for name, place in places.items()}
    for name, place in places.items():
        own = {key: str(place / key) for key in ("state", "audit", "ledger")} | {
            "identity": str(place / "identity.key")
        }
        facts = {"reader": "phantom", "organ": ORGANS[name], "methods": ["prompt_pfl"], "require_secagg": True}
        facts |= {"repeatable_noise": 1}  # two engines train alike
        text = site_yaml(**facts, **own, min_sites=3, peers=peers, backbones={BACKBONE: str(backbone)})
        (place / "site.yml").write_text(text)
    return {name: place / "site.yml" for name, place in places.items()}


def mixtures(configs: Mapping[str, SiteConfig], job_id: str) -> dict[str, Tensors]:
    """What each site keeps of the others' prompts."""
    found = {}
    for name, config in configs.items():
        saved = StateFile(config.state, job_id).load()
        found[name] = saved.mixture if saved else {}
    return found


def assert_alike(ones: dict[str, Tensors], others: dict[str, Tensors]) -> None:
    """Up to the precision of the shares, which two more rounds of training may have enlarged."""
    assert ones.keys() == others.keys()
    for site, tensors in others.items():
        for name, array in tensors.items():
            assert np.linalg.norm(ones[site][name] - array) <= 1e-2 * np.linalg.norm(array)


def configured(paths: Paths) -> dict[str, SiteConfig]:
    return {name: load_site_config(path, name) for name, path in paths.items()}


def test_simulator_and_in_process_engine_reach_the_same_mixtures(tmp_path: Path, random_backbone: Path) -> None:
    """Sites are processes that know each other by their keys; no upload and no mixture passes the server."""
    names = ("abdomen", "chest", "head")
    paths, local = (written(tmp_path / folder, random_backbone, names) for folder in ("sites", "local"))
    results = run_on_flare(JOB, paths, tmp_path / "flare", "simulator")
    assert results["status"] == "finished" and results["secagg"] and not results["rounds"][0]["accuracy"]
    seen = load_transcript(tmp_path / "flare")
    assert not seen.uploads and not seen.shared
    (tmp_path / "out").mkdir()
    serve_job(JOB, names, LocalEngine(configured(local), JOB, "local").call, tmp_path / "out", "local")
    assert_alike(mixtures(configured(paths), "simulate_job"), mixtures(configured(local), "local"))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> Paths:
    return written(tmp_path_factory.mktemp("sites"), random_backbone, tuple(ORGANS))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, paths: Paths) -> Iterator[LoopbackFederation]:
    """Four phantom sites and a server, all on the loopback interface."""
    environment = {SITE_PATIENCE: "45"}
    with LoopbackFederation(tmp_path_factory.mktemp("federation"), paths, environment) as federation:
        yield federation


@pytest.fixture(scope="module")
def job_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job") / "job"
    export_job(JOB, folder)
    return folder


def wait_for(condition: Callable[[], object]) -> None:
    """Until the condition holds; fails the test if it never does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def logged(config: SiteConfig, job_id: str, event: Event, task: str, round: int) -> bool:
    """Whether the site has logged such an event."""
    if not (config.audit / LOG_NAME).exists():
        return False
    found = [entry for entry in read(config.audit) if entry.job == job_id]
    return any((entry.event, entry.task, entry.round) == (event, task, round) for entry in found)


def answered(federation: LoopbackFederation, job_id: str, site: str, task: str, round: int) -> bool:
    """Whether the server has the site's answer."""
    events = ProgressReader().events(federation.results(job_id))
    return any((event.site, event.task, event.round) == (site, task, round) for event in events)


def test_a_provisioned_federation_mixes_on_shares(federation: LoopbackFederation, paths: Paths, tmp_path: Path) -> None:
    """Sites that require it; every mixture is logged by every site before it is begun, and the chain holds. One round:
    after a second one over all, they would refuse to mix the second round of the next jobs without one of them."""
    options = JOB.options | {"rounds": 1}
    export_job(JOB.model_copy(update={"options": options}), tmp_path / "job")
    job_id = federation.submit(tmp_path / "job")
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    for config in configured(paths).values():
        assert verify(config.audit).ok
        shared = [e for e in read(config.audit) if (e.job, e.peer, e.outcome) == (job_id, "sites", Outcome.SENT)]
        assert [entry.task for entry in shared] == ["start/mix"]
    transcript = load_transcript(federation.results(job_id))
    assert not transcript.uploads and not transcript.shared


@pytest.fixture
def first_job(tmp_path: Path, random_backbone: Path) -> Iterator[tuple[LoopbackFederation, Paths]]:
    """Four sites that were in no sum before: with one over all four in the log, none over three is shared."""
    paths = written(tmp_path / "sites", random_backbone, tuple(ORGANS))
    with LoopbackFederation(tmp_path / "federation", paths, {SITE_PATIENCE: "45"}) as federation:
        yield federation, paths


def test_a_site_that_is_killed_is_left_out_and_the_job_finishes_with_the_rest(
    first_job: tuple[LoopbackFederation, Paths], job_folder: Path, tmp_path: Path, random_backbone: Path
) -> None:
    """SIGKILL of client and job process after training: round 2 is mixed without it."""
    federation, paths = first_job
    configs, job_id = configured(paths), federation.submit(job_folder)
    wait_for(lambda: logged(configs["chest"], job_id, Event.RECEIVE, "train", 2))
    (held,) = federation.processes("chest", job=True)
    held.suspend()
    # Its log is ahead of its answer.
    wait_for(lambda: answered(federation, job_id, "thorax", "train", 2))
    for job in (False, True):
        for process in federation.processes("thorax", job):
            process.kill()
    held.resume()
    try:
        assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    finally:
        federation.restart("thorax")
    results = (federation.results(job_id) / "results.json").read_text()
    assert "Site thorax broke off in round 2: the job went on without it." in results
    rest = {name: config for name, config in configs.items() if name != "thorax"}
    for config in rest.values():
        shared = [e for e in read(config.audit) if (e.job, e.peer, e.outcome) == (job_id, "sites", Outcome.SENT)]
        # It is missed when tuples are dealt, before anything of the round is shared.
        sharing = [(entry.round, "thorax" in str(entry.reason)) for entry in shared]
        assert sharing == [(1, True), (2, False), (3, False)]


@pytest.mark.release
def test_a_site_that_dies_while_training_is_given_up_after_a_while_and_the_job_finishes_with_the_rest(
    first_job: tuple[LoopbackFederation, Paths], job_folder: Path
) -> None:
    """SIGKILL of client and job process in round 2, and it does not come back."""
    federation, paths = first_job
    configs, job_id = configured(paths), federation.submit(job_folder)
    wait_for(lambda: logged(configs["head"], job_id, Event.RECEIVE, "train", 2))
    for job in (True, False):
        for process in federation.processes("head", job):
            process.suspend()
    for job in (False, True):
        for process in federation.processes("head", job):
            process.kill()
    assert not logged(configs["head"], job_id, Event.RELEASE, "train", 2)
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    results = (federation.results(job_id) / "results.json").read_text()
    assert "Site head broke off in round 2: the job went on without it." in results
    for name, mixture in mixtures({name: configs[name] for name in ORGANS if name != "head"}, job_id).items():
        assert mixture, name
