"""The server's side of a job in the in-process engine: results, failures, interruption."""

import json
from pathlib import Path

import pytest
from in_process import Job, Sites

from audits import read
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation.hub import TaskAnswer
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.launch import plan, run
from medfedvqa.federation.serve import serve_job


def test_a_run_leaves_results_table_plots_and_logs(
    quick_job: Job, tiny_backbone: Path, tmp_path: Path, plots: None
) -> None:
    """One call gives results.json keyed by site, a table, plots, a transcript and a log at every site."""
    job = quick_job(local_baseline=True)
    launch = plan(job, None, tmp_path / "run", backbone_files={job.backbone: tiny_backbone})
    seen: list[TaskAnswer] = []
    results = run(launch, "local", seen.append)
    out = tmp_path / "run"
    assert json.loads((out / "results.json").read_text()) == results
    assert set(results["sites"]) == {"chest", "abdomen", "head"} and results["status"] == "finished"
    for site, facts in results["sites"].items():
        logged = [entry for entry in read(launch.audit_folders[site]) if entry.outcome == "sent"]
        assert sum(entry.nbytes for entry in logged) == facts["bytes"]["up"]
        by_round = [entry.nbytes for entry in logged if entry.task != "evaluate"]
        assert by_round == [record["bytes"][site]["up"] for record in results["rounds"]] and len(by_round) == 2
        assert facts["interval"][0] <= facts["accuracy"] <= facts["interval"][1]
    assert (out / "table.md").read_text().startswith("|") and (out / "transcript.npz").exists()
    assert {path.name for path in (out / "plots").iterdir()} >= {"accuracy.png", "reliability.png", "prompts.png"}
    assert sum(event.site is not None for event in seen) == 3 * 3


def test_a_stopped_run_is_evaluated_with_what_it_reached(sites: Sites, quick_job: Job, tmp_path: Path) -> None:
    """After a stop the round is finished, every site is scored, and the results say 'stopped'."""
    configs, job = sites("chest", "head"), quick_job(rounds=5)
    seen: list[TaskAnswer] = []
    engine = LocalEngine(configs, job, "test")

    def stop() -> bool:
        """Once the second round has an answer."""
        return any(event.round == 2 and event.site for event in seen)

    results = serve_job(job, tuple(configs), engine.call, tmp_path, "local", seen.append, stop=stop)
    assert results["status"] == "stopped" and len(results["rounds"]) == 2
    assert all(facts["accuracy"] is not None for facts in results["sites"].values())


def test_a_site_that_refuses_is_named_with_its_reason(sites: Sites, quick_job: Job, tmp_path: Path) -> None:
    """One site's policy does not allow the method: the job ends, and results name the site and why."""
    configs = sites("chest") | sites("head", methods=["another"])
    engine = LocalEngine(configs, quick_job(), "test")
    with pytest.raises(FederationError, match="site 'head'.*method"):
        serve_job(quick_job(), tuple(configs), engine.call, tmp_path, "local")
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["status"] == "failed" and "head" in results["failure"]


@pytest.mark.slow
def test_memory_of_many_sites_is_bounded_by_those_resident(sites: Sites, quick_job: Job, tmp_path: Path) -> None:
    """An engine that keeps one site in memory gives the same results as one that keeps all."""
    for resident in (1, 16):
        engine = LocalEngine(sites("chest", "head"), quick_job(), f"resident-{resident}", resident)
        serve_job(quick_job(), ("chest", "head"), engine.call, tmp_path / str(resident), "local")
    one, all_ = (json.loads((tmp_path / n / "results.json").read_text())["sites"] for n in ("1", "16"))
    assert {site: facts["correct"] for site, facts in one.items()} == {s: f["correct"] for s, f in all_.items()}


def test_nothing_is_written_for_a_job_that_cannot_run(quick_job: Job, tiny_backbone: Path, tmp_path: Path) -> None:
    """An unknown organ, a used folder, a backbone of another architecture: an error, and no new file."""
    job, files = quick_job(), {quick_job().backbone: tiny_backbone}
    with pytest.raises(Exception, match="organ"):
        plan(job, None, tmp_path / "run", ("chest", "knee"), backbone_files=files)
    with pytest.raises(ConfigError, match="at least 2 sites"):
        plan(job, None, tmp_path / "run", ("chest",), backbone_files=files)
    other = job.model_copy(update={"backbone": "ViT-B-32@mine"})
    with pytest.raises(Exception, match="ViT-B-32"):
        plan(other, None, tmp_path / "run", backbone_files={"ViT-B-32@mine": tiny_backbone})
    assert not (tmp_path / "run").exists()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "results.json").write_text("{}")
    with pytest.raises(ConfigError, match="already holds a run"):
        plan(job, None, tmp_path / "used", backbone_files=files)
