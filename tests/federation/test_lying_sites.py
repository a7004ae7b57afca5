"""Sites that send what they like past their own gate: what the server and the other sites make of it."""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import Engine
from lies import LIES, MARKER
from untrained import FIVE, THREE, Averaged, AveragedAtSites, Make, Mixed, assert_alike, given

from audits import Event, Kind, Outcome, Tensors, read
from audits.exchange import clip_to_norm, joint_norm
from medfedvqa.core import create, method_names
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.secure_site import SecureSite
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.server_receipts import ServerReceipts
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.models import shape_of
from privacy import mean
from privacy.secagg.channel import SecureLink, _InProcessEnd
from privacy.secagg.layout import summand

Change = Callable[[Tensors], Tensors]
LIAR = "chest"


def lying(configs: Mapping[str, SiteConfig], job: JobSpec, liar: str, change: Change, job_id: str = "job") -> Engine:
    """What one site answers is changed on its way, as if it had no gate."""
    engine = Engine(configs, job, job_id)
    engine.bend = lambda task, site, answer: change(answer) if site == liar and task != "evaluate" else answer
    return engine


def puts(**changes: Any) -> Change:
    return lambda tensors: {**tensors, **changes}


CASES = [(Averaged, name) for name in LIES if name.startswith("weight")]
CASES += [(Mixed, name) for name in LIES if (Averaged, name) not in CASES]


@pytest.mark.parametrize(("method", "name"), CASES)
def test_an_answer_that_is_not_declared_stops_the_job_before_anything_is_computed(
    job_on_shares: Make, tmp_path: Path, method: type[Mixed], name: str
) -> None:
    """The server names the site and the fixed reason, no other site is sent anything, and the receipt says refused."""
    configs, job = job_on_shares(method, THREE, rounds=2, secagg=False)
    reason = LIES[name].reason.format(name=LIES[name].named(method.holding("any", 1)))
    notary = ServerReceipts(job.exchange(), "job", THREE, tmp_path / "keys", tmp_path / "out")
    engine = lying(configs, job, LIAR, LIES[name].told)
    with pytest.raises(FederationError) as caught:
        serve_job(job, THREE, engine.call, tmp_path / "out", "local", receipts=notary)
    notary.close()
    sentence = f"round 1: site '{LIAR}' sent a message that the job does not declare: {reason}"
    assert str(caught.value) == sentence
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["status"] == "failed" and results["failure"] == sentence
    assert {task for task, _ in engine.passed} == {"start"}
    receipts = [entry for entry in read(tmp_path / "out" / "receipts") if entry.event is Event.RECEIVE]
    assert [(entry.outcome, entry.reason) for entry in receipts if entry.peer == LIAR] == [(Outcome.REFUSED, reason)]
    assert MARKER not in (tmp_path / "out" / "receipts" / "log.jsonl").read_text() + json.dumps(results)


def test_every_figure_that_a_method_uploads_has_bounds() -> None:
    """Row counts weigh means, accuracies weigh mixtures, unit vectors weigh ensembles: each declaration says its
    range."""
    unbounded = set()
    for name in method_names():
        options = {"aggregate": "none"} if name in ("unicon", "split_learning") else {}
        for task in create(name, options).exchange(shape_of("medclip2-slake")).tasks:
            figures = [spec for spec in task.up if spec.kind in (Kind.STATISTIC, Kind.REPRESENTATIONS)]
            unbounded |= {(name, spec.name) for spec in figures if spec.bounds is None}
    assert not unbounded


@pytest.mark.parametrize("rule", ["trimmed", "median"])
@pytest.mark.parametrize("value", [1e30, -3.4e38])
def test_a_robust_rule_keeps_what_sites_are_sent_within_the_honest_range(
    job_on_shares: Make, tmp_path: Path, rule: str, value: float
) -> None:
    """One liar of five; its weight, the largest that it may claim, counts for nothing. The results name the rule."""
    configs, job = job_on_shares(Averaged, FIVE, secagg=False, gather=rule)
    lie = puts(**{"prompt.x": np.full((2, 2, 4), value, "float32"), "rows": np.array(10**6)})
    results = serve_job(job, FIVE, lying(configs, job, "b", lie).call, tmp_path, "local")
    honest = np.stack([Averaged.holding(site, 1)["prompt.x"] for site in "acde"])
    for config in configs.values():
        found = given(config, 1)["prompt.x"]
        assert (honest.min(axis=0) <= found).all() and (found <= honest.max(axis=0)).all()
    assert any(f"'{rule}'" in note for note in results["notes"])


def test_a_plain_mean_is_a_liars(job_on_shares: Make, tmp_path: Path) -> None:
    """The control, and what remains without a rule: declared values of any size."""
    configs, job = job_on_shares(Averaged, FIVE, secagg=False)
    lie = puts(**{"prompt.x": np.full((2, 2, 4), 1e30, "float32")})
    serve_job(job, FIVE, lying(configs, job, "b", lie).call, tmp_path, "local")
    assert given(configs["a"], 1)["prompt.x"].min() > 1e28


@pytest.mark.parametrize(("method", "secagg"), [(Averaged, False), (Averaged, True), (Mixed, True)])
def test_honest_sites_scale_their_uploads_down_to_the_jobs_norm(
    job_on_shares: Make, tmp_path: Path, method: type[Mixed], secagg: bool
) -> None:
    """In clear and on shares; what is no parameter stays as it is."""
    configs, job = job_on_shares(method, FIVE, secagg=secagg, most_norm=1.0)
    engine = Engine(configs, job)
    results = serve_job(job, FIVE, engine.call, tmp_path, "local")
    assert results["status"] == "finished" and any("at most 1.0" in note for note in results["notes"])
    for entry in read(configs["a"].audit):
        assert entry.exchange in (None, job.exchange().digest())
    assert job.exchange().digest() != job.model_copy(update={"most_norm": None}).exchange().digest()
    if method is Averaged:
        held = {site: Averaged.holding(site, 1) for site in FIVE}
        weights = {site: float(tensors.pop("rows")) for site, tensors in held.items()}
        assert all(joint_norm(tensors) > 1 for tensors in held.values())
        plain = mean({site: clip_to_norm(tensors, 1.0) for site, tensors in held.items()}, weights)
        for config in configs.values():
            assert_alike(given(config, 1), plain)
    else:
        assert all(joint_norm(given(config, 1)) <= 1.01 for config in configs.values())


def test_the_server_stops_at_an_upload_that_is_too_long(job_on_shares: Make, tmp_path: Path) -> None:
    """A liar's gate may have let it pass."""
    configs, job = job_on_shares(Averaged, THREE, secagg=False, most_norm=10.0)
    lie = puts(**{"prompt.x": np.full((2, 2, 4), 3, "float32")})
    with pytest.raises(FederationError, match=f"site '{LIAR}' .* longer than the declared norm of 10"):
        serve_job(job, THREE, lying(configs, job, LIAR, lie).call, tmp_path, "local")


@pytest.mark.parametrize("method", [Averaged, AveragedAtSites])
@pytest.mark.parametrize(
    ("factor", "rows", "reason"),
    [
        (100.0, 4000.0, "the mean's norm is above the limit for an upload"),
        (1.0, 2.0**24, "do not add up to what the job allows"),
    ],
)
def test_a_mean_on_shares_that_no_honest_sites_could_have_is_not_used(
    job_on_shares: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: type[Averaged],
    factor: float,
    rows: float,
    reason: str,
) -> None:
    """Under masks nobody sees who put in too much; what all put in together gives it away, and the job stops."""
    honest = SecureSite.summand

    def lying(site: SecureSite, task: str, how: Any, reply: Tensors, sites: int) -> np.ndarray:
        if site.config.name != LIAR:
            return honest(site, task, how, reply, sites)
        layout = site.layout(task, how)
        return summand({name: factor * reply[name] for name, _ in layout.shapes}, rows, layout, sites)

    monkeypatch.setattr(SecureSite, "summand", lying)
    configs, job = job_on_shares(method, THREE, most_norm=10.0)
    with pytest.raises(FederationError, match=reason):
        serve_job(job, THREE, Engine(configs, job).call, tmp_path, "local")


class Inflated(Averaged):
    """A site whose own count of rows is wrong."""

    name = "inflated"

    @classmethod
    def holding(cls, site: str, round: int) -> Tensors:
        return super().holding(site, round) | ({"rows": np.array(10**7)} if site == LIAR else {})


@pytest.mark.parametrize("secagg", [False, True])
def test_a_sites_own_gate_stops_a_figure_outside_of_its_bounds(
    job_on_shares: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secagg: bool
) -> None:
    """In clear and before anything is put under masks, where nobody else could; the site's log says why."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 1.0)
    configs, job = job_on_shares(Inflated, THREE, secagg=secagg)
    engine = Engine(configs, job)
    with pytest.raises(FederationError, match=f"site '{LIAR}' stopped the job"):
        serve_job(job, THREE, engine.call, tmp_path, "local")
    entry = [entry for entry in read(configs[LIAR].audit) if entry.outcome is Outcome.REFUSED][-1]
    assert "tensor 'rows' holds values outside of its declared bounds 0 to 1e+06" in str(entry.reason)
    assert not any("mask_key" in tensors for _, tensors in engine.passed)


def test_a_garbled_report_in_an_attempt_counts_as_silence(job_on_shares: Make, tmp_path: Path) -> None:
    """A fault that is no rank, a count of bytes that is none: the site is left out, and the job is not ended by it."""
    configs, job = job_on_shares(Mixed, FIVE)
    for garbled in ({"fault": np.array([1, 2])}, {"fault": np.array(10**6)}, {"shared_bytes": np.array(-5)}):

        def lie(tensors: Tensors, garbled: Tensors = garbled) -> Tensors:
            return {**tensors, **garbled} if "fault" in tensors else tensors

        out = tmp_path / str(len(list(tmp_path.iterdir())))
        results = serve_job(job, FIVE, lying(configs, job, "b", lie, out.name).call, out, "local")
        assert results["status"] == "finished" and any("Site b broke off in round 1" in n for n in results["notes"])


SHARES, READY, OPENING = 1, 2, 3
"""The messages of a site to a member in a mean with CrypTen, after the one that confirms the keys."""
SEND, RECEIVE = SecureLink.send, _InProcessEnd.receive
BROKEN, BEGUN = "broke off", "stopped while the sum was being opened"
DIFFERENT, IMPOSSIBLE = "members opened different sums", "does not count each site once"


@dataclass
class LyingMember:
    """What site b sends to other members in round 2, and what all sites send to each other in that round."""

    lie: str
    step: int
    silent: bool = False
    """Whether it has said its last word. Others then wait for it no longer, however long they may."""
    passed: list[tuple[str, str, int, bytes]] = field(default_factory=list)
    """Attempt, sender, number of the message and its content, for all honest senders."""

    def send(self, link: SecureLink, message: bytes) -> None:
        session = link.session
        _, round, attempt = session._job.rsplit("/", 2)
        number = session._counts[session.me]
        if round == "2" and session.me != "b":
            self.passed.append((attempt, session.me, number, message))
        lies = number == self.step or (number > self.step and self.silent)
        if round != "2" or session.me != "b" or not lies:
            return SEND(link, message)
        self.silent = self.lie.startswith("silence")
        if self.lie == "silence to all but one" and session.peer == "a":
            SEND(link, message)
        elif self.lie == "a repeated message":
            sealed = session.seal(message)
            for _ in range(2):
                link.relay.send(session.peer, sealed)
        elif not self.silent:
            SEND(link, os.urandom(len(message) + (self.lie == "another length")))

    def receive(self, end: Any, sender: str, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        while sender == "b" and not self.silent and time.monotonic() < deadline:
            with suppress(TimeoutError):
                return RECEIVE(end, sender, 0.1)
        return RECEIVE(end, sender, 0.1 if self.silent and sender == "b" else timeout)

    def assert_nobody_is_exposed(self) -> None:
        """Shares are new in every attempt, so those of several tell no more than those of one; only one is opened."""
        shares = [message for _, _, number, message in self.passed if number == SHARES]
        assert len(set(shares)) == len(shares) >= 16
        opened = {attempt for attempt, _, number, _ in self.passed if number == OPENING}
        senders = {(sender, number) for attempt, sender, number, _ in self.passed if attempt in opened}
        assert len(opened) <= 1 and (not opened or {(site, SHARES) for site in "acde"} <= senders)


@pytest.mark.parametrize(
    ("lie", "step", "outcome"),
    [
        ("other values", SHARES, IMPOSSIBLE),
        ("other values", OPENING, DIFFERENT),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("silence", SHARES, BROKEN),
                ("silence", READY, BEGUN),
                ("silence to all but one", READY, BEGUN),
                ("silence", OPENING, ""),
                ("another length", READY, BEGUN),
                ("another length", OPENING, ""),
                ("a repeated message", SHARES, BEGUN),
                ("a repeated message", READY, ""),
                ("another length", SHARES, BROKEN),
            )
        ),
    ],
)
def test_a_member_that_lies_in_a_mean_with_crypten_gets_no_second_sum(
    job_on_shares: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str, step: int, outcome: str
) -> None:
    """While shares go out: the others repeat the round without it, under new shares. Once anybody may have opened:
    that one sum, or none; whoever keeps its part back learns it, which members may, and no other. Shares of other
    numbers give sums that no sites can have, and no mean."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 10.0)
    liar = LyingMember(lie, step)
    monkeypatch.setattr(SecureLink, "send", lambda link, message: liar.send(link, message))
    monkeypatch.setattr(_InProcessEnd, "receive", lambda end, sender, timeout: liar.receive(end, sender, timeout))
    configs, job = job_on_shares(Averaged, FIVE, rounds=2, secagg="crypten")
    results = serve_job(job, FIVE, Engine(configs, job).call, tmp_path, "local")
    liar.assert_nobody_is_exposed()
    assert results["status"] == "finished"
    lost = [note for note in results["notes"] if "Round 2 gave no mean, and the one before it stayed" in note]
    assert bool(lost) is (outcome in (BEGUN, DIFFERENT, IMPOSSIBLE)) and all(outcome in note for note in lost), results[
        "notes"
    ]
    if outcome == BROKEN:
        assert any("Site b broke off in round 2" in note for note in results["notes"])
    sites, round = (FIVE, 1) if lost else ("acde", 2) if outcome == BROKEN else (FIVE, 2)
    plain = next(iter(Averaged.plain(sites, round).values()))
    for site in "acde":
        assert_alike(given(configs[site], 2), plain)


def test_a_lying_report_in_a_mean_with_crypten_counts_as_silence(job_on_shares: Make, tmp_path: Path) -> None:
    """A fault that is no rank, bytes that are none, a sum of another shape: the site is left out, and the sum that the
    other members have opened is the mean."""
    for garbled in ({"prompt.x": np.zeros(3, "int64")}, {"shared_bytes": np.array(-5)}, {"rows": np.array(0.5)}):

        def lie(tensors: Tensors, garbled: Tensors = garbled) -> Tensors:
            return {**tensors, **garbled} if "shared_bytes" in tensors else tensors

        name = next(iter(garbled))
        configs, job = job_on_shares(Averaged, FIVE, secagg="crypten")
        results = serve_job(job, FIVE, lying(configs, job, "b", lie, name).call, tmp_path / name, "local")
        assert results["status"] == "finished" and any("Site b broke off in round 1" in n for n in results["notes"])
        assert_alike(given(configs["a"], 1, name), next(iter(Averaged.plain(FIVE, 1).values())))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"method": "fedavg", "gather": "median", "secagg": True}, "on shares only a mean can be taken"),
        ({"method": "prompt_pfl", "gather": "trimmed"}, "averages no uploads with these options: leave out 'gather'"),
        ({"method": "creamfl", "gather": "median"}, "averages no uploads"),
        ({"method": "fedavg", "gather": "krum"}, "'gather'"),
        ({"method": "fedavg", "most_norm": 0}, "'most_norm'"),
        ({"method": "fedavg", "most_norm": float("inf")}, "'most_norm'"),
    ],
)
def test_a_job_that_cannot_be_gathered_so_is_refused_in_one_sentence(fields: dict[str, Any], reason: str) -> None:
    """Before it is sent to anybody."""
    with pytest.raises(ConfigError, match=reason):
        JobSpec.from_dict(fields)


def test_a_norm_for_uploads_without_parameters_is_refused() -> None:
    """It would bound nothing."""
    with pytest.raises(ConfigError, match="uploads no parameters: leave out 'most_norm'"):
        JobSpec.from_dict({"method": "creamfl", "most_norm": 5.0}).exchange()


def test_a_robust_rule_needs_three_sites_that_train() -> None:
    """Sites that only test do not count."""
    assert JobSpec.from_dict({"method": "fedavg"}).least_sites == 1
    assert JobSpec.from_dict({"method": "fedavg", "gather": "median"}).least_sites == 3
    unseen = {"options": {"unseen": ["knee"]}, "gather": "trimmed"}
    assert JobSpec.from_dict({"method": "fedavg", **unseen}).least_sites == 4
