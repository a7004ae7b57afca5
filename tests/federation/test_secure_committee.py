"""Runs in process in which a committee, drawn or named, computes for all sites."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from in_process import Engine, Job, Sites
from untrained import TWELVE, Averaged, Make, Mixed, assert_alike, assert_mixed, assert_near, given, saved

from audits import Outcome, read, verify
from medfedvqa.core import Tensors
from medfedvqa.errors import FederationError
from medfedvqa.evaluation import load_transcript
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.aggregation_attempt import Attempt
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from privacy.secagg import Relay

SIX = TWELVE[:6]


def test_a_drawn_committee_gives_every_site_the_plain_mixture(job_on_shares: Make, tmp_path: Path) -> None:
    """Twelve sites, three of which compute; the results say so, and every log says who, how, and what if."""
    configs, job = job_on_shares(Mixed, TWELVE, allowed={"require_secagg": True}, committee=3)
    results = serve_job(job, TWELVE, Engine(configs, job).call, tmp_path, "local")
    assert "3 of the 12 sites computed for all of them, drawn anew for each round." in results["notes"]
    assert_mixed(configs, TWELVE, 1)
    (beacon,) = {saved(config).beacon for config in configs.values()}
    assert beacon is not None
    for config in configs.values():
        sent = [entry for entry in read(config.audit) if entry.outcome == Outcome.SENT]
        drawing = ["committee/commit", "committee/open", "committee/check"]
        dealing = ["start/coin"] if config.name in beacon.committee(1, 3) else []
        assert [e.task for e in sent] == ["start", *drawing, *dealing, "start/mix", "start/mix", "evaluate"]
        assert {record.nbytes for e in sent[1:4] for record in e.tensors} == {32}
        assert str(sent[-3].reason).endswith(
            f"dealt by the server; computed by {', '.join(beacon.committee(1, 3))}, drawn for this round: all 3 of "
            "them together could open every input; this many collude in 0 % if 1, 1.8 % if 4 of the 12 sites that drew "
            "do"
        )
        assert verify(config.audit).ok


@pytest.mark.slow
def test_prompt_pfl_with_a_drawn_committee_goes_as_the_plain_run(
    introduced: Sites, quick_job: Job, tmp_path: Path
) -> None:
    """Twelve sites that train, in the first round to the precision of the shares."""
    configs, plain = introduced(*TWELVE, repeatable_noise=1), quick_job(rounds=1, local_epochs=1)
    job = JobSpec.from_dict(plain.to_dict() | {"secagg": True, "committee": 3})
    for name, spec in (("plain", plain), ("secure", job)):
        (tmp_path / name).mkdir()
        serve_job(spec, TWELVE, LocalEngine(configs, spec, name).call, tmp_path / name, "local")
    expected = load_transcript(tmp_path / "plain").shared
    for site, config in configs.items():
        assert_near(saved(config, "secure").mixture, expected[site])


def test_a_drawn_committee_opens_the_plain_mean(job_on_shares: Make, tmp_path: Path) -> None:
    """Twelve sites, two rounds, each with its own committee: what the server sends out is the mean."""
    configs, job = job_on_shares(Averaged, TWELVE, rounds=2, committee=3)
    engine = Engine(configs, job)
    serve_job(job, TWELVE, engine.call, tmp_path, "local")
    for site, config in configs.items():
        for round in (1, 2):
            assert_alike(given(config, round), Averaged.plain(TWELVE, round)[site])
    assert np.array_equal(engine.sent("train", "prompt.x")[0], given(configs[TWELVE[0]], 1)["prompt.x"])
    beacon = saved(configs[TWELVE[0]]).beacon
    assert beacon and [a.members for a in engine.attempts] == [beacon.committee(round, 3) for round in (1, 2)]
    reasons = [str(e.reason) for e in read(configs[TWELVE[0]].audit) if e.task == "start/mean" and e.reason]
    assert all("3 of them together with the server could open single uploads" in reason for reason in reasons)


@pytest.mark.parametrize("victim", ["member", pytest.param("owner", marks=pytest.mark.slow)])
def test_a_site_that_dies_is_left_out_and_the_round_repeated(
    job_on_shares: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """Whoever waited for it is not blamed. For a member the next in the draw computes; the others are the same, so that
    a server gains no draw by it."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 3.0)
    configs, job = job_on_shares(Mixed, SIX, rounds=2, committee=3)
    engine = Engine(configs, job)

    def tamper(task: str, site: str, message: Tensors) -> Tensors:
        if task == "start/mix" and not engine.dead:
            members = Attempt.read(message).members
            engine.dead.add(next(name for name in SIX if (name in members) == (victim == "member")))
        return message

    engine.tamper = tamper
    results = serve_job(job, SIX, engine.call, tmp_path, "local")
    (gone,) = engine.dead
    assert [note for note in results["notes"] if "broke off" in note] == [
        f"Site {gone} broke off in round 1: the job went on without it."
    ]
    first, second, third = engine.attempts
    assert (first.number, second.number, third.number) == (1, 2, 1) and gone not in second.sites
    assert set(first.members) - {gone} <= set(second.members)
    rest = tuple(site for site in SIX if site != gone)
    assert_mixed(configs, rest, 2)
    reason = next(e.reason for e in read(configs[rest[0]].audit) if e.reason and second.name in e.reason)
    assert "of the 6 sites that drew" in reason


def test_an_owner_that_sends_garbage_is_left_out(
    job_on_shares: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All members notice it; the other sites only see members fall silent, and nobody is blamed for that."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 3.0)
    configs, job = job_on_shares(Mixed, SIX, committee=3)
    engine, liar = Engine(configs, job), []

    def garbage(attempt_name: str) -> Any:
        relay = engine.local._relays[attempt_name].of(liar[0])
        send, count = relay.send, dict[str, int]()

        def changed(to: str, message: bytes) -> None:
            count[to] = count.get(to, 0) + 1
            send(to, message if count[to] < 3 else message[:-1] + bytes([message[-1] ^ 1]))

        return SimpleNamespace(send=changed, receive=relay.receive)

    def tamper(task: str, site: str, message: Tensors) -> Tensors:
        if task == "start/mix" and not liar:
            members = Attempt.read(message).members
            liar.append(next(name for name in SIX if name not in members))
            engine.local._runtime(liar[0])._relays = garbage
            engine.local._runtime(liar[0]).__dict__.pop("_secure", None)
        return message

    engine.tamper = tamper
    results = serve_job(job, SIX, engine.call, tmp_path, "local")
    assert f"Site {liar[0]} broke off in round 1: the job went on without it." in results["notes"]
    assert len([note for note in results["notes"] if "broke off" in note]) == 1
    assert_mixed(configs, tuple(site for site in SIX if site != liar[0]), 1)


def test_a_round_has_a_bounded_number_of_attempts(
    job_on_shares: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the job ends and says so."""
    monkeypatch.setattr(attempts, "ATTEMPTS", 1)
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 1.0)
    configs, job = job_on_shares(Mixed, SIX, committee=3)
    engine = Engine(configs, job)
    engine.before["start/mix"] = {SIX[0]}
    with pytest.raises(FederationError, match="round 1: 1 attempts failed"):
        serve_job(job, SIX, engine.call, tmp_path, "local")


def test_a_named_committee_computes_without_a_draw(job_on_shares: Make, tmp_path: Path) -> None:
    """That of the job and of all sites' policies; nothing of a draw is asked."""
    configs, job = job_on_shares(Mixed, SIX, rounds=2, committee=SIX[1:4])
    configs = {s: c.model_copy(update={"policy": replace(c.policy, committee=SIX[1:4])}) for s, c in configs.items()}
    engine = Engine(configs, job)
    results = serve_job(job, SIX, engine.call, tmp_path, "local")
    assert {attempt.members for attempt in engine.attempts} == {SIX[1:4]} and saved(configs[SIX[0]]).draw is None
    assert "3 of the 6 sites computed for all of them, named by the sites' policies." in results["notes"]
    assert_mixed(configs, SIX, 2)
    reason = next(str(e.reason) for e in read(configs[SIX[0]].audit) if e.peer == "sites")
    assert "named by the sites' policies: all 3 of them together could open every input" in reason


def test_without_one_of_the_named_the_job_ends(
    job_on_shares: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else takes its place."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 1.0)
    configs, job = job_on_shares(Mixed, SIX, committee=SIX[1:4])
    configs = {s: c.model_copy(update={"policy": replace(c.policy, committee=SIX[1:4])}) for s, c in configs.items()}
    engine = Engine(configs, job)
    engine.before["start/mix"] = {SIX[1]}
    with pytest.raises(FederationError, match=f"{SIX[1]} of the named committee is missing"):
        serve_job(job, SIX, engine.call, tmp_path, "local")


class Metered:
    """A relay that counts what a site sends by it."""

    def __init__(self, relay: Relay) -> None:
        self.relay, self.nbytes = relay, 0

    def send(self, to: str, message: bytes) -> None:
        self.nbytes += len(message)
        self.relay.send(to, message)

    def receive(self, sender: str, timeout: float) -> bytes:
        return self.relay.receive(sender, timeout)


@pytest.mark.slow
def test_what_a_site_outside_the_committee_sends_does_not_grow_with_the_federation(
    job_on_shares: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round through server and sites, 50 sites and 200, of which three compute: right at every site; the same bytes
    to other sites, handshakes and seals included, from every site that does not compute. The server's own messages grow
    by the names of the sites.
    """
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 120.0)
    seen = []
    for size in (50, 200):
        names, meters = tuple(f"site-{number:03d}" for number in range(1, size + 1)), dict[str, Metered]()
        configs, job = job_on_shares(Mixed, names, committee=3)
        engine = Engine(configs, job, f"of-{size}")
        for name in names:
            engine.local._runtime(name)._relays = partial(metered, meters, engine.local, name)
        results = serve_job(job, names, engine.call, tmp_path, "local")
        assert results["status"] == "finished" and not any("broke off" in note for note in results["notes"])
        assert_mixed(configs, names, 1, f"of-{size}")
        (attempt,) = engine.attempts
        seen.append({meter.nbytes for name, meter in meters.items() if name not in attempt.members})
        engine.local.close()
    assert len(seen[0]) == 1 and seen[0] == seen[1]


def metered(meters: dict[str, Metered], engine: LocalEngine, name: str, attempt: str) -> Metered:
    """A site's relay, counted."""
    return meters.setdefault(name, Metered(engine._relays[attempt].of(name)))
