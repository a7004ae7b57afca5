"""Committees that compute for all sites of a job, in process: drawn or named, what comes of it, and who is refused."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audits import Exchange, Kind, Outcome, TaskSpec, TensorSpec, read, verify
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.evaluation import load_transcript
from medfedvqa.federation import attempt as attempts
from medfedvqa.federation.attempt import Attempt
from medfedvqa.federation.drawing import draw
from medfedvqa.federation.hub import Excused, Reply, nobody
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.local import LocalEngine
from medfedvqa.federation.members import MembersRule
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.state import Saved, StateFile
from medfedvqa.methods import ACCURACY, Hub, MeanOnShares, Method, MixOnShares, OnShares, Site, State, Tensors, base
from medfedvqa.methods.prompt_pfl import PromptPFLConfig
from medfedvqa.models import BackboneShape, shape_of
from privacy import Reliability
from privacy.aggregation import mean, mix
from privacy.secagg import Relay
from privacy.secagg.committee import Beacon, Nonce

Sites = Callable[..., dict[str, SiteConfig]]
Job = Callable[..., JobSpec]
TWELVE = tuple(f"site-{number:03d}" for number in range(1, 13))
SIX = TWELVE[:6]


class Held(Method[PromptPFLConfig]):
    """Sites do not train: what each of them holds follows from its name and the round; they mix it."""

    name = "held"
    config_type = PromptPFLConfig
    how: OnShares = MixOnShares()

    @property
    def on_shares(self) -> Mapping[str, OnShares]:
        return {"start": self.how}

    def exchange(self, shape: BackboneShape) -> Exchange:
        prompt = TensorSpec("prompt.x", (2, 3), "float32", Kind.PARAMETERS, "a prompt")
        accuracy = TensorSpec(ACCURACY, (), "float32", Kind.STATISTIC, "an accuracy")
        tasks = (TaskSpec("start", (prompt, accuracy), self.down(prompt)), TaskSpec("evaluate", (), ()))
        return Exchange(self.name, tasks)

    def down(self, prompt: TensorSpec) -> tuple[TensorSpec, ...]:
        return ()

    def tasks(self) -> Iterator[tuple[str, int]]:
        yield from (("start", number) for number in range(1, self.config.rounds + 1))
        yield "evaluate", self.config.rounds

    def setup(self, site: Site) -> State:
        return {}

    def start(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        return state, holding(site.name, round)

    def evaluate(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        return state, {}

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        for _ in hub.rounds(self.config.rounds):
            hub.mix("start", Reliability())
        return hub.collect("evaluate")


class HeldMean(Held):
    """They average it, by accuracy."""

    name = "held_mean"
    how = MeanOnShares(ACCURACY)

    def down(self, prompt: TensorSpec) -> tuple[TensorSpec, ...]:
        return (prompt,)

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        down: Tensors = {"prompt.x": np.zeros((2, 3), np.float32)}
        for _ in hub.rounds(self.config.rounds):
            down = hub.mean("start", dict.fromkeys(hub.sites, down), ACCURACY)
        return hub.collect("evaluate")


def holding(site: str, round: int) -> Tensors:
    """What a site puts in."""
    rng = np.random.default_rng([int(site[-3:]), round])
    prompt = np.float32(rng.normal(size=(2, 3)) + np.arange(6).reshape(2, 3))
    return {"prompt.x": prompt, ACCURACY: np.array(rng.uniform(0.2, 0.9), np.float32)}


def mixtures(sites: tuple[str, ...], round: int) -> dict[str, Tensors]:
    """What the plain computation makes of it."""
    held = {site: holding(site, round) for site in sites}
    accuracies = {site: float(tensors.pop(ACCURACY)) for site, tensors in held.items()}
    return dict(mix(held, accuracies, Reliability()).shared)


def average(sites: tuple[str, ...], round: int) -> Tensors:
    """The plain mean of it."""
    held = {site: holding(site, round) for site in sites}
    return mean(held, {site: float(tensors.pop(ACCURACY)) for site, tensors in held.items()})


@pytest.fixture(autouse=True)
def methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry knows them during a test."""
    for method in (Held, HeldMean):
        monkeypatch.setitem(base._METHODS, method.name, method)


@pytest.fixture
def make(introduced: Sites, quick_job: Job) -> Callable[..., tuple[dict[str, SiteConfig], JobSpec]]:
    """Sites that know each other, and a job of a method with a committee."""

    def made(method: str, names: tuple[str, ...], committee: Any = 3, rounds: int = 1, **changes: Any) -> Any:
        configs = introduced(*names, methods=["held", "held_mean"], **changes)
        job = quick_job(rounds=rounds).to_dict() | {"method": method, "secagg": True, "committee": committee}
        return configs, JobSpec.from_dict(job)

    return made


class Engine:
    """In process; keeps attempts. `kill` says which sites die with a task; `tamper` may change a message to a site."""

    def __init__(self, configs: Mapping[str, SiteConfig], job: JobSpec, job_id: str = "job") -> None:
        self.engine = LocalEngine(configs, job, job_id)
        self.kill: Callable[[str, Mapping[str, Tensors]], set[str]] = lambda task, messages: set()
        self.tamper: Callable[[str, str, Tensors], Tensors] = lambda task, site, message: message
        self.dead: set[str] = set()
        self.attempts: list[Attempt] = []

    def call(
        self,
        task: str,
        round: int,
        messages: Mapping[str, Tensors],
        answered: Callable[[str], None],
        excused: Excused = nobody,
    ) -> dict[str, Reply]:
        if "attempt" in next(iter(messages.values())):
            self.attempts.append(Attempt.read(next(iter(messages.values()))))
        self.dead |= self.kill(task, messages)
        living = {s: self.tamper(task, s, message) for s, message in messages.items() if s not in self.dead}
        return self.engine.call(task, round, living, answered, excused)


def kept(config: SiteConfig, job_id: str = "job") -> Saved:
    """What a site has saved of a job."""
    saved = StateFile(config.state, job_id).load()
    assert saved is not None
    return saved


def assert_mixed(configs: Mapping[str, SiteConfig], sites: tuple[str, ...], round: int, job_id: str = "job") -> None:
    """These sites have their mixtures of a round, each within 1e-3 of the plain one."""
    for site, plain in mixtures(sites, round).items():
        found = kept(configs[site], job_id).mixture["prompt.x"]
        assert np.linalg.norm(found - plain["prompt.x"]) <= 1e-3 * np.linalg.norm(plain["prompt.x"])


def test_a_drawn_committee_gives_every_site_the_plain_mixture(make: Any, tmp_path: Path) -> None:
    """Twelve sites, three of which compute; the results say so, and every log says who, how, and what if."""
    configs, job = make("held", TWELVE, require_secagg=True)
    results = serve_job(job, TWELVE, Engine(configs, job).call, tmp_path, "local")
    assert "3 of the 12 sites computed for all of them, drawn anew for each round." in results["notes"]
    assert_mixed(configs, TWELVE, 1)
    (beacon,) = {kept(config).beacon for config in configs.values()}
    assert beacon is not None
    for config in configs.values():
        sent = [entry for entry in read(config.audit) if entry.outcome == Outcome.SENT]
        drawing = ["committee/commit", "committee/open", "committee/check"]
        assert [e.task for e in sent] == ["start", *drawing, "start/mix", "start/mix", "evaluate"]
        assert {record.nbytes for e in sent[1:4] for record in e.tensors} == {32}
        assert str(sent[4].reason).endswith(
            f"dealt by the server; computed by {', '.join(beacon.committee(1, 3))}, drawn for this round: all 3 of "
            "them together could open every input; so many collude in 0 % if 1, 1.8 % if 4 of the 12 sites that drew do"
        )
        assert verify(config.audit).ok


@pytest.mark.slow
def test_prompt_pfl_with_a_drawn_committee_goes_as_the_plain_run(
    introduced: Sites, quick_job: Job, tmp_path: Path
) -> None:
    """Twelve sites that train, in the first round to the precision of the shares."""
    configs, plain = introduced(*TWELVE), quick_job(rounds=1, local_epochs=1)
    job = JobSpec.from_dict(plain.to_dict() | {"secagg": True, "committee": 3})
    for name, spec in (("plain", plain), ("secure", job)):
        (tmp_path / name).mkdir()
        serve_job(spec, TWELVE, LocalEngine(configs, spec, name).call, tmp_path / name, "local")
    expected = load_transcript(tmp_path / "plain").shared
    for site, config in configs.items():
        for tensor, mixed in kept(config, "secure").mixture.items():
            assert np.linalg.norm(mixed - expected[site][tensor]) <= 1e-3 * np.linalg.norm(expected[site][tensor])


def test_a_drawn_committee_opens_the_plain_mean(make: Any, tmp_path: Path) -> None:
    """Twelve sites, two rounds, each with its own committee: what the server sends out is the mean."""
    configs, job = make("held_mean", TWELVE, rounds=2)
    engine, seen = Engine(configs, job), []
    engine.tamper = lambda task, site, message: (seen.append(message) if task == "start" else None) or message
    serve_job(job, TWELVE, engine.call, tmp_path, "local")
    assert np.allclose(seen[-1]["prompt.x"], average(TWELVE, 1)["prompt.x"], atol=2.0**-22)
    beacon = kept(configs[TWELVE[0]]).beacon
    assert beacon and [a.members for a in engine.attempts] == [beacon.committee(round, 3) for round in (1, 2)]
    reasons = [str(e.reason) for e in read(configs[TWELVE[0]].audit) if e.task == "start/mean" and e.reason]
    assert all("3 of them together with the server could open single uploads" in reason for reason in reasons)


@pytest.mark.parametrize("victim", ["member", "owner"])
def test_a_site_that_dies_is_left_out_and_the_round_repeated(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """Whoever waited for it is not blamed. For a member the next in the draw computes; the others are the same, so that
    a server gains no draw by it."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 3.0)
    configs, job = make("held", SIX, rounds=2)
    engine, chosen = Engine(configs, job), set[str]()

    def kill(task: str, messages: Mapping[str, Tensors]) -> set[str]:
        if task == "start/mix" and not chosen:
            attempt = Attempt.read(next(iter(messages.values())))
            chosen.add(next(site for site in SIX if (site in attempt.members) == (victim == "member")))
        return chosen

    engine.kill = kill
    results = serve_job(job, SIX, engine.call, tmp_path, "local")
    (gone,) = chosen
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


def test_an_owner_that_sends_garbage_is_left_out(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All members notice it; the other sites only see members fall silent, and nobody is blamed for that."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 3.0)
    configs, job = make("held", SIX)
    engine, liar = Engine(configs, job), []

    def garbage(attempt_name: str) -> Any:
        relay = engine.engine._relays[attempt_name].of(liar[0])
        send, count = relay.send, dict[str, int]()

        def changed(to: str, message: bytes) -> None:
            count[to] = count.get(to, 0) + 1
            send(to, message if count[to] < 3 else message[:-1] + bytes([message[-1] ^ 1]))

        return Changed(changed, relay.receive)

    def tamper(task: str, site: str, message: Tensors) -> Tensors:
        if task == "start/mix" and not liar:
            members = Attempt.read(message).members
            liar.append(next(name for name in SIX if name not in members))
            engine.engine._runtime(liar[0])._relays = garbage
            engine.engine._runtime(liar[0]).__dict__.pop("_secure", None)
        return message

    engine.tamper = tamper
    results = serve_job(job, SIX, engine.call, tmp_path, "local")
    assert f"Site {liar[0]} broke off in round 1: the job went on without it." in results["notes"]
    assert len([note for note in results["notes"] if "broke off" in note]) == 1
    assert_mixed(configs, tuple(site for site in SIX if site != liar[0]), 1)


class Changed:
    """A relay whose messages are changed."""

    def __init__(self, send: Callable[[str, bytes], None], receive: Callable[[str, float], bytes]) -> None:
        self.send, self.receive = send, receive


@pytest.fixture
def drawn(make: Any) -> tuple[Engine, dict[str, SiteConfig], Beacon]:
    """Six sites that have begun round 1 and drawn."""
    configs, job = make("held", SIX)
    engine = Engine(configs, job)
    engine.engine.call("start", 1, dict.fromkeys(SIX, {}), lambda site: None)
    beacon = draw(lambda task, messages: engine.engine.call(task, 1, messages, lambda site: None), SIX)
    return engine, configs, beacon


def ask(engine: Engine, attempt: Attempt, site: str = SIX[0]) -> Tensors:
    (reply,) = engine.engine.call("start/mix", 1, {site: attempt.message()}, lambda site: None).values()
    return reply.tensors


def test_a_site_refuses_other_members_than_were_drawn(drawn: Any) -> None:
    """Chosen ones, those of another round or of fewer sites, all sites, none; nothing is shared."""
    engine, configs, beacon = drawn
    right = beacon.committee(1, 3)
    other = next(m for r in range(2, 99) if (m := beacon.committee(r, 3)) != right)
    fewer = beacon.committee(1, 3, [right[0]])
    for members in (other, fewer, SIX, (), right[::-1], (*right, "spy")):
        with pytest.raises(FederationError, match=r"other members than follow|no fingerprint of spy"):
            ask(engine, Attempt("a", SIX, members=members))
    for number in (0, attempts.ATTEMPTS + 1):
        with pytest.raises(FederationError, match="at most 8 attempts"):
            ask(engine, Attempt("a", SIX, members=right, number=number))
    assert not [entry for entry in read(configs[SIX[0]].audit) if entry.peer == "sites"]


def test_a_site_that_was_left_out_never_comes_back(drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does an attempt's number: else a server could go back to a committee that suits it."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 0.1)
    engine, _, beacon = drawn
    without, members = SIX[:5], beacon.committee(1, 3, [SIX[5]])
    assert int(ask(engine, Attempt("a", without, members=members, number=2))["fault"]) >= 0
    with pytest.raises(FederationError, match="never come back"):
        ask(engine, Attempt("b", SIX, members=beacon.committee(1, 3), number=3))
    with pytest.raises(FederationError, match="in order of their numbers"):
        ask(engine, Attempt("b", without, members=members, number=2))


def test_a_round_has_a_bounded_number_of_attempts(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the job ends and says so."""
    monkeypatch.setattr(attempts, "ATTEMPTS", 1)
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 1.0)
    configs, job = make("held", SIX)
    engine = Engine(configs, job)
    engine.kill = lambda task, messages: {SIX[0]} if task == "start/mix" else set()
    with pytest.raises(FederationError, match="round 1: 1 attempts failed"):
        serve_job(job, SIX, engine.call, tmp_path, "local")


def other_commitments(engine: Engine, task: str, site: str, message: Tensors) -> Tensors:
    """One site sees another commitment of a peer than the others do, and the nonce that fits it."""
    if site != SIX[0] or not {"commitments", "nonces"} & message.keys():
        return message
    nonce = Nonce("job", SIX[1], bytes(32))
    (name, array), told = next(iter(message.items())), {"commitments": nonce.commitment, "nonces": nonce.value}
    said = json.loads(array.tobytes()) | {SIX[1]: told[name].hex()}
    return {name: attempts.as_array(said)}


def test_a_draw_with_different_commitments_for_different_sites_is_refused(make: Any, tmp_path: Path) -> None:
    """By the server that carries it, if it is honest; else by the sites, whose beacons differ."""
    configs, job = make("held", SIX)
    engine = Engine(configs, job)
    engine.tamper = lambda task, site, message: other_commitments(engine, task, site, message)
    with pytest.raises(FederationError, match="different results of the draw"):
        serve_job(job, SIX, engine.call, tmp_path, "local")
    mine, theirs = kept(configs[SIX[0]]).beacon, kept(configs[SIX[1]]).beacon
    assert mine and theirs and mine != theirs
    round = next(r for r in range(1, 99) if mine.committee(r, 3) != theirs.committee(r, 3))
    with pytest.raises(FederationError, match="other members than follow"):
        attempt = Attempt("a", SIX, members=theirs.committee(round, 3))
        attempts.admit(attempt, replace(kept(configs[SIX[0]]), round=round), MembersRule(3, beacon=mine))


def test_a_site_opens_its_nonce_under_one_set_of_commitments_even_after_a_restart(make: Any) -> None:
    """Asked again it says the same; shown other commitments, it refuses, and its nonce is never drawn again."""
    configs, job = make("held", SIX)

    def fresh(task: str, message: Tensors) -> Tensors:
        (reply,) = LocalEngine(configs, job, "job").call(task, 1, {SIX[0]: message}, lambda site: None).values()
        return reply.tensors

    with pytest.raises(FederationError, match="answered no task of the job yet"):
        fresh("committee/commit", {})
    fresh("start", {})
    own = fresh("committee/commit", {})["commitment"].tobytes()
    assert fresh("committee/commit", {})["commitment"].tobytes() == own
    others = {site: Nonce("job", site, bytes(32)) for site in SIX[1:]}
    committed = {SIX[0]: own} | {site: nonce.commitment for site, nonce in others.items()}

    def shown(changes: Mapping[str, bytes]) -> Tensors:
        said = {site: value.hex() for site, value in (committed | changes).items()}
        return {"commitments": attempts.as_array(said)}

    for changes, sentence in (({SIX[0]: bytes(32)}, "needs this site"), ({"spy": bytes(32)}, "no fingerprint of spy")):
        with pytest.raises(FederationError, match=sentence):
            fresh("committee/open", shown(changes))
    nonce = fresh("committee/open", shown({}))["nonce"].tobytes()
    assert fresh("committee/open", shown({}))["nonce"].tobytes() == nonce
    with pytest.raises(FederationError, match="other commitments before"):
        fresh("committee/open", shown({SIX[1]: bytes(32)}))
    opened = {SIX[0]: nonce} | {site: nonce.value for site, nonce in others.items()}
    for wrong in (opened | {SIX[1]: b"\1" * 32}, {site: value for site, value in opened.items() if site != SIX[1]}):
        with pytest.raises(FederationError, match=f"'{SIX[1]}' .*the draw is void"):
            fresh("committee/check", {"nonces": attempts.as_array({s: value.hex() for s, value in wrong.items()})})
    fresh("committee/check", {"nonces": attempts.as_array({site: value.hex() for site, value in opened.items()})})


@pytest.mark.parametrize("step", ["committee/commit", "committee/open"])
def test_a_site_that_falls_silent_in_the_draw(make: Any, tmp_path: Path, step: str) -> None:
    """Before it commits, the draw goes on without it; once it has committed, the draw is void and the job ends: else it
    could choose between two draws."""
    configs, job = make("held", SIX)
    engine = Engine(configs, job)
    engine.kill = lambda task, messages: {SIX[0]} if task == step else set()
    if step == "committee/open":
        with pytest.raises(FederationError, match=f"{SIX[0]} did not open.*submit the job again"):
            serve_job(job, SIX, engine.call, tmp_path, "local")
        return
    results = serve_job(job, SIX, engine.call, tmp_path, "local")
    assert f"Site {SIX[0]} broke off in round 1: the job went on without it." in results["notes"]
    assert_mixed(configs, SIX[1:], 1)


def test_a_named_committee_computes_without_a_draw(make: Any, tmp_path: Path) -> None:
    """That of the job and of all sites' policies; nothing of a draw is asked."""
    configs, job = make("held", SIX, committee=SIX[1:4], rounds=2)
    configs = {s: c.model_copy(update={"policy": replace(c.policy, committee=SIX[1:4])}) for s, c in configs.items()}
    engine = Engine(configs, job)
    results = serve_job(job, SIX, engine.call, tmp_path, "local")
    assert {attempt.members for attempt in engine.attempts} == {SIX[1:4]} and kept(configs[SIX[0]]).draw is None
    assert "3 of the 6 sites computed for all of them, named by the sites' policies." in results["notes"]
    assert_mixed(configs, SIX, 2)
    reason = next(str(e.reason) for e in read(configs[SIX[0]].audit) if e.peer == "sites")
    assert "named by the sites' policies: all 3 of them together could open every input" in reason


def test_without_one_of_the_named_the_job_ends(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else takes its place."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 1.0)
    configs, job = make("held", SIX, committee=SIX[1:4])
    configs = {s: c.model_copy(update={"policy": replace(c.policy, committee=SIX[1:4])}) for s, c in configs.items()}
    engine = Engine(configs, job)
    engine.kill = lambda task, messages: {SIX[1]} if task == "start/mix" else set()
    with pytest.raises(FederationError, match=f"{SIX[1]} of the named committee is not there"):
        serve_job(job, SIX, engine.call, tmp_path, "local")


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
    make: Any, tmp_path: Path, committee: Any, policy: dict[str, Any], sentence: str
) -> None:
    """Before it trains; so sites that name different ones never run a job together."""
    configs, job = make("held", SIX, committee=committee)
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
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round through server and sites, 50 sites and 200, of which three compute: right at every site; the same bytes
    to other sites, handshakes and seals included, from every site that does not compute. The server's own messages grow
    by the names of the sites.
    """
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 120.0)
    seen = []
    for size in (50, 200):
        names, meters = tuple(f"site-{number:03d}" for number in range(1, size + 1)), dict[str, Metered]()
        configs, job = make("held", names)
        engine = Engine(configs, job, f"of-{size}")
        for name in names:
            engine.engine._runtime(name)._relays = partial(metered, meters, engine.engine, name)
        results = serve_job(job, names, engine.call, tmp_path, "local")
        assert results["status"] == "finished" and not any("broke off" in note for note in results["notes"])
        assert_mixed(configs, names, 1, f"of-{size}")
        (attempt,) = engine.attempts
        seen.append({meter.nbytes for name, meter in meters.items() if name not in attempt.members})
        engine.engine.close()
    assert len(seen[0]) == 1 and seen[0] == seen[1]


def metered(meters: dict[str, Metered], engine: LocalEngine, name: str, attempt: str) -> Metered:
    """A site's relay, counted."""
    return meters.setdefault(name, Metered(engine._relays[attempt].of(name)))
