"""Means under masks in process: what comes of them, who learns what, and what happens on faults."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import Engine, Sites, ask, in_clear_and_on_shares
from tiny_clip import TINY
from untrained import DP, FIVE, THREE, Averaged, AveragedAtSites, Make, Unweighted, assert_alike, given

from audits import Event, JobRefused, Kind, Outcome, Protection, Refusal, read, verify
from medfedvqa.core import ACCURACY, MeanOnShares, Tensors
from medfedvqa.core.hub import GroupMean
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.aggregation_attempt import Attempt, Opening
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.secure_hub import SecureHub
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.models import shape_of
from privacy import Secagg


class ByAccuracy(Averaged):
    """With a weight that is no whole number."""

    name = "by_accuracy"
    how = MeanOnShares(ACCURACY)
    weight = ACCURACY

    @classmethod
    def holding(cls, site: str, round: int) -> Tensors:
        held = super().holding(site, round)
        accuracy = np.array(held.pop("rows") / 4000, np.float32)
        return {**held, ACCURACY: accuracy}


@pytest.mark.parametrize("method", [Averaged, ByAccuracy, AveragedAtSites])
def test_a_job_on_shares_goes_as_the_plain_one(job_on_shares: Make, tmp_path: Path, method: type[Averaged]) -> None:
    """What sites hold, weighted by their rows or another scalar, in the mean to 2^-22. Without a mean for the
    server, none of what passes it is one: it has masked sums only."""
    configs, job = job_on_shares(method, THREE)
    runs, results = in_clear_and_on_shares(configs, job, tmp_path)
    found = {name: [given(config, 1, name) for config in configs.values()] for name in runs}
    assert results["status"] == "finished" and results["secagg"]
    for secure, plain in zip(found["secure"], found["plain"], strict=True):
        assert_alike(secure, plain)
    names = {name for task, tensors in runs["secure"].passed if task != "start/mean" for name in tensors}
    prompts = set(found["plain"][0])
    assert names == {"uploaded", "opening"} | ({"hidden_sum"} if method is AveragedAtSites else prompts)
    if method is AveragedAtSites:
        (total, *_) = runs["secure"].sent("evaluate", "hidden_sum")
        assert (np.abs(total.astype(np.float64)) > 2.0**53).sum() >= len(total) - 1  # sums of the inputs are below 2^40


def test_fedavg_on_shares_sends_out_the_plain_mean(introduced: Sites, tmp_path: Path) -> None:
    """Of what three sites trained, weighted by their training rows, to 2^-22."""
    configs = introduced(*THREE, methods=["fedavg"], repeatable_noise=1)  # training follows from the job's seed
    options = {"rounds": 1, "local_epochs": 1, "local_unit": "batches", "batch_rows": 16, "blocks": 1, "hidden": 16}
    plain = JobSpec.from_dict({"method": "fedavg", "options": options, "data": "phantom", "backbone": TINY})
    runs, _ = in_clear_and_on_shares(configs, plain, tmp_path)
    averaged = [spec.name for spec in plain.build().exchange(shape_of(plain.backbone)).task("evaluate").down]
    expected, found = ({name: run.sent("evaluate", name)[0] for name in averaged} for run in runs.values())
    assert averaged
    assert_alike(found, expected)


@pytest.mark.parametrize("secagg", [True, pytest.param("crypten", marks=pytest.mark.slow)])
def test_sites_that_were_sent_different_models_share_nothing(introduced: Sites, tmp_path: Path, secagg: Secagg) -> None:
    """A server that plants another model at one site, so that it can tell that site's part of the sum: all sites notice
    before they upload, and refuse the job."""
    configs = introduced(*THREE, methods=["fedavg"])
    options = {"rounds": 2, "local_epochs": 1, "local_unit": "batches", "batch_rows": 16, "blocks": 1, "hidden": 16}
    fields = {"method": "fedavg", "options": options, "data": "phantom", "backbone": TINY, "secagg": secagg}
    job, bias = JobSpec.from_dict(fields), "head.answers.bias"

    def other(task: str, site: str, message: Tensors) -> Tensors:
        planted = task == "train" and site == "chest"
        return message | {bias: np.nextafter(message[bias], np.float32(9))} if planted else message

    engine = Engine(configs, job)
    engine.tamper = other
    with pytest.raises(FederationError) as stopped:
        serve_job(job, THREE, engine.call, tmp_path, "local")
    assert isinstance(stopped.value.__cause__, JobRefused) and stopped.value.__cause__.code is Refusal.VIEWS
    assert engine.sent("start/mean", bias) and not engine.sent("train/mean", bias)
    for config in configs.values():
        refusals = [entry.admission["code"] for entry in read(config.audit) if entry.event is Event.REFUSAL]
        assert refusals == [Refusal.VIEWS]


SIX = tuple(f"{organ}-{number}of2" for organ in THREE for number in (1, 2))


def test_gradients_are_mixed_by_organ_on_shares_from_sums_of_three_sites(introduced: Sites, tmp_path: Path) -> None:
    """Six sites in two groups: what each is sent is what it is sent in clear, each group another model. All sums are
    those of the two groups; with two sites in a group the job ends before any site is called."""
    configs = introduced(*SIX, methods=["fedavg"], repeatable_noise=1)
    options = {"schedule": "stepwise", "rounds": 3, "tuning": "classifier", "batch_rows": 16, "hidden": 16}
    options |= {"units": 16, "mixing": "organ", "groups": [SIX[::2], SIX[1::2]]}
    plain = JobSpec.from_dict({"method": "fedavg", "options": options, "data": "phantom", "backbone": TINY})
    runs, _ = in_clear_and_on_shares(configs, plain, tmp_path)
    bias = "head.answers.bias"
    expected, found = (np.array(run.sent("evaluate", bias)) for run in runs.values())
    assert np.abs(found - expected).max() < 1e-5 < np.abs(found[0] - found[1]).max() / 100
    assert {attempt.sites for attempt in runs["secure"].attempts} == {SIX[::2], SIX[1::2]}
    by_name = JobSpec.from_dict(plain.to_dict() | {"secagg": True, "options": {**options, "groups": []}})
    with pytest.raises(ConfigError, match="every group of 'mixing' needs 3 sites"):
        serve_job(by_name, SIX, (engine := Engine(configs, by_name, "small")).call, tmp_path / "plain", "local")
    assert not engine.passed


@pytest.mark.parametrize("committee", [pytest.param(5, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("moment", ["before mean", "after mean", "before unmask", "after unmask"])
def test_a_site_may_die_at_every_step(
    job_on_shares: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, committee: int
) -> None:
    """The mean is that over the sites that uploaded, and the job goes on with the rest. Before the exchange of keys the
    attempt is repeated; later nothing is. Members and other sites alike."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 2.0)
    named = FIVE[-committee:] if committee < 5 else ()
    configs, job = job_on_shares(Averaged, FIVE, rounds=2, committee=named or None, allowed={"committee": list(named)})
    engine, (when, kind) = Engine(configs, job), moment.split()
    victim = "a" if committee == 3 else "e"
    getattr(engine, when)[f"start/{kind}"] = {victim}
    results = serve_job(job, FIVE, engine.call, tmp_path, "local")
    rest = [site for site in FIVE if site != victim]
    unmasks = kind == "unmask" and victim == "a"
    assert results["status"] == "finished"
    # A site that is no member has nothing to do at the end: that it is dead shows in the next round.
    assert any(f"Site {victim} broke off in round {2 if unmasks else 1}" in note for note in results["notes"])
    in_first = FIVE if kind == "unmask" else rest
    scale, prompt = (engine.sent("train", name)[0] for name in ("scale", "prompt.x"))
    assert_alike({"scale": scale, "prompt.x": prompt}, Averaged.mean(in_first, 1))
    for site in rest:
        assert_alike(given(configs[site], 2), Averaged.mean(rest, 2))
    said = {message.tobytes() for message in engine.sent("start/mean", "attempt")}
    assert len(said) == (2 if moment == "before mean" else 1)


@pytest.mark.parametrize("method", [Averaged, AveragedAtSites])
def test_a_mean_that_cannot_be_opened_is_not_asked_for_again(
    job_on_shares: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: type[Averaged]
) -> None:
    """Two of five members die and the others, too few, open nothing: the mean before stays, and the results say so."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 2.0)
    configs, job = job_on_shares(method, FIVE, rounds=2)
    engine, lost, opened = Engine(configs, job), list[bool](), SecureHub._group_mean
    engine.before["train/unmask"] = {"a", "b"}

    def noted(*arguments: Any) -> GroupMean:
        mean = opened(*arguments)
        lost.append(mean.lost)
        return mean

    monkeypatch.setattr(SecureHub, "_group_mean", noted)
    results = serve_job(job, FIVE, engine.call, tmp_path, "local")
    assert lost == [False, True]
    assert any("Round 2 gave no mean, and the one before it stayed in use: 0 members" in n for n in results["notes"])
    for site in "cde":
        assert_alike(given(configs[site], 2), Averaged.mean(FIVE, 1))


def test_without_a_mean_before_it_a_lost_one_ends_the_job(
    job_on_shares: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first round there is nothing to go on with."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 2.0)
    configs, job = job_on_shares(Averaged, FIVE)
    engine = Engine(configs, job)
    engine.before["start/unmask"] = {"a", "b"}
    with pytest.raises(FederationError, match="round 1 gave no mean, and there is none before it: 0 members answered"):
        serve_job(job, FIVE, engine.call, tmp_path, "local")


def test_fewer_than_three_uploads_are_not_opened(job_on_shares: Make, tmp_path: Path) -> None:
    """No member is even asked."""
    configs, job = job_on_shares(Averaged, THREE)
    engine = Engine(configs, job)
    engine.after["start/mean"] = {"head"}
    with pytest.raises(FederationError, match="2 sites are left .head fell out.*could reveal"):
        serve_job(job, THREE, engine.call, tmp_path, "local")
    assert not engine.sent("start/unmask", "uploaded")


def test_a_site_that_sends_garbage_is_left_out_and_named(job_on_shares: Make, tmp_path: Path) -> None:
    """An upload of another length is no part of the sum."""
    configs, job = job_on_shares(Averaged, FIVE)
    engine = Engine(configs, job)
    engine.bend = lambda task, site, answer: (
        {**answer, "prompt.x": answer["prompt.x"][:1]} if (task, site) == ("start/mean", "b") else answer
    )
    results = serve_job(job, FIVE, engine.call, tmp_path, "local")
    assert "Site b broke off in round 1: the job went on without it." in results["notes"]
    assert_alike(given(configs["a"], 1), Averaged.mean("acde", 1))


@pytest.fixture
def uploaded(job_on_shares: Make) -> tuple[Engine, dict[str, SiteConfig], JobSpec]:
    """Five sites that have uploaded to the attempt "one" of round 1."""
    configs, job = job_on_shares(Averaged, FIVE)
    engine = Engine(configs, job)
    ask(engine, "start", FIVE, {})
    ask(engine, "start/mean", FIVE, Attempt("one", FIVE, members=FIVE).message())
    return engine, configs, job


def test_a_member_opens_one_sum_of_a_round_even_after_a_restart(uploaded: Any) -> None:
    """Asked for it again, it says the same; another sum, or another attempt, it refuses."""
    engine, configs, job = uploaded
    first = ask(engine, "start/unmask", FIVE, Opening("one", FIVE).message())["a"]
    engine = Engine(configs, job)
    (again,) = ask(engine, "start/unmask", "a", Opening("one", FIVE).message()).values()
    assert np.array_equal(first.tensors["opening"], again.tensors["opening"])
    with pytest.raises(FederationError, match="opened another sum"):
        ask(engine, "start/unmask", "a", Opening("one", FIVE[:4]).message())
    with pytest.raises(FederationError, match="no other attempt"):
        ask(engine, "start/mean", "a", Attempt("two", FIVE, members=FIVE, number=2).message())


def test_a_site_that_goes_on_to_another_attempt_cannot_open_the_one_before(uploaded: Any) -> None:
    """Its shares of it are gone; and too few of its members may stay behind to open it without it."""
    engine, _, _ = uploaded
    with pytest.raises(FederationError, match="the first one may still be opened"):
        ask(engine, "start/mean", "a", Attempt("two", FIVE[:3], members=FIVE[:3], number=2).message())
    ask(engine, "start/mean", FIVE[:4], Attempt("two", FIVE[:4], members=FIVE[:4], number=2).message())
    with pytest.raises(FederationError, match="has begun another one"):
        ask(engine, "start/unmask", "a", Opening("one", FIVE).message())
    assert "opening" in ask(engine, "start/unmask", FIVE[:4], Opening("two", FIVE[:4]).message())["a"].tensors


@pytest.mark.parametrize(
    ("opening", "sentence"),
    [
        (Opening("one", FIVE[:2]).message(), "fewer than 3 sites"),
        (Opening("one", FIVE[:3]).message(), "fewer than 4 of the members"),
        (Opening("other", FIVE).message(), "not a member of that attempt"),
        ({}, "lacks its part 'uploaded'"),
    ],
)
def test_a_member_refuses_sums_that_would_expose_sites(uploaded: Any, opening: Tensors, sentence: str) -> None:
    """Nothing of the kind leaves."""
    engine, configs, _ = uploaded
    with pytest.raises(FederationError, match=sentence):
        ask(engine, "start/unmask", "a", opening)
    assert not [entry for entry in read(configs["a"].audit) if entry.task == "start/unmask" and entry.tensors]


def test_a_site_uploads_once_to_an_attempt(uploaded: Any) -> None:
    """Given the same one again it says that it broke off: its keys are not used twice."""
    engine, _, _ = uploaded
    (reply,) = ask(engine, "start/mean", "b", Attempt("one", FIVE, members=FIVE).message()).values()
    assert int(reply.tensors["fault"]) == 1 and "prompt.x" not in reply.tensors


EXPOSING = [
    (Attempt("one", FIVE, members=FIVE[:3]), "members that do not follow"),
    (Attempt("one", FIVE[:2], members=FIVE[:2]), "at least 3"),
    (Attempt("one", FIVE[1:], members=FIVE[1:]), "needs this site"),
    (Attempt("one", (*FIVE, "f"), members=(*FIVE, "f")), "no fingerprint of f"),
    (Attempt("one", FIVE), "members that do not follow"),
    (Attempt("one", FIVE, members=FIVE, number=9), "or exceeds 8"),
]


@pytest.mark.parametrize(
    ("secagg", "attempt", "sentence"),
    [(secagg, *case) for secagg in (True, "crypten") for case in EXPOSING],
)
def test_a_site_refuses_attempts_that_would_expose_it(
    job_on_shares: Make, attempt: Attempt, sentence: str, secagg: Secagg
) -> None:
    """Members of the server's choice, too few sites, a site that is not pinned: nothing is shared."""
    configs, job = job_on_shares(Averaged, FIVE, secagg=secagg)
    engine = Engine(configs, job)
    ask(engine, "start", "a", {})
    with pytest.raises(FederationError, match=sentence):
        ask(engine, "start/mean", "a", attempt.message())
    assert not [entry for entry in read(configs["a"].audit) if entry.peer == "sites"]


@pytest.mark.parametrize("secagg", [True, "crypten"])
@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("scale", np.array(1e30, np.float32), "nothing was shared"),
        ("scale", np.array(np.nan, np.float32), "not finite"),
        ("rows", np.array(-1), "outside of its declared bounds"),
        ("rows", np.array(2**40), "outside of its declared bounds"),
    ],
)
def test_a_value_out_of_range_is_refused_before_anything_is_shared(
    job_on_shares: Make, monkeypatch: pytest.MonkeyPatch, name: str, value: np.ndarray, sentence: str, secagg: Secagg
) -> None:
    """Values and weights, at the site that has them, whose log holds no share: nobody can check one."""
    configs, job = job_on_shares(Averaged, THREE, secagg=secagg)
    engine = Engine(configs, job)
    held = Averaged.holding("any", 1) | {name: value}
    monkeypatch.setattr(Averaged, "holding", lambda *_: held)
    ask(engine, "start", THREE, {})
    with pytest.raises(FederationError, match=sentence):
        ask(engine, "start/mean", ("chest",), Attempt("one", THREE, members=THREE).message())
    assert not [entry for entry in read(configs["chest"].audit) if entry.peer == "sites"]


def test_the_log_tells_masks_uploads_and_openings(job_on_shares: Make, tmp_path: Path) -> None:
    """Shares of keys to sites, without digests; the masked upload under the names of what is in it; which sum was
    opened; and where only sites know the mean, that the site has it from them."""
    configs, job = job_on_shares(AveragedAtSites, THREE, allowed={"require_secagg": True})
    serve_job(job, THREE, Engine(configs, job).call, tmp_path, "local")
    for config in configs.values():
        assert verify(config.audit).ok
        sent = [entry for entry in read(config.audit) if entry.outcome == Outcome.SENT]
        tasks = [("start", "server"), ("start/mean", "sites"), ("start/mean", "server"), ("start/unmask", "server")]
        assert [(entry.task, entry.peer) for entry in sent] == [*tasks, ("evaluate", "server")]
        _, keys, upload, opening, _ = sent
        assert [(t.name, t.protection, t.sha256) for t in keys.tensors] == [("mask_secrets", Protection.MASKED, None)]
        assert "a mean among abdomen, chest, head, without a dealer" in str(keys.reason) == str(upload.reason)
        shared = {t.name: (t.dtype, t.protection) for t in upload.tensors}
        assert {shared[name] for name in ("prompt.x", "scale", "rows")} == {("int64", Protection.MASKED)}
        assert "a mean to be opened among abdomen, chest, head" in str(opening.reason)
        (known,) = [e for e in read(config.audit) if (e.direction, e.peer) == ("in", "sites")]
        assert {(t.name, t.sha256) for t in known.tensors} == {("prompt.x", None), ("scale", None)}


@pytest.mark.parametrize("secagg", [True, "crypten"])
def test_after_differential_privacy_what_is_shared_carries_both_and_is_charged_once(
    job_on_shares: Make, tmp_path: Path, secagg: Secagg
) -> None:
    """The masked upload, or the shares and their sum, have the charge of their task, and no other."""
    allowed = {"require_secagg": True, "require_dp": True}
    configs, job = job_on_shares(Unweighted, THREE, allowed=allowed, dp=DP, secagg=secagg)
    results = serve_job(job, THREE, Engine(configs, job).call, tmp_path, "local")
    assert results["status"] == "finished" and results["sites"]["head"]["epsilon"] > 0
    up = job.build().final_exchange(shape_of(job.backbone)).task("start/mean").up
    assert secagg == "crypten" or {spec.protection for spec in up if spec.kind is Kind.PARAMETERS} == {
        Protection.DP_MASKED
    }
    shared = [("start/mean", "server")] if secagg is True else [("start/mean", "sites"), ("start/mean/sum", "server")]
    for config in configs.values():
        sent = [entry for entry in read(config.audit) if entry.outcome == Outcome.SENT]
        charged = {json.dumps(e.dp_event["ledger"]) for e in sent if e.task.startswith("start") and e.dp_event}
        entries = [entry for entry in sent if (entry.task, entry.peer) in shared]
        assert [(entry.task, entry.peer) for entry in entries] == shared and len(charged) == 1
        assert all(entry.dp_event for entry in entries)
        found = {tensor.protection for entry in entries for tensor in entry.tensors if tensor.name == "prompt.x"}
        assert found == {Protection.DP_MASKED}


def test_a_mean_that_the_method_does_not_declare_is_refused(job_on_shares: Make, tmp_path: Path) -> None:
    """Another weight than the one declared would not be on shares."""
    configs, job = job_on_shares(Averaged, THREE)
    hub = SecureHub(
        THREE,
        Engine(configs, job).call,
        job.exchange(),
        on_shares=job.build().on_shares,
        shared={task.name: task for task in job.build().declared(shape_of(job.backbone)).tasks},
        least=3,
        rule=job.members_rule(),
    )
    with pytest.raises(FederationError, match="declares no mean of 'start'"):
        hub.mean("start")
