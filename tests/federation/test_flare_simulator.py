"""A job in FLARE's simulator."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import Job
from nvflare.recipe import SimEnv
from public_folder import digest_of, write

from audits import Outcome, Refusal, read
from medfedvqa.bounds import PUBLIC_FOLDER
from medfedvqa.core import EVALUATE, withheld
from medfedvqa.errors import FederationError
from medfedvqa.evaluation import load_transcript
from medfedvqa.federation.flare.engine import run_on_flare
from medfedvqa.federation.flare.recipe import MedfedvqaRecipe
from medfedvqa.federation.hub import TaskAnswer
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import load_site_config, site_yaml
from privacy import DPSettings

pytestmark = pytest.mark.slow

SITES = {"abdomen": "site-001", "chest": "site-002", "head": "site-003"}
"""Each one's phantom rows."""

SiteFiles = Callable[..., dict[str, Path]]


@pytest.fixture
def quick_job(quick_job: Job) -> Job:
    """The short job, on a backbone that a site's process can load."""

    def make(**options: object) -> JobSpec:
        return quick_job(**options).model_copy(update={"backbone": "medclip@random"})

    return make


@pytest.fixture
def site_files(tmp_path: Path, random_backbone: Path) -> SiteFiles:
    """Writes the `site.yml` of phantom sites; keywords change what they say."""

    def write(*names: str, **changes: object) -> dict[str, Path]:
        paths = {}
        for name in names:
            folder = tmp_path / "sites" / name
            folder.mkdir(parents=True, exist_ok=True)
            own = {"organ": SITES[name]} | {place: str(folder / place) for place in ("state", "audit", "ledger")}
            facts = {"reader": "phantom", "methods": ["prompt_pfl"], **own, **changes}
            paths[name] = folder / "site.yml"
            paths[name].write_text(site_yaml(backbones={"medclip@random": str(random_backbone)}, **facts))
        return paths

    return write


def test_simulator_and_in_process_engine_see_the_same_prompts_bit_for_bit(
    tmp_path: Path, site_files: SiteFiles, quick_job: Job
) -> None:
    """Same job, same sites: same bytes at the server; an event per answer; an entry per release; the same code.

    Under differential privacy, with noise that repeats: every entry of a release carries its charge.
    """
    job = quick_job(answers="closed").model_copy(update={"dp": DPSettings(noise=1.0, count_noise=5.0)})
    paths = site_files("abdomen", "chest", "head", repeatable_noise=3)
    events: list[TaskAnswer] = []
    results = run_on_flare(job, paths, tmp_path / "flare", "simulator", events.append)
    assert (results["status"], results["engine"]) == ("finished", "simulator")
    local = tmp_path / "local"
    local.mkdir()
    configs = {name: load_site_config(path, name) for name, path in paths.items()}
    serve_job(job, tuple(paths), LocalEngine(configs, job, "local").call, local, "local")
    simulated, in_process = load_transcript(tmp_path / "flare"), load_transcript(local)
    for ours, theirs in ((simulated.uploads, in_process.uploads), (simulated.shared, in_process.shared)):
        assert ours.keys() == theirs.keys() == paths.keys()
        for site in ours:
            assert ours[site].keys() == theirs[site].keys()
            assert all(ours[site][name].tobytes() == theirs[site][name].tobytes() for name in ours[site])
    tasks = ["start", "train", "evaluate"]
    answers = sorted((event.task, event.site) for event in events if event.site)
    assert answers == sorted((task, site) for task in tasks for site in paths)
    for config in configs.values():
        sent = [entry for entry in read(config.audit) if entry.outcome == Outcome.SENT and entry.job != "local"]
        assert [entry.task for entry in sent] == tasks
        assert [entry.dp_event is not None for entry in sent] == [True, True, False]
        opened = [entry for entry in read(config.audit) if entry.event == "open"]
        assert [entry.job == "local" for entry in opened] == [False, True] and opened[0].code == opened[1].code


@pytest.mark.parametrize("method", ["creamfl", pytest.param("fedgems", marks=pytest.mark.release)])
def test_simulator_and_in_process_engine_test_the_same_server_model(
    method: str, tmp_path: Path, site_files: SiteFiles, quick_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recalls and answers of the server's own model are equal, and no site logs a task for them. It is run as FLARE's
    users know it: a recipe, an environment, `execute`. The public set is a folder, which sites name in `site.yml`."""
    options = {"public_pairs": 8, "test_pairs": 16, "rounds": 2, "local_unit": "batches", "trunk": "medclip2-slake"}
    public = write(tmp_path / "pairs", 24)
    options |= {"public": digest_of(public)}
    monkeypatch.setenv(PUBLIC_FOLDER, str(public))
    job = JobSpec.from_dict(quick_job().to_dict() | {"method": method, "options": options})
    paths = site_files(
        "chest", "head", methods=[method], kinds=["representations", "statistic"], public_set=str(public)
    )
    env = SimEnv(clients=list(paths), workspace_root=str(tmp_path / "flare"))
    (written,) = Path(MedfedvqaRecipe(job, paths).execute(env).get_result()).rglob("results.json")
    simulated = json.loads(written.read_text())
    (local := tmp_path / "local").mkdir()
    configs = {name: load_site_config(path, name) for name, path in paths.items()}
    in_process = serve_job(job, tuple(paths), LocalEngine(configs, job, "local").call, local, "local")
    assert simulated["status"] == "finished"
    assert simulated["server_model"] == in_process["server_model"] and simulated["server_model"]["n"] > 0
    tasks = {entry.task for config in configs.values() for entry in read(config.audit) if entry.task}
    assert tasks == {task.name for task in job.exchange().tasks} - {withheld(EVALUATE)}


def test_a_run_that_is_asked_to_stop_ends_with_its_round_and_is_evaluated(
    tmp_path: Path, site_files: SiteFiles, quick_job: Job
) -> None:
    """What Ctrl-C does: results of the rounds so far, status "stopped"."""
    events: list[TaskAnswer] = []
    job, paths = quick_job(rounds=1000, local_epochs=1), site_files("chest", "head")
    results = run_on_flare(job, paths, tmp_path / "out", "simulator", events.append, lambda: bool(events))
    assert results["status"] == "stopped"
    assert 1 <= len(results["rounds"]) < 1000
    assert results["sites"]["chest"]["correct"] is not None


def test_a_failed_job_raises_the_sentence_of_the_sites_code_and_leaves_it_in_the_results(
    tmp_path: Path, site_files: SiteFiles, quick_job: Job
) -> None:
    """A site that holds other data than the job asks for."""
    paths = {**site_files("chest"), **site_files("head", reader="slake", root=str(tmp_path))}
    with pytest.raises(FederationError, match=f"site 'head' stopped the job: {Refusal.READER.sentence}"):
        run_on_flare(quick_job(), paths, tmp_path / "out", "simulator")
    assert json.loads((tmp_path / "out" / "results.json").read_text())["status"] == "failed"
