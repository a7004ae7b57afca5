"""Training really learns: the phantom set, which nobody can answer without its pictures."""

from pathlib import Path

import pytest

from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import plan, run

OPTIONS = {"rounds": 10, "local_epochs": 2, "learning_rate": 0.002, "decay": 0.3, "decay_every": 4}


@pytest.mark.slow
def test_prompt_pfl_beats_the_question_only_prior_by_20_points_at_every_site(tmp_path: Path) -> None:
    """With the bundled backbone, each phantom site's model is at least 20 points above what the words alone tell."""
    options = {**OPTIONS, "local_baseline": False}
    job = JobSpec.from_dict({"method": "prompt_pfl", "data": "phantom", "options": options})
    results = run(plan(job, None, tmp_path / "run"), "local", lambda event: None)
    for facts in results["sites"].values():
        assert facts["accuracy"] >= facts["baselines"]["question_prior"]["accuracy"] + 0.20
