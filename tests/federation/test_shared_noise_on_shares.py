"""Noise that sites share, through the real hub: its size whichever sites fall out, and sums that are never opened."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import Engine, Sites
from tiny_clip import TINY

from audits import Event, Refusal, read
from medfedvqa.core import averaging
from medfedvqa.core.on_shares import OPENING
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation import secure_hub
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.secure_hub import SecureHub
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from privacy import DPEvent, spent
from privacy.mechanisms.shared_gaussian import SharedGaussian

SIX = tuple(f"{organ}-{number}of2" for organ in ("abdomen", "chest", "head") for number in (1, 2))
OPTIONS = {
    **{"schedule": "stepwise", "rounds": 2, "tuning": "classifier", "hidden": 64, "units": 32, "dropout": 0.0},
    **{"weighting": "uniform", "answers": "closed", "learning_rate": 0.01},
}
DP = {"noise": 60.0, "count_noise": 5.0, "sample_rate": 0.25, "expected_patients": 8, "sharers": 3, "colluders": 1}


def job_of(**changes: Any) -> JobSpec:
    """A stepwise job whose sites share noise that is far larger than what 48 patients add."""
    fields = {"method": "fedavg", "options": OPTIONS, "data": "phantom", "backbone": TINY, "secagg": True}
    return JobSpec.from_dict({**fields, "dp": {**DP, **changes.pop("dp", {})}, **changes})


def ran(configs: dict[str, SiteConfig], job: JobSpec, out: Path, before: dict[str, set[str]]) -> Engine:
    """The engine after the job; `before`: the sites that die before a task."""
    engine = Engine(configs, job)
    engine.before = before
    serve_job(job, SIX, engine.call, out, "local")
    return engine


@pytest.mark.parametrize(
    ("step", "dead"),
    [("mean", 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in (("mean", 0), ("unmask", 1)))],
)
def test_a_sum_has_the_noise_that_is_charged_whichever_sites_fall_out(
    introduced: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, dead: int
) -> None:
    """Six sites of which four must stay: what the server opens has the noise of every site in the sum, never less than
    that of the three that are charged, with whole numbers that do not wrap."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 5.0)
    job, method = job_of(), job_of().build()
    engine = ran(introduced(*SIX, methods=["fedavg"], colluders=1), job, tmp_path, {f"start/{step}": set(SIX[:dead])})
    contributors = 6 if step == "unmask" else 6 - dead
    received = {name: engine.sent("train", name)[0].astype(np.float64) for name in method.shared(job.shape)}
    first = method.setup(next(iter(engine.local.kept().values()))[0])["values"]
    moved = np.concatenate([(first[name].double().numpy() - received[name]).ravel() for name in received])
    total = moved / OPTIONS["learning_rate"] * DP["expected_patients"] * contributors
    one = method.noise.of_one_site
    assert total.std() == pytest.approx(one * np.sqrt(contributors), rel=0.05)
    assert total.std() > 0.97 * method.noise.gradients == 0.97 * DP["noise"]
    assert np.abs(total).max() < 8 * total.std()


def test_a_later_step_has_the_noise_of_every_site(introduced: Sites, tmp_path: Path) -> None:
    """Under masks that last the answers' sum is whole numbers, less than the model by the noise of all six sites."""
    job, method = job_of(), job_of().build()
    engine = ran(introduced(*SIX, methods=["fedavg"], colluders=1), job, tmp_path, {})
    names = list(method.shared(job.shape))
    answers = [tensors for task, tensors in engine.passed if task == "train" and "contributors" in tensors]
    opened = {name: np.sum([each[name] for each in answers], axis=0, dtype=np.int64) for name in names}
    assert len(answers) == 6 and np.sum([each["contributors"] for each in answers], dtype=np.int64) == 6
    shapes, grid = method.shared(job.shape), averaging.unit(job.dp, method.shared(job.shape), 1.0)
    held = {name: np.rint(engine.sent("train", name)[0].astype(np.float64) / grid) for name in shapes}
    moved = np.concatenate([(6 * held[name] - opened[name]).ravel() for name in names])
    noise = moved * grid * DP["expected_patients"]
    assert noise.std() == pytest.approx(method.noise.of_one_site * np.sqrt(6), rel=0.05)
    assert all(np.abs(each[name].astype(np.float64)).max() > 2.0**55 for each in answers for name in names)


@pytest.mark.parametrize("lying", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_sum_of_fewer_honest_sites_than_planned_is_never_opened(
    introduced: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lying: bool
) -> None:
    """Four of the five sites that must stay, all members among them: the hub ends the job, and members refuse a server
    that does not."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 5.0)
    if lying:
        monkeypatch.setattr(secure_hub, "check_contributors", lambda *_: None)
        monkeypatch.setattr(SecureHub, "_require_enough", lambda self, sites: tuple(sorted(sites)))
    configs = introduced(*SIX, methods=["fedavg"], colluders=1, committee=list(SIX[3:]))
    job = job_of(dp={"sharers": 4}, committee=SIX[3:])
    engine = Engine(configs, job)
    engine.after = {"start/mean": set(SIX[:2])}
    with pytest.raises(FederationError, match="a sum of fewer than 5 sites" if lying else "4 sites are left"):
        serve_job(job, SIX, engine.call, tmp_path, "local")
    assert not engine.sent("start/unmask", OPENING.name) and not engine.sent("train", "head.answers.bias")


@pytest.mark.parametrize(
    ("policy", "counted"),
    [(None, None), (2, None), pytest.param(1, (3, 1), marks=pytest.mark.slow), (0, (4, 0))],
    ids=["unsaid", "two", "one", "none"],
)
def test_a_site_counts_against_as_many_colluders_as_its_policy_says(
    introduced: Sites, tmp_path: Path, policy: int | None, counted: tuple[int, int] | None
) -> None:
    """The ledger is charged for them, log and ledger alike; a job that trusts more sites than the policy is refused
    before any row is read, also where the policy says nothing."""
    configs, job = introduced(*SIX, methods=["fedavg"], colluders=policy), job_of()
    engine = Engine(configs, job)
    if counted is None:
        with pytest.raises(FederationError, match=Refusal.NOISE):
            serve_job(job, SIX, engine.call, tmp_path, "local")
        refused = [entry for entry in read(configs[SIX[0]].audit) if entry.event is Event.REFUSAL]
        assert [entry.admission["code"] for entry in refused] == [Refusal.NOISE]
        assert not engine.sent("start/mean", "weight")
        return
    serve_job(job, SIX, engine.call, tmp_path, "local")
    entries = [entry for entry in read(configs[SIX[0]].audit) if entry.dp_event]
    events = [DPEvent.from_dict(values) for values in entries[-1].dp_event["events"]]
    assert {(event.sites, event.colluders) for event in events} == {counted}
    both = [event.times(OPTIONS["rounds"]) for event in events]
    assert entries[-1].epsilon_after == pytest.approx(spent(both, 1e-5).epsilon)
    assert isinstance(events[0], SharedGaussian) and events[0].site_noise == pytest.approx(DP["noise"] / np.sqrt(3))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dp": {"sharers": 2, "colluders": 2}}, "as 1 at most"),
        ({"dp": {"sharers": 9, "colluders": 4}}, "as 3 at most"),
        ({"dp": {"sharers": 9, "colluders": 2}, "committee": 3, "min_sites": 20}, None),
        ({"secagg": "crypten"}, "'masks'"),
        ({"most_norm": 1.0}, "'most_norm'"),
    ],
)
def test_a_coalition_that_the_committee_does_not_bear_is_refused(changes: dict[str, Any], words: str | None) -> None:
    """So many members and the server could open single uploads, which have a part of the noise only. So are options
    under which sums would not be exact."""
    if words is None:
        assert job_of(**changes).dp.colluders == 2
        return
    with pytest.raises(ConfigError, match=words):
        job_of(**changes)


def test_a_job_without_shared_noise_is_written_as_earlier_versions_read_it() -> None:
    """Its definition is the same, and what a site signed stays signed."""
    plain = job_of(dp={"sharers": 1, "colluders": 0})
    assert not {"sharers", "colluders"} & plain.to_dict()["dp"].keys() and JobSpec.from_dict(plain.to_dict()) == plain
    assert JobSpec.from_dict(job_of().to_dict()) == job_of()
