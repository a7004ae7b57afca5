"""`medfedvqa contribution`: what the parts of a finished run's models do, as its results say too."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from medfedvqa.evaluation.results import results_schema
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import plan, run

RANDOM = "medclip@random"
SMALL: dict[str, Any] = {"rounds": 1, "local_epochs": 1, "local_unit": "batches", "batch_rows": 8}
OPTIONS: dict[str, dict[str, Any]] = {
    "prompt_pfl": {"hidden": 8, "local_baseline": False, "answers": "closed"},
    "san": {"pixels": 32},
}
PRIVATE = {"noise": 1.0, "count_noise": 1.0, "sample_rate": 0.5, "expected_patients": 4}


def finished(out: Path, weights: Path, method: str, dp: dict[str, float] | None = None) -> dict[str, Any]:
    """The results of a run of two small sites in process."""
    options = SMALL | OPTIONS[method]
    job = JobSpec(method=method, options=options, data="phantom", backbone=RANDOM, dp=dp)
    launch = plan(job, None, out, ("site-001", "site-002"), backbone_files={RANDOM: weights})
    return run(launch, "local", lambda event: None)


@pytest.mark.slow
def test_the_command_counts_what_the_run_s_results_say(medfedvqa, random_backbone: Path, tmp_path: Path) -> None:
    """All parts of two sites, equal to `results.json`, which keeps to its schema; one site alone says what it lacks."""
    results = finished(tmp_path / "run", random_backbone, "prompt_pfl")
    jsonschema.validate(results, results_schema())
    parts = ["own_prompts", "exchanged_prompts", "shared_prompts", "tuning", "ngrams", "picture"]
    assert list(results["contribution"]) == parts
    done = medfedvqa("contribution", str(tmp_path / "run"), "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["parts"] == results["contribution"]
    table = medfedvqa("contribution", str(tmp_path / "run"))
    assert "without the shared prompts" in table.stdout and "they stay with whoever may see" in table.stdout
    own = str(tmp_path / "run" / "sites" / "site-001" / "site.yml")
    alone = json.loads(medfedvqa("contribution", str(tmp_path / "run"), "--site", own, "--json").stdout)
    assert "exchanged_prompts" not in alone["parts"] and "Another site's prompts are not at hand" in alone["notes"][-1]


@pytest.mark.slow
def test_runs_without_prompts_or_under_privacy_say_what_applies(
    medfedvqa, random_backbone: Path, tmp_path: Path
) -> None:
    """A network of its own has its picture alone; of a private job the results have nothing, and the command says that
    no epsilon covers its figures; a folder that is no run, and a run whose states are gone, are one sentence each."""
    assert list(finished(tmp_path / "san", random_backbone, "san")["contribution"]) == ["picture"]
    assert "contribution" not in finished(tmp_path / "private", random_backbone, "prompt_pfl", PRIVATE)
    done = medfedvqa("contribution", str(tmp_path / "private"))
    assert done.returncode == 0 and "its epsilon covers none of these figures" in done.stdout
    done = medfedvqa("contribution", str(tmp_path))
    assert done.returncode == 1 and "holds no results.json of a run" in done.stderr
    for state in (tmp_path / "san" / "sites" / "site-002" / "state").iterdir():
        state.unlink()
    done = medfedvqa("contribution", str(tmp_path / "san"))
    assert done.returncode == 1 and "keeps the state of 0 jobs" in done.stderr
