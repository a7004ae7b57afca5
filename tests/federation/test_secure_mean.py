"""Means under masks in process: what comes of them, who learns what, and what happens on faults."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from audits import Exchange, Kind, Outcome, Protection, TaskSpec, TensorSpec, read, verify
from medfedvqa.errors import FederationError
from medfedvqa.federation import attempt as attempts
from medfedvqa.federation.attempt import Attempt, Opening
from medfedvqa.federation.hub import Excused, Reply, nobody
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.local import LocalEngine
from medfedvqa.federation.secure_hub import SecureHub
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.state import StateFile
from medfedvqa.methods import Hub, MeanOnShares, Method, Site, State, Tensors, base
from medfedvqa.methods.prompt_pfl import PromptPFLConfig
from medfedvqa.methods.training import SiteTrainer
from medfedvqa.models import BackboneShape, prompt_shapes, shape_of
from privacy import Cost, DPSettings, mean

Sites = Callable[..., dict[str, SiteConfig]]
Job = Callable[..., JobSpec]
THREE, FIVE = ("abdomen", "chest", "head"), ("a", "b", "c", "d", "e")


class Averaged(Method[PromptPFLConfig]):
    """Sites train prompts, and go on from their mean."""

    name = "averaged"
    config_type = PromptPFLConfig
    how = MeanOnShares("rows")

    @property
    def on_shares(self) -> Mapping[str, MeanOnShares]:
        return {"start": self.how, "train": self.how}

    def exchange(self, shape: BackboneShape) -> Exchange:
        prompts = tuple(
            TensorSpec(name, size, "float32", Kind.PARAMETERS, "a prompt") for name, size in self.sizes(shape).items()
        )
        rows = TensorSpec("rows", (), "int64", Kind.STATISTIC, "training rows")
        up = (*prompts, rows) if self.how.weight else prompts
        tasks = (TaskSpec("start", up, ()), TaskSpec("train", up, prompts), TaskSpec("evaluate", (), prompts))
        return Exchange(self.name, tasks)

    def sizes(self, shape: BackboneShape) -> dict[str, tuple[int, ...]]:
        return {name: tuple(prompt.size) for name, prompt in prompt_shapes(shape, self.config.model).items()}

    def tasks(self) -> Iterator[tuple[str, int]]:
        yield "start", 1
        yield from (("train", number) for number in range(2, self.config.rounds + 1))
        yield "evaluate", self.config.rounds

    def trainer(self, site: Site) -> SiteTrainer:
        return SiteTrainer(site, self.config.model, self.config.training)

    def setup(self, site: Site) -> State:
        return self.trainer(site).new(site.seed)

    def start(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        model = state["model"] | {name: torch.from_numpy(np.array(array)) for name, array in received.items()}
        state = self.trainer(site).train({**state, "model": model}, None, round, site.task_seed("train", round))
        return state, self.trainer(site).prompts(state) | {"rows": np.array(len(site.data.train))}

    train = start

    def evaluate(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        return {**state, "last": {name: torch.from_numpy(np.array(a)) for name, a in received.items()}}, {}

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        now: Tensors = {}
        for number in hub.rounds(self.config.rounds):
            now = hub.mean("start" if number == 1 else "train", dict.fromkeys(hub.sites, now), self.how.weight)
        return hub.collect("evaluate", dict.fromkeys(hub.sites, now))


class Given(Averaged):
    """Sites do not train, whatever they say it costs: what each of them holds follows from its name and the round."""

    name = "given"

    def sizes(self, shape: BackboneShape) -> dict[str, tuple[int, ...]]:
        return {"prompt.x": (2, 3), "scale": ()}

    def cost(self, task: str) -> Cost:
        return Cost() if task == "evaluate" else Cost(steps=1)

    def setup(self, site: Site) -> State:
        return {}

    def start(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        held = holding(site.name, round)
        return state, held if self.how.weight else {n: a for n, a in held.items() if n != "rows"}

    train = start


def holding(site: str, round: int) -> Tensors:
    """What a site puts into a mean of `Given`."""
    rng = np.random.default_rng([ord(site[0]), round])
    return {"prompt.x": np.float32(rng.normal(size=(2, 3))), "scale": np.array(2.5, np.float32)} | {
        "rows": np.array(rng.integers(1, 4000))
    }


def expected(sites: Collection[str], round: int) -> Tensors:
    """The plain mean of what these hold."""
    held = {site: holding(site, round) for site in sites}
    return mean(held, {site: float(tensors.pop("rows")) for site, tensors in held.items()})


def variant(kind: type[Averaged], name: str, how: MeanOnShares) -> type[Averaged]:
    return type(name, (kind,), {"name": name, "how": how})


METHODS = [
    Averaged,
    Given,
    variant(Given, "given_unweighted", MeanOnShares()),
    variant(Given, "given_at_sites", MeanOnShares("rows", to="sites")),
]


@pytest.fixture(autouse=True)
def methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry knows them during a test."""
    for method in METHODS:
        monkeypatch.setitem(base._METHODS, method.name, method)


@pytest.fixture
def make(introduced: Sites, quick_job: Job) -> Callable[..., tuple[dict[str, SiteConfig], JobSpec]]:
    """Sites that know each other, and a job on shares of a method."""

    def made(method: str, names: tuple[str, ...], rounds: int = 1, **changes: Any) -> Any:
        organs = {} if names == THREE else {"organ": "chest"}
        configs = introduced(*names, methods=[kind.name for kind in METHODS], **organs, **changes)
        return configs, JobSpec.from_dict(quick_job(rounds=rounds).to_dict() | {"method": method, "secagg": True})

    return made


class Engine:
    """In process; keeps what passes, and lets sites die: before a task, or after it and before its answer arrives."""

    def __init__(self, configs: Mapping[str, SiteConfig], job: JobSpec, job_id: str = "job") -> None:
        self.engine = LocalEngine(configs, job, job_id)
        self.before: dict[tuple[str, int], set[str]] = {}
        self.after: dict[tuple[str, int], set[str]] = {}
        self.dead: set[str] = set()
        self.passed: list[tuple[str, Tensors]] = []

    def call(
        self,
        task: str,
        round: int,
        messages: Mapping[str, Tensors],
        answered: Callable[[str], None],
        excused: Excused = nobody,
    ) -> dict[str, Reply]:
        kind = task.partition("/")[2]
        self.dead |= self.before.get((kind, round), set())
        living = {site: message for site, message in messages.items() if site not in self.dead}
        replies = self.engine.call(task, round, living, answered, excused)
        self.dead |= self.after.get((kind, round), set())
        self.passed += [(task, tensors) for tensors in (*messages.values(), *(r.tensors for r in replies.values()))]
        return {site: reply for site, reply in replies.items() if site not in self.dead}

    def sent(self, task: str, name: str) -> list[np.ndarray]:
        return [tensors[name] for asked, tensors in self.passed if asked == task and name in tensors]


def last(config: SiteConfig, job_id: str = "job") -> Tensors:
    """What the evaluation at a site was given."""
    saved = StateFile(config.state, job_id).load()
    assert saved is not None
    return {name: tensor.numpy() for name, tensor in saved.state["last"].items()}


def assert_alike(found: Tensors, plain: Tensors) -> None:
    assert found.keys() == plain.keys()
    for name, array in plain.items():
        assert found[name].dtype == array.dtype and np.allclose(found[name], array, rtol=1e-6, atol=2.0**-22)


@pytest.mark.parametrize("method", [pytest.param("averaged", marks=pytest.mark.slow), "given", "given_at_sites"])
def test_a_job_on_shares_goes_as_the_plain_one(make: Any, tmp_path: Path, method: str) -> None:
    """What sites hold, weighted by their rows, in the mean to 2^-22, also where they trained it. Without a mean for the
    server, none of what passes it is one: it has masked sums only."""
    configs, job = make(method, THREE)
    runs, found = {}, {}
    for name, spec in (("plain", job.model_copy(update={"secagg": False})), ("secure", job)):
        (tmp_path / name).mkdir()
        runs[name] = Engine(configs, spec, name)
        results = serve_job(spec, THREE, runs[name].call, tmp_path / name, "local")
        found[name] = [last(config, name) for config in configs.values()]
    assert results["status"] == "finished" and results["secagg"]
    for secure, plain in zip(found["secure"], found["plain"], strict=True):
        assert_alike(secure, plain)
    names = {name for task, tensors in runs["secure"].passed if task != "start/mean" for name in tensors}
    prompts = set(found["plain"][0])
    assert names == {"uploaded", "opening"} | ({"hidden_sum"} if method == "given_at_sites" else prompts)
    if method == "given_at_sites":
        (total, *_) = runs["secure"].sent("evaluate", "hidden_sum")
        assert (np.abs(total.astype(np.float64)) > 2.0**53).sum() >= len(total) - 1  # sums of the inputs are below 2^40


@pytest.mark.parametrize("committee", [5, 3])
@pytest.mark.parametrize("moment", ["before mean", "after mean", "before unmask", "after unmask"])
def test_a_site_may_die_at_every_step(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, committee: int
) -> None:
    """The mean is that over the sites that uploaded, and the job goes on with the rest. Before the exchange of keys the
    attempt is repeated; later nothing is. Members and other sites alike."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 2.0)
    configs, job = make("given", FIVE, rounds=2, committee=list(FIVE[-committee:]) if committee < 5 else [])
    job = job.model_copy(update={"committee": FIVE[-committee:] if committee < 5 else None})
    engine, (when, kind) = Engine(configs, job), moment.split()
    victim = "a" if committee == 3 else "e"
    getattr(engine, when)[kind, 1] = {victim}
    results = serve_job(job, FIVE, engine.call, tmp_path, "local")
    rest = [site for site in FIVE if site != victim]
    unmasks = kind == "unmask" and victim == "a"
    assert results["status"] == "finished"
    # A site that is no member has nothing to do at the end: that it is dead shows in the next round.
    assert any(f"Site {victim} broke off in round {2 if unmasks else 1}" in note for note in results["notes"])
    in_first = FIVE if kind == "unmask" else rest
    scale, prompt = (engine.sent("train", name)[0] for name in ("scale", "prompt.x"))
    assert_alike({"scale": scale, "prompt.x": prompt}, expected(in_first, 1))
    for site in rest:
        assert_alike(last(configs[site]), expected(rest, 2))
    said = {message.tobytes() for message in engine.sent("start/mean", "attempt")}
    assert len(said) == (2 if moment == "before mean" else 1)


@pytest.mark.parametrize("method", ["given", "given_at_sites"])
def test_a_mean_that_cannot_be_opened_is_not_asked_for_again(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Two of five members die before they answer: the mean before stays in use, and the results say so."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 2.0)
    configs, job = make(method, FIVE, rounds=2)
    engine = Engine(configs, job)
    engine.before["unmask", 2] = {"a", "b"}
    results = serve_job(job, FIVE, engine.call, tmp_path, "local")
    assert any("Round 2 gave no mean, and the one before it stayed in use: 3 members" in n for n in results["notes"])
    for site in "cde":
        assert_alike(last(configs[site]), expected(FIVE, 1))


def test_without_a_mean_before_it_a_lost_one_ends_the_job(make: Any, tmp_path: Path) -> None:
    """In the first round there is nothing to go on with."""
    configs, job = make("given", FIVE)
    engine = Engine(configs, job)
    engine.before["unmask", 1] = {"a", "b"}
    with pytest.raises(FederationError, match="round 1 gave no mean, and there is none before it: 3 members answered"):
        serve_job(job, FIVE, engine.call, tmp_path, "local")


def test_fewer_than_three_uploads_are_not_opened(make: Any, tmp_path: Path) -> None:
    """No member is even asked."""
    configs, job = make("given", THREE)
    engine = Engine(configs, job)
    engine.after["mean", 1] = {"head"}
    with pytest.raises(FederationError, match="2 sites are left .head fell out.*could reveal"):
        serve_job(job, THREE, engine.call, tmp_path, "local")
    assert not engine.sent("start/unmask", "uploaded")


def test_a_site_that_sends_garbage_is_left_out_and_named(make: Any, tmp_path: Path) -> None:
    """An upload of another length is no part of the sum."""
    configs, job = make("given", FIVE)

    class Cut(Engine):
        def call(self, task: str, *arguments: Any) -> dict[str, Reply]:
            replies = super().call(task, *arguments)
            if task == "start/mean":
                replies["b"].tensors["prompt.x"] = replies["b"].tensors["prompt.x"][:1]
            return replies

    results = serve_job(job, FIVE, Cut(configs, job).call, tmp_path, "local")
    assert "Site b broke off in round 1: the job went on without it." in results["notes"]
    assert_alike(last(configs["a"]), expected("acde", 1))


@pytest.fixture
def uploaded(make: Any) -> tuple[Engine, dict[str, SiteConfig], JobSpec]:
    """Five sites that have uploaded to the attempt "one" of round 1."""
    configs, job = make("given", FIVE)
    engine = Engine(configs, job)
    ask(engine, "start", FIVE, {})
    ask(engine, "start/mean", FIVE, Attempt("one", FIVE, members=FIVE).message())
    return engine, configs, job


def ask(engine: Engine, task: str, sites: Collection[str], message: Tensors) -> dict[str, Reply]:
    return engine.call(task, 1, dict.fromkeys(sites, message), lambda site: None)


def test_a_member_opens_one_sum_of_a_round_even_after_a_restart(uploaded: Any) -> None:
    """Asked for it again, it says the same; another sum, or another attempt, it refuses."""
    engine, configs, job = uploaded
    (first,) = ask(engine, "start/unmask", "a", Opening("one", FIVE).message()).values()
    engine.engine = LocalEngine(configs, job, "job")
    (again,) = ask(engine, "start/unmask", "a", Opening("one", FIVE).message()).values()
    assert np.array_equal(first.tensors["opening"], again.tensors["opening"])
    with pytest.raises(FederationError, match="opened another sum"):
        ask(engine, "start/unmask", "a", Opening("one", FIVE[:4]).message())
    with pytest.raises(FederationError, match="no other attempt"):
        ask(engine, "start/mean", "a", Attempt("two", FIVE, members=FIVE, number=2).message())


def test_a_site_that_goes_on_to_another_attempt_cannot_open_the_one_before(uploaded: Any) -> None:
    """Its shares of it are gone; and too few of its members may stay behind to open it without it."""
    engine, _, _ = uploaded
    with pytest.raises(FederationError, match="the first may yet be opened"):
        ask(engine, "start/mean", "a", Attempt("two", FIVE[:3], members=FIVE[:3], number=2).message())
    ask(engine, "start/mean", FIVE[:4], Attempt("two", FIVE[:4], members=FIVE[:4], number=2).message())
    with pytest.raises(FederationError, match="gone on to another one"):
        ask(engine, "start/unmask", "a", Opening("one", FIVE).message())
    ask(engine, "start/unmask", "a", Opening("two", FIVE[:4]).message())


@pytest.mark.parametrize(
    ("opening", "sentence"),
    [
        (Opening("one", FIVE[:2]).message(), "fewer than 3 sites"),
        (Opening("one", FIVE[:3]).message(), "fewer than 4 of the members"),
        (Opening("other", FIVE).message(), "no member of that attempt"),
        ({}, "does not say whose uploads"),
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


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (Attempt("one", FIVE, members=FIVE[:3]), "other members than follow"),
        (Attempt("one", FIVE[:2], members=FIVE[:2]), "at least 3"),
        (Attempt("one", FIVE[1:], members=FIVE[1:]), "needs this site"),
        (Attempt("one", (*FIVE, "f"), members=(*FIVE, "f")), "no fingerprint of f"),
        (Attempt("one", FIVE), "other members than follow"),
        (Attempt("one", FIVE, members=FIVE, number=9), "at most 8 attempts"),
    ],
)
def test_a_site_refuses_attempts_that_would_expose_it(make: Any, attempt: Attempt, sentence: str) -> None:
    """Members of the server's choice, too few sites, a site that is not pinned: nothing is shared."""
    configs, job = make("given", FIVE)
    engine = Engine(configs, job)
    ask(engine, "start", "a", {})
    with pytest.raises(FederationError, match=sentence):
        ask(engine, "start/mean", "a", attempt.message())
    assert not [entry for entry in read(configs["a"].audit) if entry.peer == "sites"]


def test_a_value_out_of_range_is_refused_before_anything_is_shared(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site says so, and its log holds no share."""
    configs, job = make("given", THREE)
    engine = Engine(configs, job)
    monkeypatch.setattr(Given, "start", lambda self, site, state, *_: (state, large(site.name)))
    ask(engine, "start", THREE, {})
    with pytest.raises(FederationError, match="nothing was shared"):
        ask(engine, "start/mean", ("chest",), Attempt("one", THREE, members=THREE).message())
    assert not [entry for entry in read(configs["chest"].audit) if entry.peer == "sites"]


def large(site: str) -> Tensors:
    return holding(site, 1) | {"scale": np.array(1e30, np.float32)}


def test_the_log_tells_masks_uploads_and_openings(make: Any, tmp_path: Path) -> None:
    """Shares of keys to sites, without digests; the masked upload under the names of what is in it; which sum was
    opened; and where only sites know the mean, that the site has it from them."""
    configs, job = make("given_at_sites", THREE, require_secagg=True)
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


def test_after_differential_privacy_the_upload_carries_both_and_is_charged_once(make: Any, tmp_path: Path) -> None:
    """The masked release has the charge of its task, and no other."""
    configs, job = make("given_unweighted", THREE, require_secagg=True, require_dp=True)
    dp = DPSettings(noise=2.0, count_noise=20.0, sample_rate=0.3, patient_rows=4, physical_patients=5)
    job = job.model_copy(update={"dp": dp})
    results = serve_job(job, THREE, Engine(configs, job).call, tmp_path, "local")
    assert results["status"] == "finished" and results["sites"]["head"]["epsilon"] > 0
    up = job.build().final_exchange(shape_of(job.backbone)).task("start/mean").up
    assert {spec.protection for spec in up if spec.kind is Kind.PARAMETERS} == {Protection.DP_MASKED}
    for config in configs.values():
        sent = [entry for entry in read(config.audit) if entry.outcome == Outcome.SENT]
        charged = {json.dumps(e.dp_event["ledger"]) for e in sent if e.task in ("start", "start/mean") and e.dp_event}
        (upload,) = [e for e in sent if (e.task, e.peer) == ("start/mean", "server")]
        assert upload.dp_event and len(charged) == 1


def test_a_mean_that_the_method_does_not_declare_is_refused(make: Any, tmp_path: Path) -> None:
    """Another weight than the one declared would not be on shares."""
    configs, job = make("given", THREE)
    hub = SecureHub(
        THREE, Engine(configs, job).call, on_shares=job.build().on_shares, layouts={}, least=3, rule=job.members_rule()
    )
    with pytest.raises(FederationError, match="declares no mean of 'start'"):
        hub.mean("start")
