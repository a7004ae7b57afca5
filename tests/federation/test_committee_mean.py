"""Means that sites compute with CrypTen, in process: what comes of them, who learns what, what happens on faults."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import Engine, ask
from untrained import FIVE, THREE, Averaged, AveragedAtSites, Make, assert_alike, given

from audits import JobRefused, Outcome, Protection, Refusal, SitePolicy, read, verify
from audits.errors import PolicyError
from medfedvqa.core import Tensors
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.aggregation_attempt import Attempt
from medfedvqa.federation.hub import Reply
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.secure_hub import check_repeatable
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.site_runtime import SiteRuntime
from medfedvqa.federation.site_state import StateFile
from privacy.secagg import SecureAggregationError

CRYPTEN: dict[str, Any] = {"secagg": "crypten"}


@pytest.mark.parametrize(
    ("method", "committee"),
    [
        (Averaged, 3),
        pytest.param(Averaged, None, marks=pytest.mark.slow),
        (AveragedAtSites, None),
        pytest.param(AveragedAtSites, 3, marks=pytest.mark.slow),
    ],
)
def test_every_site_gets_the_mean_of_the_masks_bit_for_bit(
    job_on_shares: Make, tmp_path: Path, method: type[Averaged], committee: int | None
) -> None:
    """With all sites as members, and with a committee: both protocols sum up the same fixed point."""
    means: dict[Any, Any] = {}
    for secagg in (True, "crypten"):
        configs, job = job_on_shares(method, FIVE, rounds=2, committee=committee, secagg=secagg)
        (tmp_path / str(secagg)).mkdir()
        engine = Engine(configs, job, str(secagg))
        results = serve_job(job, FIVE, engine.call, tmp_path / str(secagg), "local")
        assert results["status"] == "finished" and results["secagg"] == secagg
        means[secagg] = [given(config, round, str(secagg)) for config in configs.values() for round in (1, 2)]
    assert not engine.sent("start/unmask", "uploaded")
    for masked, summed in zip(means[True], means["crypten"], strict=True):
        assert masked.keys() == summed.keys() and all(np.array_equal(masked[name], summed[name]) for name in masked)
    plain = [Averaged.mean(FIVE, round) for _ in FIVE for round in (1, 2)]
    for summed, mean in zip(means["crypten"], plain, strict=True):
        assert_alike(summed, {name: mean[name] for name in summed})


@pytest.mark.parametrize("method", [Averaged, AveragedAtSites])
def test_the_server_has_the_sum_and_nothing_else(job_on_shares: Make, tmp_path: Path, method: type[Averaged]) -> None:
    """From each member the same, from other sites nothing; and where only sites may know it, under their key."""
    configs, job = job_on_shares(method, FIVE, committee=3, **CRYPTEN)
    engine = Engine(configs, job)
    serve_job(job, FIVE, engine.call, tmp_path, "local")
    (attempt,) = engine.attempts
    sums = engine.sent("start/mean", "prompt.x")
    assert len(attempt.members) == len(sums) == 3 and all(np.array_equal(each, sums[0]) for each in sums)
    expected = sum(
        np.rint(np.float64(held["prompt.x"]) * int(held["rows"]) * 2**24).astype(np.int64)
        for held in (Averaged.holding(site, 1) for site in FIVE)
    )
    in_clear = np.array_equal(sums[0], expected)
    assert in_clear is (method is Averaged)
    if method is AveragedAtSites:
        assert (np.abs(sums[0].astype(np.float64)) > 2.0**53).mean() > 0.9  # the sum itself is below 2^40


@pytest.mark.parametrize("committee", [None, ("c", "d", "e")])
@pytest.mark.parametrize("moment", ["before start", "before start/mean", "after start/mean"])
def test_a_round_is_repeated_without_a_site_that_dies(
    job_on_shares: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    committee: tuple[str, ...] | None,
) -> None:
    """While it trains, or before it shares. One that dies once its shares are out is in the sum, which others have."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 2.0)
    allowed = {"committee": list(committee or ())}
    configs, job = job_on_shares(Averaged, FIVE, rounds=2, committee=committee, allowed=allowed, **CRYPTEN)
    engine, (when, task) = Engine(configs, job), moment.split()
    getattr(engine, when)[task] = {"a"}
    results = serve_job(job, FIVE, engine.call, tmp_path, "local")
    assert results["status"] == "finished" and [n for n in results["notes"] if "went on without" in n or "left" in n]
    scale, prompt = (engine.sent("train", name)[0] for name in ("scale", "prompt.x"))
    assert_alike({"scale": scale, "prompt.x": prompt}, Averaged.mean(FIVE if when == "after" else FIVE[1:], 1))
    for site in FIVE[1:]:
        assert_alike(given(configs[site], 2), Averaged.mean(FIVE[1:], 2))


@pytest.fixture
def shared(job_on_shares: Make) -> tuple[Engine, dict[str, SiteConfig], JobSpec]:
    """Five sites that have summed up in the attempt "one" of round 1."""
    configs, job = job_on_shares(Averaged, FIVE, **CRYPTEN)
    engine = Engine(configs, job)
    ask(engine, "start", FIVE, {})
    ask(engine, "start/mean", FIVE, Attempt("one", FIVE, members=FIVE).message())
    return engine, configs, job


def test_a_member_opens_one_sum_of_a_round_even_after_a_restart(shared: Any) -> None:
    """Asked for it again, it says the same; in another attempt it takes no part."""
    engine, configs, job = shared
    engine = Engine(configs, job)
    (again,) = ask(engine, "start/mean", "a", Attempt("one", FIVE, members=FIVE).message()).values()
    saved = StateFile(configs["b"].state, "job").load()
    assert saved is not None and saved.contributions[-1].total is not None
    total = np.frombuffer(saved.contributions[-1].total, "<i8")
    assert np.array_equal(again.tensors["prompt.x"].reshape(-1), total[:16])
    with pytest.raises(FederationError, match="no other attempt"):
        ask(engine, "start/mean", "a", Attempt("two", FIVE[:4], members=FIVE[:4], number=2).message())


def test_a_member_that_died_while_it_opened_says_so_and_takes_no_further_part(shared: Any) -> None:
    """What it may have sent to others can open the sum: a second sum of the round would show a difference."""
    engine, configs, job = shared
    file = StateFile(configs["a"].state, "job")
    saved = file.load()
    assert saved is not None
    dead = replace(saved.contributions[-1], total=None)
    file.save(replace(saved, contributions=(dead,)))
    engine = Engine(configs, job)
    (reply,) = ask(engine, "start/mean", "a", Attempt("one", FIVE, members=FIVE).message()).values()
    assert {name: int(value) for name, value in reply.tensors.items()} == {"fault": 0, "shared_bytes": 0, "opened": 1}
    with pytest.raises(FederationError, match="no other attempt"):
        ask(engine, "start/mean", "a", Attempt("two", FIVE[:4], members=FIVE[:4], number=2).message())


@pytest.mark.parametrize(
    ("liars", "sentence"), [("b", "members opened different sums"), (FIVE, "do not add up to what the job allows")]
)
def test_sums_that_differ_or_that_no_sites_can_have_are_no_mean(
    job_on_shares: Make, tmp_path: Path, liars: Collection[str], sentence: str
) -> None:
    """The round gives no mean, the one before it stays, and the results say why."""
    configs, job = job_on_shares(Averaged, FIVE, rounds=2, **CRYPTEN)
    engine = Engine(configs, job)

    def bend(task: str, site: str, answer: Tensors) -> Tensors:
        if task != "train/mean" or site not in liars:
            return answer
        return answer | {"prompt.x": answer["prompt.x"] + 1, "rows": np.array(int(answer["rows"]) + 10**15)}

    engine.bend = bend
    results = serve_job(job, FIVE, engine.call, tmp_path, "local")
    assert [note for note in results["notes"] if "Round 2 gave no mean, and the one before it stayed" in note], results
    assert [note for note in results["notes"] if sentence in note]
    assert_alike(given(configs["a"], 2), Averaged.mean(FIVE, 1))


def reply(**values: int) -> Reply:
    return Reply({name: np.array(value) for name, value in values.items()}, 0.0)


def test_a_broken_attempt_is_repeated_only_while_the_sum_is_sure_to_stay_closed() -> None:
    """Not once a member has sent its part of the opening, nor with too few of the members of an attempt with shares."""
    attempt = Attempt("one", FIVE, members=FIVE)
    closed = {site: reply(fault=4, shared_bytes=9, opened=0) for site in "abcd"}
    check_repeatable(attempt, closed, "abcd")
    with pytest.raises(SecureAggregationError, match="while the sum was being opened"):
        check_repeatable(attempt, closed | {"b": reply(fault=4, shared_bytes=9, opened=1)}, "abcd")
    with pytest.raises(SecureAggregationError, match="too few members"):
        check_repeatable(attempt, closed, "abc")
    nothing_shared = {site: reply(fault=4, shared_bytes=0, opened=0) for site in "abc"}
    check_repeatable(attempt, nothing_shared, "abc")


def test_the_log_tells_what_was_shared_and_which_sum_was_opened(job_on_shares: Make, tmp_path: Path) -> None:
    """By name, without digests: the tensors and the weight that went out as shares, among whom, and who could open
    them. Then, at members, the sum to the server; other sites send no value."""
    allowed = {"require_secagg": True}
    configs, job = job_on_shares(Averaged, FIVE, committee=3, allowed=allowed, **CRYPTEN)
    engine = Engine(configs, job)
    serve_job(job, FIVE, engine.call, tmp_path, "local")
    (attempt,) = engine.attempts
    for site, config in configs.items():
        assert verify(config.audit).ok
        sent = [entry for entry in read(config.audit) if entry.outcome == Outcome.SENT and "start/" in entry.task]
        (shares,) = [entry for entry in sent if entry.peer == "sites"]
        assert shares.task == "start/mean"
        logged = {t.name: (t.dtype, t.protection, t.sha256) for t in shares.tensors}
        assert logged == dict.fromkeys(
            ("prompt.x", "scale", "rows", "contributors"), ("int64", Protection.MASKED, None)
        )
        assert "a sum among a, b, c, d, e, without a dealer" in str(shares.reason)
        assert "all 3 of them together could open every input" in str(shares.reason)
        (answer,) = [entry for entry in sent if entry.peer == "server" and "start/mean" in entry.task]
        if site in attempt.members:
            assert answer.task == "start/mean/sum" and answer.sharing["stage"] == "opened"
            assert {t.name for t in answer.tensors} == {*logged, "shared_bytes"}
        else:
            assert answer.task == "start/mean/shared" and {t.name for t in answer.tensors} == {"shared_bytes"}


def test_a_site_may_demand_masks(job_on_shares: Make) -> None:
    """It then refuses means by CrypTen, and takes part in those under masks."""
    configs, job = job_on_shares(Averaged, THREE, allowed={"require_masks": True}, **CRYPTEN)
    with pytest.raises(JobRefused) as refused:
        SiteRuntime(configs["chest"], job, "one").handle("start", 1, {})
    assert refused.value.code is Refusal.MASKS
    masked = JobSpec.from_dict(job.to_dict() | {"secagg": True})
    assert ask(Engine(configs, masked), "start", THREE, {}).keys() == {*THREE}


def test_a_site_may_demand_crypten(job_on_shares: Make) -> None:
    """It then refuses means under masks by a code of their own before the job starts, takes part in those with CrypTen,
    and lets methods run that take no mean on shares; nobody can demand both."""
    configs, job = job_on_shares(Averaged, THREE, allowed={"require_crypten": True}, **CRYPTEN)
    masked = JobSpec.from_dict(job.to_dict() | {"secagg": True})
    with pytest.raises(JobRefused) as refused:
        SiteRuntime(configs["chest"], masked, "one").handle("start", 1, {})
    assert refused.value.code is Refusal.CRYPTEN and "'crypten'" in str(refused.value.code.sentence)
    assert ask(Engine(configs, job), "start", THREE, {}).keys() == {*THREE}
    for other in ({"method": "prompt_pfl", "secagg": True}, {"method": "fedavg"}):
        assert not JobSpec.from_dict({**other, "options": {"answers": "closed"}}).offer().masked_means
    with pytest.raises(PolicyError, match="demand one"):
        SitePolicy.from_mapping({"methods": [], "kinds": [], "require_masks": True, "require_crypten": True})


def test_masks_is_another_word_for_true() -> None:
    """So a job with masks is the same job to every version, and one with CrypTen is another."""
    jobs = [JobSpec.from_dict({"method": "fedavg", "secagg": secagg}) for secagg in (True, "masks", "crypten")]
    assert [job.to_dict()["secagg"] for job in jobs] == [True, True, "crypten"]
    assert jobs[0].definition == jobs[1].definition != jobs[2].definition
    with pytest.raises(ConfigError):
        JobSpec.from_dict({"method": "fedavg", "secagg": "homomorphic"})
