"""How sites draw a committee in process, and which draws, members and jobs they refuse."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from in_process import Engine, Job
from untrained import TWELVE, Make, Mixed, assert_mixed, saved

from audits import Kind, read
from medfedvqa.core import Tensors
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.aggregation_attempt import Attempt
from medfedvqa.federation.committee_draw import draw, job_of_draw
from medfedvqa.federation.hub import TaskCall
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.quorum import MembersRule
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.tuple_dealing import Dealer
from medfedvqa.models import shape_of
from privacy.secagg.committee import Beacon, Nonce

SIX = TWELVE[:6]


@pytest.fixture
def drawn(job_on_shares: Make) -> tuple[Engine, dict[str, SiteConfig], Beacon]:
    """Six sites that have begun round 1 and drawn."""
    configs, job = job_on_shares(Mixed, SIX, committee=3)
    engine = Engine(configs, job)
    engine.call(TaskCall("start", 1, dict.fromkeys(SIX, {})))
    beacon = draw(lambda task, messages: engine.call(TaskCall(task, 1, messages)), SIX)
    return engine, configs, beacon


def ask(engine: Engine, attempt: Attempt, site: str = SIX[0]) -> Tensors:
    (reply,) = engine.call(TaskCall("start/mix", 1, {site: attempt.message()})).values()
    return reply.tensors


def test_a_site_refuses_other_members_than_were_drawn(drawn: Any) -> None:
    """Chosen ones, those of another round or of fewer sites, all sites, none; nothing is shared."""
    engine, configs, beacon = drawn
    right = beacon.committee(1, 3)
    other = next(m for r in range(2, 99) if (m := beacon.committee(r, 3)) != right)
    fewer = beacon.committee(1, 3, [right[0]])
    for members in (other, fewer, SIX, (), right[::-1], (*right, "spy")):
        with pytest.raises(FederationError, match=r"members that do not follow|no fingerprint of spy"):
            ask(engine, Attempt("a", SIX, members=members))
    for number in (0, attempts.ATTEMPTS + 1):
        with pytest.raises(FederationError, match="or exceeds 8"):
            ask(engine, Attempt("a", SIX, members=right, number=number))
    assert not [entry for entry in read(configs[SIX[0]].audit) if entry.peer == "sites"]


def test_a_site_that_was_left_out_never_comes_back(drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does an attempt's number: else a server could go back to a committee that suits it."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 0.1)
    engine, _, beacon = drawn
    without, members = SIX[:5], beacon.committee(1, 3, [SIX[5]])
    dealt = dealing(engine, Attempt("a", without, members=members, number=2))[SIX[0]]
    (reply,) = engine.call(TaskCall("start/mix", 1, {SIX[0]: dealt})).values()
    assert int(reply.tensors["fault"]) >= 0
    with pytest.raises(FederationError, match="may not return"):
        ask(engine, Attempt("b", SIX, members=beacon.committee(1, 3), number=3))
    with pytest.raises(FederationError, match="number is not above the last one"):
        ask(engine, Attempt("b", without, members=members, number=2))


def dealing(engine: Engine, attempt: Attempt) -> dict[str, Tensors]:
    """What an honest server sends to each site of an attempt."""
    job = engine.local._job
    method, shape = job.build(), shape_of(job.backbone)
    layout = method.on_shares["start"].layout(method.declared(shape).task("start"))
    dealer = Dealer(lambda task, messages: engine.call(TaskCall(task, 1, messages)))
    return dealer.deal("start", 1, attempt, layout)


def other_commitments(job: JobSpec, task: str, site: str, message: Tensors) -> Tensors:
    """One site sees another commitment of a peer than the others do, and the nonce that fits it."""
    if site != SIX[0] or not {"commitments", "nonces"} & message.keys():
        return message
    nonce = Nonce(job_of_draw(job, "job"), SIX[1], bytes(32))
    (name, array), told = next(iter(message.items())), {"commitments": nonce.commitment, "nonces": nonce.value}
    said = json.loads(array.tobytes()) | {SIX[1]: told[name].hex()}
    return {name: attempts.as_array(said)}


def test_a_draw_with_different_commitments_for_different_sites_is_refused(job_on_shares: Make, tmp_path: Path) -> None:
    """By the server that carries it, if it is honest; else by the sites, whose beacons differ."""
    configs, job = job_on_shares(Mixed, SIX, committee=3)
    engine = Engine(configs, job)
    engine.tamper = partial(other_commitments, job)
    with pytest.raises(FederationError, match="different results of the draw"):
        serve_job(job, SIX, engine.call, tmp_path, "local")
    mine, theirs = saved(configs[SIX[0]]).beacon, saved(configs[SIX[1]]).beacon
    assert mine and theirs and mine != theirs
    round = next(r for r in range(1, 99) if mine.committee(r, 3) != theirs.committee(r, 3))
    with pytest.raises(FederationError, match="members that do not follow"):
        attempt = Attempt("a", SIX, members=theirs.committee(round, 3))
        attempts.admit(attempt, replace(saved(configs[SIX[0]]), round=round), MembersRule(3, beacon=mine))


def test_a_site_opens_its_nonce_under_one_set_of_commitments_even_after_a_restart(job_on_shares: Make) -> None:
    """Asked again it says the same; shown other commitments, it refuses, and its nonce is never drawn again."""
    configs, job = job_on_shares(Mixed, SIX, committee=3)

    def fresh(task: str, message: Tensors) -> Tensors:
        (reply,) = Engine(configs, job).call(TaskCall(task, 1, {SIX[0]: message})).values()
        return reply.tensors

    with pytest.raises(FederationError, match="in which a site has answered last"):
        fresh("committee/commit", {})
    fresh("start", {})
    own = fresh("committee/commit", {})["commitment"].tobytes()
    assert fresh("committee/commit", {})["commitment"].tobytes() == own
    others = {site: Nonce(job_of_draw(job, "job"), site, bytes(32)) for site in SIX[1:]}
    committed = {SIX[0]: own} | {site: nonce.commitment for site, nonce in others.items()}

    def shown(changes: Mapping[str, bytes]) -> Tensors:
        said = {site: value.hex() for site, value in (committed | changes).items()}
        return {"commitments": attempts.as_array(said)}

    for changes, sentence in (({SIX[0]: bytes(32)}, "needs this site"), ({"spy": bytes(32)}, "no fingerprint of spy")):
        with pytest.raises(FederationError, match=sentence):
            fresh("committee/open", shown(changes))
    nonce = fresh("committee/open", shown({}))["nonce"].tobytes()
    assert fresh("committee/open", shown({}))["nonce"].tobytes() == nonce
    with pytest.raises(FederationError, match="different commitments before"):
        fresh("committee/open", shown({SIX[1]: bytes(32)}))
    opened = {SIX[0]: nonce} | {site: nonce.value for site, nonce in others.items()}
    for wrong in (opened | {SIX[1]: b"\1" * 32}, {site: value for site, value in opened.items() if site != SIX[1]}):
        with pytest.raises(FederationError, match=f"'{SIX[1]}' .*the draw is void"):
            fresh("committee/check", {"nonces": attempts.as_array({s: value.hex() for s, value in wrong.items()})})
    fresh("committee/check", {"nonces": attempts.as_array({site: value.hex() for site, value in opened.items()})})


@pytest.mark.parametrize("step", ["committee/commit", "committee/open"])
def test_a_site_that_falls_silent_in_the_draw(job_on_shares: Make, tmp_path: Path, step: str) -> None:
    """Before it commits, the draw goes on without it; once it has committed, the draw is void and the job ends: else it
    could choose between two draws."""
    configs, job = job_on_shares(Mixed, SIX, committee=3)
    engine = Engine(configs, job)
    engine.before[step] = {SIX[0]}
    if step == "committee/open":
        with pytest.raises(FederationError, match=f"{SIX[0]} did not open.*submit the job again"):
            serve_job(job, SIX, engine.call, tmp_path, "local")
        return
    results = serve_job(job, SIX, engine.call, tmp_path, "local")
    assert f"Site {SIX[0]} broke off in round 1: the job went on without it." in results["notes"]
    assert_mixed(configs, SIX[1:], 1)


@pytest.mark.parametrize(
    ("committee", "policy", "sentence"),
    [
        (3, {"committee": SIX[1:4]}, "do not name the same committee"),
        (SIX[1:4], {}, "do not name the same committee"),
        (SIX[1:4], {"committee": SIX[2:5]}, "do not name the same committee"),
        (3, {"min_committee": 4}, "at least 4 sites to compute"),
    ],
)
def test_a_site_refuses_a_job_with_another_committee_than_its_policy_wants(
    job_on_shares: Make, tmp_path: Path, committee: Any, policy: dict[str, Any], sentence: str
) -> None:
    """Before it trains; so sites that name different ones never run a job together."""
    configs, job = job_on_shares(Mixed, SIX, committee=committee)
    first = configs[SIX[0]]
    configs[SIX[0]] = first.model_copy(update={"policy": replace(first.policy, **policy)})
    with pytest.raises(FederationError, match=sentence):
        serve_job(job, SIX, Engine(configs, job).call, tmp_path, "local")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"secagg": True, "committee": 2}, "at least 3 sites"),
        ({"secagg": True, "committee": ["a", "b", "b"]}, "at least 3 sites"),
        ({"committee": 3}, "ask for secure aggregation as well"),
    ],
)
def test_a_job_with_a_committee_that_cannot_be_is_refused_at_submission(
    quick_job: Job, changes: dict[str, Any], sentence: str
) -> None:
    """With a sentence that says why."""
    with pytest.raises(ConfigError, match=sentence):
        JobSpec.from_dict(quick_job().to_dict() | changes)


def test_up_to_eight_sites_all_compute_unless_the_job_says_otherwise(quick_job: Job) -> None:
    """Beyond, eight do, once they are drawn."""
    rule = JobSpec.from_dict(quick_job().to_dict() | {"secagg": True}).members_rule()
    assert rule.members(TWELVE[:8], 1) == TWELVE[:8] and not rule.needs_draw(TWELVE[:8])
    assert rule.needs_draw(TWELVE[:9])
    with pytest.raises(FederationError, match="no committee was drawn"):
        rule.members(TWELVE[:9], 1)
    assert len(replace(rule, beacon=Beacon(TWELVE, bytes(32))).members(TWELVE, 1)) == 8


def test_the_tasks_of_a_draw_are_declared_and_depend_on_no_data(quick_job: Job) -> None:
    """32 bytes up each, of the kind `public`; without secure aggregation there are none."""
    job = JobSpec.from_dict(quick_job().to_dict() | {"secagg": True})
    exchange = job.build().final_exchange(shape_of(job.backbone))
    for task in ("committee/commit", "committee/open", "committee/check"):
        assert [(spec.kind, spec.nbytes) for spec in exchange.task(task).up] == [(Kind.PUBLIC, 32)]
        assert exchange.task(task).down == ()
