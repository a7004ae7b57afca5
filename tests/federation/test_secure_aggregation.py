"""Jobs with secure aggregation in process: what comes of them, what the server holds, and what happens on faults."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import Engine, Job, Sites, in_clear_and_on_shares
from untrained import DP, THREE, Make, Mixed, assert_mixed, assert_near, saved

from audits import JobRefused, Outcome, Protection, read, verify
from audits.errors import ReleaseFault
from audits.verifier import totals
from medfedvqa.core import Method, Tensors
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.evaluation import load_transcript
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.aggregation_attempt import Attempt
from medfedvqa.federation.hub import TaskCall
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.federation.site_state import StateFile
from medfedvqa.methods.prompt_pfl import PromptPFL
from medfedvqa.models import shape_of


@pytest.fixture
def secure_job(quick_job: Job) -> Job:
    """A quick job on shares; keywords are options of the method."""
    return lambda **options: JobSpec.from_dict(quick_job(**options).to_dict() | {"secagg": True})


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"similarity": "prompt"},
        {"similarity": "block"},
        {"similarity": "paper"},
        {"compared": "changes"},
        {"most_share": 0.5},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_sites_that_train_get_the_plain_mixture(
    introduced: Sites, secure_job: Job, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Within 1e-3 of the plain run, relative to its norm; what passed the server is what dealing needs, and figures."""
    configs, job = introduced(*THREE, repeatable_noise=1), secure_job(rounds=1, **options)
    runs, results = in_clear_and_on_shares(configs, job, tmp_path)
    expected = load_transcript(tmp_path / "plain").shared
    for site in THREE:
        assert_near(saved(configs[site], "secure").mixture, expected[site])
        assert json.loads((configs[site].state / "secure.evaluate.json").read_text())["rows"] > 0
    assert_nothing_held(runs["secure"], results, tmp_path / "secure")


def test_the_server_holds_no_prompt_and_no_accuracy(job_on_shares: Make, tmp_path: Path) -> None:
    """Sites get the plain mixture; what passed the server is seeds, coins, tuples, zeros and figures."""
    configs, job = job_on_shares(Mixed, THREE)
    engine = Engine(configs, job)
    results = serve_job(job, THREE, engine.call, tmp_path, "local")
    assert_mixed(configs, THREE, 1)
    assert_nothing_held(engine, results, tmp_path)


def assert_nothing_held(engine: Engine, results: dict[str, Any], folder: Path) -> None:
    """By the server, of what sites mixed."""
    seen = load_transcript(folder)
    assert not seen.uploads and not seen.shared
    dealing = {"attempt", "tuple_seed", "coin_commitment", "committed", "coin", "opened", "dealt"}
    assert {name for _, message in engine.passed for name in message} == {*dealing, "fault", "shared_bytes"}
    assert results["secagg"] and results["status"] == "finished" and results["rounds"][0]["accuracy"] == {}
    assert all(facts["accuracy"] is None for facts in results["sites"].values())


def test_the_log_says_what_was_shared_among_whom_and_who_dealt(job_on_shares: Make, tmp_path: Path) -> None:
    """One masked release for each attempt, before any message of it, without digests; nothing else that is data."""
    configs, job = job_on_shares(Mixed, THREE, rounds=2, allowed={"require_secagg": True, "min_sites": 3})
    serve_job(job, THREE, Engine(configs, job).call, tmp_path, "local")
    for config in configs.values():
        assert verify(config.audit).ok
        sent = [entry for entry in read(config.audit) if entry.outcome == Outcome.SENT]
        dealing = [("start/coin", "server")]
        tasks = [("start", "server"), *dealing, ("start/mix", "sites"), ("start/mix", "server")]
        tasks += [(task.replace("start", "train"), peer) for task, peer in tasks]
        assert [(entry.task, entry.peer) for entry in sent] == [*tasks, ("evaluate", "server")]
        for entry in sent:
            if entry.peer == "sites":
                assert {record.protection for record in entry.tensors} == {Protection.MASKED}
                assert {record.sha256 for record in entry.tensors} == {None}
                assert "among abdomen, chest, head, dealt by the server" in str(entry.reason)
        to_server = {t.name for t in totals(config.audit).tensors if (t.direction, t.peer) == ("out", "server")}
        assert to_server == {"tuple_seed", "coin_commitment", "coin", "fault", "shared_bytes"}


@pytest.mark.parametrize("method", [pytest.param(PromptPFL, marks=pytest.mark.slow), Mixed])
def test_after_differential_privacy_what_is_shared_carries_both(
    job_on_shares: Make, tmp_path: Path, method: type[Method[Any]]
) -> None:
    """The epsilon goes to the server in clear, and every masked release has its charge."""
    allowed = {"require_secagg": True, "require_dp": True}
    configs, job = job_on_shares(method, THREE, rounds=2, allowed=allowed, dp=DP)
    results = serve_job(job, THREE, Engine(configs, job).call, tmp_path, "local")
    assert results["status"] == "finished" and results["sites"]["head"]["epsilon"] > 0
    exchange = job.build().final_exchange(shape_of(job.backbone))
    sent = [spec.name for spec in exchange.task("train").up]
    assert sent == ["epsilon", "tuple_seed", "coin_commitment"] and exchange.task("evaluate").up == ()
    protections = {spec.protection for spec in exchange.task("train/mix").up if spec.name.startswith("prompt")}
    assert protections == {Protection.DP_MASKED}
    for config in configs.values():
        masked = [entry for entry in read(config.audit) if entry.peer == "sites" and entry.outcome == Outcome.SENT]
        assert len(masked) == 2 and all(entry.dp_event for entry in masked)


def test_a_site_that_dies_while_mixing_is_left_out_and_the_round_repeated_with_the_rest(
    job_on_shares: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other dealt tuples, another attempt; the result is the plain one over the others, and the results say so."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 2.0)
    configs, job = job_on_shares(Mixed, (*THREE, "spare"))
    engine = Engine(configs, job)
    engine.before["start/mix"] = {"head"}
    results = serve_job(job, tuple(configs), engine.call, tmp_path, "local")
    assert results["status"] == "finished"
    assert any("Site head broke off in round 1" in note for note in results["notes"])
    first, second = engine.attempts
    assert "head" in first.sites and "head" not in second.sites
    assert len({dealt.tobytes() for dealt in engine.sent("start/mix", "dealt")}) == 7
    assert_mixed(configs, ("abdomen", "chest", "spare"), 1)
    assert not saved(configs["head"]).mixture


def test_fewer_than_three_sites_that_are_left_end_the_job(
    job_on_shares: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two, each could subtract its own part; nothing is repeated, and the reason is in the results."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 1.0)
    configs, job = job_on_shares(Mixed, THREE)
    engine = Engine(configs, job)
    engine.before["start/mix"] = {"head"}
    with pytest.raises(FederationError, match="2 sites are left .head fell out.*could reveal"):
        serve_job(job, THREE, engine.call, tmp_path, "local")
    assert len(engine.attempts) == 1 and not any(saved(config).mixture for config in configs.values())


def test_a_site_serves_in_no_attempt_twice_and_in_no_second_one_of_a_round(job_on_shares: Make) -> None:
    """Dealt tuples must not serve twice, and two mixtures of one round would show what they differ by."""
    configs, job = job_on_shares(Mixed, THREE)
    engine = Engine(configs, job)
    engine.call(TaskCall("start", 1, dict.fromkeys(THREE, {})))
    chest, begun = engine.local._runtime("chest"), saved(configs["chest"])
    file = StateFile(configs["chest"].state, "job")
    file.save(replace(begun, attempt="died"))
    assert int(chest.handle("start/mix", 1, Attempt("died", THREE, b"", THREE).message())["fault"]) == 1
    file.save(replace(begun, attempt="done", mixed=1))
    assert int(chest.handle("start/mix", 1, Attempt("done", THREE, b"", THREE).message())["fault"]) == -1
    with pytest.raises(JobRefused, match="already has its mixture"):
        chest.handle("start/mix", 1, Attempt("second", THREE, b"", THREE).message())


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (Attempt("a", ("abdomen", "chest"), members=("abdomen", "chest")).message(), "at least 3"),
        (Attempt("a", ("abdomen", "foot", "head"), members=("abdomen", "foot", "head")).message(), "needs this site"),
        (
            Attempt("a", ("abdomen", "chest", "foot"), members=("abdomen", "chest", "foot")).message(),
            "no fingerprint of foot",
        ),
        (
            Attempt("a", ("head", "chest", "abdomen"), members=("head", "chest", "abdomen")).message(),
            "in alphabetical order",
        ),
        ({}, "lacks its part 'attempt'"),
    ],
)
def test_a_site_refuses_attempts_that_would_expose_it(job_on_shares: Make, message: Tensors, sentence: str) -> None:
    """Too few sites, a site that is not pinned, nonsense: refused before anything is shared."""
    configs, job = job_on_shares(Mixed, THREE)
    engine = Engine(configs, job)
    engine.call(TaskCall("start", 1, {"chest": {}}))
    with pytest.raises(FederationError, match=sentence):
        engine.call(TaskCall("start/mix", 1, {"chest": message}))
    assert not [entry for entry in read(configs["chest"].audit) if entry.peer == "sites"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"mode": "paper"}, "clamped"), ({"order": "sequential"}, "synchronous"), ({"ablation": "AS2"}, "own upload")],
)
def test_a_job_that_cannot_run_on_shares_is_refused_at_submission(
    quick_job: Job, options: dict[str, Any], reason: str
) -> None:
    """With the reason, before anything is written or trained."""
    with pytest.raises(ConfigError, match=reason):
        JobSpec.from_dict(quick_job(**options).to_dict() | {"secagg": True})


def test_a_job_on_shares_needs_three_sites_and_offers_them(secure_job: Job, sites: Sites, tmp_path: Path) -> None:
    """What it offers satisfies a site that requires secure aggregation; the same job in clear does not."""
    job, never = secure_job(), lambda *_: {}
    assert job.offer().secagg and job.offer().min_sites == 3
    with pytest.raises(ConfigError, match="at least 3 sites"):
        serve_job(job, ("chest", "head"), never, tmp_path, "local")
    strict = sites("chest", require_secagg=True)["chest"]
    with pytest.raises(JobRefused, match=ReleaseFault.SECAGG):
        SiteRuntime(strict, job.model_copy(update={"secagg": False}), "clear").handle("start", 1, {})
