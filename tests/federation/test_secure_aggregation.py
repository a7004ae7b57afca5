"""Jobs with secure aggregation in process: what comes of them, what the server holds, and what happens on faults."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audits import JobRefused, Outcome, Protection, Reason, read, totals, verify
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.evaluation import load_transcript
from medfedvqa.federation import attempt as attempts
from medfedvqa.federation.attempt import Attempt
from medfedvqa.federation.hub import Excused, Reply, nobody
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.local import LocalEngine
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site import SiteRuntime
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.methods import Tensors
from medfedvqa.models import shape_of
from privacy import DPSettings

Sites = Callable[..., dict[str, SiteConfig]]
Job = Callable[..., JobSpec]
SITES = ("abdomen", "chest", "head")


@pytest.fixture
def secure_job(quick_job: Job) -> Job:
    """A quick job on shares; keywords are options of the method."""
    return lambda **options: JobSpec.from_dict(quick_job(**options).to_dict() | {"secagg": True})


class Recorder:
    """An engine that keeps all that passes between server and sites; sites in `dead` do not answer a mixing task."""

    def __init__(self, engine: LocalEngine, dead: Mapping[int, str] | None = None) -> None:
        self.engine, self.dead = engine, dead or {}
        self.passed: list[Tensors] = []

    def call(
        self,
        task: str,
        round: int,
        messages: Mapping[str, Tensors],
        answered: Callable[[str], None],
        excused: Excused = nobody,
    ) -> dict[str, Reply]:
        dead = self.dead.get(round) if task.endswith("/mix") else None
        replies = self.engine.call(task, round, {s: m for s, m in messages.items() if s != dead}, answered, excused)
        self.passed += [*messages.values(), *(reply.tensors for reply in replies.values())]
        return replies


def last_mixture(config: SiteConfig, job_id: str) -> Tensors:
    """What a site keeps of the others' prompts."""
    saved = SiteRuntime(config, JobSpec(method="prompt_pfl"), job_id)._file.load()
    assert saved is not None
    return saved.mixture


def last_prompts(config: SiteConfig, job_id: str) -> Tensors:
    """A site's own prompts after its last round."""
    saved = SiteRuntime(config, JobSpec(method="prompt_pfl"), job_id)._file.load()
    assert saved is not None
    return {name: t.numpy() for name, t in saved.state["model"].items() if name.startswith("prompt.")}


@pytest.mark.parametrize("similarity", ["prompt", "block"])
def test_sites_get_the_plain_mixture_and_the_server_holds_no_prompt_and_no_accuracy(
    introduced: Sites, secure_job: Job, tmp_path: Path, similarity: str
) -> None:
    """Within 1e-3 of the plain run, relative to its norm; what passed the server is tuples, zeros and figures."""
    configs, job = introduced(*SITES), secure_job(rounds=1, similarity=similarity)
    plain = job.model_copy(update={"secagg": False})
    for name, spec in (("plain", plain), ("secure", job)):
        (tmp_path / name).mkdir()
        recorder = Recorder(LocalEngine(configs, spec, name))
        results = serve_job(spec, SITES, recorder.call, tmp_path / name, "local")
    expected, seen = load_transcript(tmp_path / "plain").shared, load_transcript(tmp_path / "secure")
    for site in SITES:
        for tensor, mixed in last_mixture(configs[site], "secure").items():
            clear = expected[site][tensor]
            assert np.linalg.norm(mixed - clear) <= 1e-3 * np.linalg.norm(clear)
    assert not seen.uploads and not seen.shared
    assert {name for message in recorder.passed for name in message} == {"attempt", "dealt", "fault", "shared_bytes"}
    assert results["secagg"] and results["status"] == "finished" and results["rounds"][0]["accuracy"] == {}
    assert all(facts["accuracy"] is None for facts in results["sites"].values())


def test_the_log_says_what_was_shared_among_whom_and_who_dealt(
    introduced: Sites, secure_job: Job, tmp_path: Path
) -> None:
    """One masked release for each attempt, before any message of it, without digests; nothing else that is data."""
    configs = introduced(*SITES, require_secagg=True, min_sites=3)
    serve_job(secure_job(), SITES, LocalEngine(configs, secure_job(), "job").call, tmp_path, "local")
    for config in configs.values():
        assert verify(config.audit).ok
        sent = [entry for entry in read(config.audit) if entry.outcome == Outcome.SENT]
        tasks = [("start", "server"), ("start/mix", "sites"), ("start/mix", "server")]
        tasks += [(task.replace("start", "train"), peer) for task, peer in tasks]
        assert [(entry.task, entry.peer) for entry in sent] == [*tasks, ("evaluate", "server")]
        for entry in sent:
            if entry.peer == "sites":
                assert {record.protection for record in entry.tensors} == {Protection.MASKED}
                assert {record.sha256 for record in entry.tensors} == {None}
                assert "among abdomen, chest, head, dealt by the server" in str(entry.reason)
        to_server = {t.name for t in totals(config.audit).tensors if (t.direction, t.peer) == ("out", "server")}
        assert to_server == {"fault", "shared_bytes"}
        assert json.loads((config.state / "job.evaluate.json").read_text())["rows"] > 0


def test_after_differential_privacy_what_is_shared_carries_both(
    introduced: Sites, secure_job: Job, tmp_path: Path
) -> None:
    """The epsilon goes to the server in clear, and every masked release has its charge."""
    dp = DPSettings(noise=2.0, count_noise=20.0, sample_rate=0.3, patient_rows=4, physical_patients=5)
    job = secure_job().model_copy(update={"dp": dp})
    configs = introduced(*SITES, require_secagg=True, require_dp=True)
    results = serve_job(job, SITES, LocalEngine(configs, job, "job").call, tmp_path, "local")
    assert results["status"] == "finished" and results["sites"]["head"]["epsilon"] > 0
    exchange = job.build().final_exchange(shape_of(job.backbone))
    assert [spec.name for spec in exchange.task("train").up] == ["epsilon"] and exchange.task("evaluate").up == ()
    protections = {spec.protection for spec in exchange.task("train/mix").up if spec.name.startswith("prompt")}
    assert protections == {Protection.DP_MASKED}
    for config in configs.values():
        masked = [entry for entry in read(config.audit) if entry.peer == "sites" and entry.outcome == Outcome.SENT]
        assert len(masked) == 2 and all(entry.dp_event for entry in masked)


def test_a_site_that_dies_while_mixing_is_left_out_and_the_round_repeated_with_the_rest(
    introduced: Sites, sites: Sites, secure_job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other dealt tuples, another attempt; the result is the plain one over the others, and the results say so."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 2.0)
    configs = introduced(*SITES) | {}
    configs["spare"] = introduced("spare", organ="chest")["spare"]
    pins = {name: attempts.load_identity(config).fingerprint for name, config in configs.items()}
    configs = {name: config.model_copy(update={"peers": pins}) for name, config in configs.items()}
    job = secure_job(rounds=1)
    recorder = Recorder(LocalEngine(configs, job, "job"), dead={1: "head"})
    results = serve_job(job, tuple(configs), recorder.call, tmp_path, "local")
    assert results["status"] == "finished"
    assert any("Site head broke off in round 1" in note for note in results["notes"])
    said = [Attempt.read(message) for message in recorder.passed if "attempt" in message]
    assert len({attempt.name for attempt in said}) == 2 and len({attempt.dealt for attempt in said}) == 7
    assert "head" in said[0].sites and "head" not in said[-1].sites
    rest = tuple(name for name in configs if name != "head")
    plain = job.model_copy(update={"secagg": False})
    (tmp_path / "plain").mkdir()
    serve_job(plain, rest, LocalEngine(configs, plain, "plain").call, tmp_path / "plain", "local")
    expected = load_transcript(tmp_path / "plain").shared
    for site in rest:
        for tensor, mixed in last_mixture(configs[site], "job").items():
            assert np.linalg.norm(mixed - expected[site][tensor]) <= 1e-3 * np.linalg.norm(expected[site][tensor])
    assert last_mixture(configs["head"], "job") == {}


def test_fewer_than_three_sites_that_are_left_end_the_job(
    introduced: Sites, secure_job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two, each could subtract its own part; nothing is repeated, and the reason is in the results."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 1.0)
    job, configs = secure_job(), introduced(*SITES)
    recorder = Recorder(LocalEngine(configs, job, "job"), dead={1: "head"})
    with pytest.raises(FederationError, match="2 sites are left .head fell out.*could reveal"):
        serve_job(job, SITES, recorder.call, tmp_path, "local")
    assert all(last_mixture(config, "job") == {} for config in configs.values())


def test_a_site_serves_in_no_attempt_twice_and_in_no_second_one_of_a_round(
    introduced: Sites, secure_job: Job, tmp_path: Path
) -> None:
    """Dealt tuples must not serve twice, and two mixtures of one round would show what they differ by."""
    job, configs = secure_job(rounds=1), introduced(*SITES)
    recorder = Recorder(LocalEngine(configs, job, "job"))
    (tmp_path / "out").mkdir()
    engine = recorder.engine
    engine.call("start", 1, dict.fromkeys(SITES, {}), lambda site: None)
    chest, file = engine._runtime("chest"), engine._runtime("chest")._file
    begun = file.load()
    assert begun is not None
    message = Attempt("died", SITES, b"", SITES).message()
    file.save(attempts_begun(begun, "died"))
    assert int(chest.handle("start/mix", 1, message)["fault"]) == SITES.index("chest")
    file.save(attempts_begun(begun, "done", mixed=1))
    assert int(chest.handle("start/mix", 1, Attempt("done", SITES, b"", SITES).message())["fault"]) == -1
    with pytest.raises(FederationError, match="its mixture of this round already"):
        chest.handle("start/mix", 1, Attempt("second", SITES, b"", SITES).message())


def attempts_begun(saved: Any, name: str, mixed: int = 0) -> Any:
    """The state of a site that has begun an attempt."""
    from dataclasses import replace

    return replace(saved, attempt=name, mixed=mixed)


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
            "in order of names",
        ),
        ({}, "does not describe an attempt"),
    ],
)
def test_a_site_refuses_attempts_that_would_expose_it(
    introduced: Sites, secure_job: Job, message: Tensors, sentence: str
) -> None:
    """Too few sites, a site that is not pinned, nonsense: refused before anything is shared."""
    configs = introduced(*SITES)
    engine = LocalEngine(configs, secure_job(), "job")
    engine.call("start", 1, {"chest": {}}, lambda site: None)
    with pytest.raises(FederationError, match=sentence):
        engine.call("start/mix", 1, {"chest": message}, lambda site: None)
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
    with pytest.raises(JobRefused, match=Reason.SECAGG):
        SiteRuntime(strict, job.model_copy(update={"secagg": False}), "clear").handle("start", 1, {})
