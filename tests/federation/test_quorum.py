"""Sites that do not answer: the round goes on, they come back or are left out, and the results say so."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixed_answers import EXCHANGE, SITES, answer, vectors
from in_process import Engine, Job, Sites
from untrained import Averaged

from audits import Event, Refusal, read
from medfedvqa.core import create
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.evaluation import results_schema
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.hub import Reply, ServerHub, TaskCall
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.journal import Journal
from medfedvqa.federation.quorum import TAKEN_WITHIN, Quorum, QuorumRule
from medfedvqa.federation.serve import serve_job
from privacy import Reliability

NAMES = ("abdomen", "chest", "head")
SMALL = {"rounds": 3, "local_epochs": 1, "local_unit": "batches", "batch_rows": 16, "blocks": 1, "hidden": 16}
FEDAVG = {**SMALL, "tuning": "bias"}


class Flaky:
    """An engine whose sites are away in the rounds that a test names; `calls` keeps what was asked of them."""

    def __init__(self, away: Mapping[str, set[int]]) -> None:
        self.away, self.calls = away, list[TaskCall]()
        self.prompts = vectors((1, 0), (3, 0), (5, 3))

    def __call__(self, call: TaskCall) -> dict[str, Reply]:
        self.calls.append(call)
        replies = answer(self.prompts)(call)
        return {site: reply for site, reply in replies.items() if call.round not in self.away.get(site, ())}


def fedavg_job(quick_job: Job, **fields: Any) -> JobSpec:
    return JobSpec.from_dict(quick_job().to_dict() | {"method": "fedavg", "options": FEDAVG, **fields})


def test_a_round_goes_on_with_those_who_answered_and_a_late_site_joins_the_next() -> None:
    """The mean of round 2 is that of the two sites that answered; in round 3 the third counts again."""
    engine = Flaky({"c": {2}})
    hub = ServerHub(SITES, engine, EXCHANGE, rule=QuorumRule(rejoins=True, round_timeout=9.0))
    means = [hub.mean("train", weight="accuracy")["prompt"][0, 0].tolist() for _ in hub.rounds(3)]
    assert means == [[3, 1], [2, 0], [3, 1]]
    assert [record.missing for record in hub.history.rounds] == [(), ("c",), ()]
    assert hub.sites == SITES and not hub.history.left_out
    assert [set(call.quorum.absent) for call in engine.calls] == [set(), set(), {"c"}]
    assert all(call.quorum.seconds == 9.0 for call in engine.calls)


def test_a_method_that_needs_every_round_of_a_site_leaves_it_out() -> None:
    """After its first missed round the site is asked for nothing more, and no mixture has its old upload."""
    engine = Flaky({"c": {2}})
    hub = ServerHub(SITES, engine, EXCHANGE, rule=QuorumRule(least=2))
    shared: dict[str, Any] = {}
    for _ in hub.rounds(3):
        shared = hub.mix("train", Reliability(), shared or None)
    assert hub.sites == ("a", "b") and hub.history.left_out == {"c": 2} and set(shared) == {"a", "b"}
    assert [set(call.messages) for call in engine.calls] == [{"a", "b", "c"}, {"a", "b", "c"}, {"a", "b"}]
    weights = np.array(hub.history.rounds[-1].reliability["prompt"])
    assert weights.shape == (3, 3) and not weights[2].any() and not weights[:, 2].any()
    assert np.array_equal(shared["a"]["prompt"], engine.prompts["b"])


@pytest.mark.parametrize(("rejoins", "sites"), [(True, "b, c"), (False, "b, c")])
def test_too_few_answers_end_the_job_and_name_who_is_missing(rejoins: bool, sites: str) -> None:
    """With `min_sites` 2 and one answer the job ends in that round, whether or not its sites could come back."""
    hub = ServerHub(SITES, Flaky({"b": {2}, "c": {2}}), EXCHANGE, rule=QuorumRule(least=2, rejoins=rejoins))
    with pytest.raises(FederationError, match=f"round 2: {sites} did not answer, 1 of the 3 .* needs 2"):
        for _ in hub.rounds(3):
            hub.collect("train")


def test_the_quorum_of_a_call() -> None:
    """Enough answers or enough time end a call; an absent site is waited for once it took the task. The evaluation has
    the time of all rounds, and ends early for nobody."""
    rule = QuorumRule(least=2, wait_for=2, round_timeout=10.0, rounds=3, rejoins=True)
    quorum = rule.of("train", {"c"})
    assert not quorum.reached(1, 9.9) and quorum.reached(2, 0.0) and quorum.reached(0, 10.0)
    assert quorum.excused((), TAKEN_WITHIN) == {"c"} and not quorum.excused({"c"}, TAKEN_WITHIN)
    assert not quorum.excused((), TAKEN_WITHIN - 1)
    assert rule.of("evaluate", ()) == Quorum(None, 30.0) and rule.least_of("evaluate", 3) == 1
    assert QuorumRule().of("train", ()).seconds is None


def test_a_federation_in_process_survives_a_site_that_is_away_and_takes_it_back(
    sites: Sites, quick_job: Job, tmp_path: Path
) -> None:
    """fedavg, where one site first appears in round 2 and another misses the evaluation: results name both, the first
    has an accuracy, and averages are over the two sites that were evaluated."""
    job = fedavg_job(quick_job)
    engine = Engine(sites(*NAMES, methods=["fedavg"]), job)

    def call(asked: TaskCall) -> dict[str, Reply]:
        engine.dead = {"head"} if asked.round == 1 else {"chest"} if asked.task == "evaluate" else set()
        return engine.call(asked)

    results = serve_job(job, NAMES, call, tmp_path, "local")
    assert [record["missing"] for record in results["rounds"]] == [["head"], [], []]
    assert results["missing_at_end"] == ["chest"] and results["expected"] == list(NAMES)
    assert results["sites"]["head"]["rounds"] == 2 and results["sites"]["head"]["accuracy"] is not None
    assert results["sites"]["chest"]["accuracy"] is None
    others = [results["sites"][name]["accuracy"] for name in ("abdomen", "head")]
    assert results["average"]["accuracy"] == pytest.approx(sum(others) / 2)
    notes = " ".join(results["notes"])
    assert "Site head missed 1 of 3 rounds (1)" in notes and "did not answer at the end: chest" in notes
    assert {"expected", "missing_at_end"} <= results_schema()["properties"].keys()
    assert (tmp_path / "table.md").exists() and json.loads((tmp_path / "results.json").read_text()) == results


@pytest.mark.parametrize("method", ["fedavg", "prompt_pfl", "on shares"])
def test_a_job_with_a_quorum_goes_on_without_a_site_that_refuses(
    introduced: Sites, quick_job: Job, tmp_path: Path, method: str
) -> None:
    """One of four sites does not allow the method, and the job needs three: it is asked once, the results give the
    sentence of its code and no text of its own, and the other three finish."""
    names = (*NAMES, "pelvis")
    name = "fedavg" if method == "on shares" else method
    options = quick_job().options | {"answers": "closed"} if method == "prompt_pfl" else FEDAVG
    spec = {"method": name, "options": options, "min_sites": 3, "secagg": method == "on shares"}
    job = JobSpec.from_dict(quick_job().to_dict() | spec)
    configs = introduced(*names, organ="chest", methods=[name])
    refusing = replace(configs["head"].policy, methods=())
    configs["head"] = configs["head"].model_copy(update={"policy": refusing})
    engine = Engine(configs, job)
    results = serve_job(job, names, engine.call, tmp_path, "local")
    assert results["status"] == "finished" and results["missing_at_end"] == ["head"]
    note = f"Site head refused the job in round 1 ({Refusal.METHOD.sentence}): the job went on without it."
    assert note in results["notes"] and note in (tmp_path / "table.md").read_text()
    assert sum(entry.event is Event.REFUSAL for entry in read(configs["head"].audit)) == 1
    assert all(results["sites"][site]["rounds"] == results["rounds_planned"] for site in names if site != "head")


@pytest.mark.parametrize("least", [1, 3])
def test_a_refusal_ends_a_job_without_a_quorum_or_below_it(
    sites: Sites, quick_job: Job, tmp_path: Path, least: int
) -> None:
    """A job that does not say how many sites suffice, and one that needs all three: the site is named with its reason,
    and the results have it."""
    configs = sites(*NAMES, methods=["fedavg"])
    configs["head"] = configs["head"].model_copy(update={"policy": replace(configs["head"].policy, methods=())})
    job = fedavg_job(quick_job, min_sites=least)
    with pytest.raises(FederationError, match=f"site 'head' stopped the job: .*{Refusal.METHOD.sentence}"):
        serve_job(job, NAMES, Engine(configs, job).call, tmp_path, "local")
    assert "site 'head' stopped the job" in json.loads((tmp_path / "results.json").read_text())["failure"]


def test_a_refusal_in_a_step_on_shares_ends_the_job(
    job_on_shares: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that finds the server's attempt false is no dropout, although three of four sites would be enough."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 2.0)
    names = (*NAMES, "pelvis")
    configs, job = job_on_shares(Averaged, names, min_sites=3)
    engine = Engine(configs, job)

    def forged(task: str, site: str, message: Any) -> Any:
        odd = (task, site) == ("start/mean", "head")
        return {**message, "attempt": message["attempt"][:-1]} if odd else message

    engine.tamper = forged
    with pytest.raises(FederationError, match="site 'head' stopped the job"):
        serve_job(job, names, engine.call, tmp_path, "local")


def test_a_server_that_continues_a_run_knows_who_refused(tmp_path: Path) -> None:
    """A site that could come back and refused in round 1 is not asked again by the next process, which reads from the
    journal what the first one wrote; the refusal is that of the first."""

    class Died(Exception):
        pass

    def engine(call: TaskCall) -> dict[str, Reply]:
        if call.round == 3 and not journal.continues:
            raise Died
        asked.append((call.round, *sorted(call.messages)))
        if "c" in call.messages:
            call.refused("c", Refusal.ROOT, "a text of the site's own")
        return answer(vectors((1, 0), (3, 0)))(replace(call, messages={"a": {}, "b": {}}))

    asked: list[Any] = []
    rule = QuorumRule(least=2, rejoins=True, outlives_refusals=True)
    for expected in ([(1, "a", "b", "c"), (2, "a", "b")], [(3, "a", "b")]):
        journal = Journal(tmp_path / "journal")
        hub = ServerHub(SITES, engine, EXCHANGE, rule=rule, journal=journal)
        asked.clear()
        with suppress(Died):
            for _ in hub.rounds(3):
                hub.mean("train", weight="accuracy")
        assert asked == expected
        assert hub.history.refusals == {"c": Refusal.ROOT.sentence} and hub.history.left_out == {"c": 1}
    assert len(hub.history.rounds) == 3


def test_in_process_the_slowest_sites_miss_a_round_that_waits_for_fewer(sites: Sites, quick_job: Job) -> None:
    """With `wait_for` 2 the engine returns two answers, those of the fastest sites; with a limit of time, those within
    it. The other sites' next task is a later one, and they answer it."""
    job = fedavg_job(quick_job, wait_for=2)
    engine = LocalEngine(sites(*NAMES, methods=["fedavg"]), job, "slow")
    first = engine.call(TaskCall("start", 1, dict.fromkeys(NAMES, {}), quorum=Quorum(answers=2)))
    assert len(first) == 2
    means = {name: array for name, array in first[next(iter(first))].tensors.items() if name != "train_rows"}
    second = engine.call(TaskCall("train", 2, dict.fromkeys(NAMES, means)))
    assert set(second) == set(NAMES)
    assert engine.call(TaskCall("train", 3, dict.fromkeys(NAMES, means), quorum=Quorum(seconds=0.0))) == {}
    engine.close()


def test_a_job_says_how_long_it_waits(quick_job: Job) -> None:
    """The default is all sites and ten minutes. `wait_for` is refused where it would lose sites for good, and below
    the number of sites that the job needs."""
    job = fedavg_job(quick_job, min_sites=2, wait_for=2)
    assert job.quorum_rule() == QuorumRule(2, 2, 600.0, 3, True, True)
    assert not quick_job().quorum_rule().outlives_refusals
    assert quick_job().quorum_rule().round_timeout == 600.0 and quick_job().wait_for is None
    with pytest.raises(ConfigError, match="takes no further part"):
        JobSpec.from_dict(quick_job().to_dict() | {"wait_for": 2})
    with pytest.raises(ConfigError, match="takes no further part"):
        fedavg_job(quick_job, secagg=True, wait_for=3)
    with pytest.raises(ConfigError, match="at least this number"):
        fedavg_job(quick_job, min_sites=3, wait_for=2)
    for bad in ({"round_timeout": 0}, {"wait_for": 0}, {"wait_for": 1.5}):
        with pytest.raises(ConfigError):
            fedavg_job(quick_job, **bad)


@pytest.mark.parametrize(
    ("method", "rejoins"),
    [("fedavg", True), ("feddat", True), ("creamfl", True), ("prompt_pfl", False), ("san", False)],
)
def test_methods_say_whether_a_site_may_come_back(method: str, rejoins: bool) -> None:
    """Methods that average take a site back; those whose server or sites need every round do not."""
    assert create(method, {}).rejoins is rejoins
