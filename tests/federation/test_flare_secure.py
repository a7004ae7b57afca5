"""Secure aggregation through FLARE: sites are processes, and the server relays what they say to each other."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from phantoms import BACKBONE, PATIENCE, Phantoms, short_job, wait_for

from audits import Event, Outcome, verify
from medfedvqa.core import Tensors
from medfedvqa.evaluation import load_transcript
from medfedvqa.federation.flare.engine import run_on_flare
from medfedvqa.federation.flare.progress import ProgressReader
from medfedvqa.federation.flare.server_side import SITE_PATIENCE
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig, load_site_config
from medfedvqa.federation.site_state import StateFile

pytestmark = pytest.mark.slow

SITES = ("abdomen", "chest", "head", "thorax")
ROUNDS = 3
JOB = short_job("prompt_pfl", {"rounds": ROUNDS, "local_epochs": 6, "batch_rows": 16, "blocks": 2}, secagg=True)


@pytest.fixture
def federation(phantoms: Callable[..., Phantoms]) -> Phantoms:
    """Four sites that were in no sum before: with one over all four in the log, none over three is shared."""
    facts = {"methods": ["prompt_pfl"], "require_secagg": True, "min_sites": 3}
    return phantoms(SITES, introduced=True, environment={SITE_PATIENCE: "45"}, **facts)


def written(folder: Path, backbone: Path, names: tuple[str, ...]) -> dict[str, Path]:
    """The `site.yml` of phantom sites that pin each other's keys, and train alike in two engines."""
    paths = write_sites(Launch(JOB, None, folder, names, backbone_files={BACKBONE: backbone}))
    for path in paths.values():
        path.write_text(path.read_text() + "repeatable_noise: 1\n")
    return paths


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


def configured(paths: Mapping[str, Path]) -> dict[str, SiteConfig]:
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


def answered(federation: Phantoms, job_id: str, site: str, task: str, round: int) -> bool:
    """Whether the server has the site's answer."""
    events = ProgressReader().events(federation.results(job_id))
    return any((event.site, event.task, event.round) == (site, task, round) for event in events)


def test_a_site_that_is_killed_is_left_out_and_the_job_finishes_with_the_rest(
    federation: Phantoms, tmp_path: Path
) -> None:
    """Sites that require shares mix in a provisioned federation. SIGKILL of client and job process after training:
    round 2 is mixed without it. Every mixture is logged by every site before it is begun, the chain holds, and the
    server has no upload and no mixture."""
    job_id = federation.submit_job(JOB, tmp_path / "job")
    wait_for(lambda: federation.logged("chest", job_id, Event.RECEIVE, 2), 0.02)
    (held,) = federation.processes("chest", job=True)
    held.suspend()
    # Its log is ahead of its answer.
    wait_for(lambda: answered(federation, job_id, "thorax", "train", 2), 0.02)
    federation.kill("thorax")
    held.resume()
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    results = (federation.results(job_id) / "results.json").read_text()
    assert "Site thorax broke off in round 2: the job went on without it." in results
    for name in SITES[:3]:
        shared = [e for e in federation.log(name, job_id) if (e.peer, e.outcome) == ("sites", Outcome.SENT)]
        assert [entry.task for entry in shared] == ["start/mix", "train/mix", "train/mix"]
        # It is missed when tuples are dealt, before anything of the round is shared.
        sharing = [(entry.round, "thorax" in str(entry.reason)) for entry in shared]
        assert sharing == [(1, True), (2, False), (3, False)]
        assert verify(federation.kits / name / "audit").ok
    transcript = load_transcript(federation.results(job_id))
    assert not transcript.uploads and not transcript.shared


@pytest.mark.release
def test_a_site_that_dies_while_training_is_given_up_after_a_while_and_the_job_finishes_with_the_rest(
    federation: Phantoms, tmp_path: Path
) -> None:
    """SIGKILL of client and job process in round 2, and it does not come back."""
    job_id = federation.submit_job(JOB, tmp_path / "job")
    wait_for(lambda: federation.logged("head", job_id, Event.RECEIVE, 2), 0.02)
    federation.kill("head", job=(True, False))
    assert not federation.logged("head", job_id, Event.RELEASE, 2)
    assert federation.wait(job_id, PATIENCE) == "FINISHED:COMPLETED"
    results = (federation.results(job_id) / "results.json").read_text()
    assert "Site head broke off in round 2: the job went on without it." in results
    rest = {name: federation.config(name) for name in SITES if name != "head"}
    assert all(mixtures(rest, job_id).values())
