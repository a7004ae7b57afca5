"""Under differential privacy a site without a patient to train on takes part as any other: nobody learns of it."""

from contextlib import closing
from pathlib import Path

import pytest
from in_process import Sites
from tiny_clip import TINY

from audits import Event, Refusal, read
from medfedvqa.data import Split
from medfedvqa.errors import FederationError
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job

QUICK: dict[str, object] = {"rounds": 2, "local_epochs": 1, "batch_rows": 4, "answers": "closed"}
UNIFORM = {"weighting": "uniform"}
OPTIONS = {
    "prompt_pfl": {"finish_epochs": 1}, "feddat": {}, "san": {}, "mevf": {},
    "fedavg": UNIFORM, "fedprox": UNIFORM, "moon": UNIFORM, "feddc": UNIFORM, "fedkd": UNIFORM,
    "fedp3": UNIFORM | {"filter": "all"},
}  # fmt: skip
NOBODY = Split("patient", fractions=(0.0, 0.5, 0.5))
DP = {"noise": 4.0, "count_noise": 40.0, "sample_rate": 0.3, "patient_rows": 4}


def job_of(method: str, backbone: str, **changes: object) -> JobSpec:
    facts = {"method": method, "options": QUICK | OPTIONS[method], "data": "phantom", "backbone": backbone, "dp": DP}
    return JobSpec.from_dict({**facts, "split": vars(NOBODY), **changes})


@pytest.mark.slow
@pytest.mark.parametrize("method", OPTIONS)
@pytest.mark.parametrize("empty", ["no patient in train", "no patient with an answer of the list"])
def test_a_private_job_ends_as_usual_at_sites_without_a_patient_to_train_on(
    sites: Sites, tmp_path: Path, method: str, empty: str
) -> None:
    """No refusal, the same messages, the same charge: whether there was a patient shows in nothing."""
    changes: dict[str, object] = {}
    if empty == "no patient with an answer of the list":
        changes = {"split": vars(Split()), "options": QUICK | OPTIONS[method] | {"answers": ["never", "nothing"]}}
    job = job_of(method, TINY, **changes)
    configs = sites("chest", "head", methods=[method], kinds=["parameters", "statistic", "public"])
    with closing(LocalEngine(configs, job, "job")) as engine:
        results = serve_job(job, ("chest", "head"), engine.call, tmp_path / "out", "local")
    assert results["status"] == "finished"
    for config in configs.values():
        assert not [entry for entry in read(config.audit) if entry.event is Event.REFUSAL]
        assert results["sites"][config.name]["epsilon"] > 0


def test_without_privacy_such_a_site_says_that_it_cannot_run_the_job(sites: Sites, tmp_path: Path) -> None:
    """The control: a plain job has nothing to hide behind."""
    job = job_of("prompt_pfl", TINY, dp=None)
    configs = sites("chest", "head")
    with closing(LocalEngine(configs, job, "job")) as engine, pytest.raises(FederationError, match="train rows"):
        serve_job(job, ("chest", "head"), engine.call, tmp_path / "out", "local")
    (refusal,) = [entry for entry in read(configs["chest"].audit) if entry.event is Event.REFUSAL]
    assert refusal.admission is not None and refusal.admission["code"] == Refusal.DATA
