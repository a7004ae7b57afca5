"""Sites that are killed or halted at every step of an aggregation on shares, as real processes, without FLARE."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fate import Fate
from in_process import Job, Sites
from processes import Nursery, ProcessEngine
from untrained import METHODS, Averaged, AveragedAtSites, Mixed, assert_alike, assert_near, given

from audits import Exchange, Kind, Outcome, TaskSpec, TensorSpec, read, verify
from medfedvqa.core import MixOnShares, Tensors, registry
from medfedvqa.errors import FederationError
from medfedvqa.federation import serve
from medfedvqa.federation.aggregation_attempt import Attempt, Opening
from medfedvqa.federation.hub import Reply, TaskCall
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.quorum import MembersRule
from medfedvqa.federation.secure_hub import SecureHub
from medfedvqa.federation.site_config import SiteConfig
from privacy import Secagg
from privacy.secagg.committee import Nonce
from privacy.secagg.ring import FixedPoint

SITES = ("a", "b", "c", "d")
ROUNDS = 2
MESSAGE_TIMEOUT = 3.0  # seconds; many processes share few cores
AT_ONCE = 12

MIX_MESSAGES = 14 * 6
"""That one of four sites sends and receives: keys, confirmations, inputs, 10 exchanges, mixtures."""
FIRST_RESULT = MIX_MESSAGES - 6
"""Before it, nobody has a mixture; who died later has sent shares of so many."""
MEAN_MESSAGES = 3 * 6
"""Keys, confirmations, shares of the masks' keys."""

SUM_MESSAGES = 5 * 6
"""Keys, confirmations, shares, that all have theirs, shares of the sum."""
READY, LAST_SHARE = 3 * 6, 4 * 6
"""Once a member knows that all are ready, it opens; once one has the dead one's share of the sum, it has the sum."""

ONE_OF_EACH = (Mixed, AveragedAtSites)
"""Both means exchange the same; the one for sites only goes on at the sites."""


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("nursery"), tiny_backbone) as nursery:
        yield nursery


@dataclass(frozen=True)
class Run:
    """A job that is over."""

    method: type[Mixed]
    results: dict[str, Any]
    engine: ProcessEngine
    configs: Mapping[str, SiteConfig]

    def attempts(self, round: int) -> list[Attempt]:
        """Those in which sites shared something, in order: not those that ended while tuples were dealt."""
        task = "start/" if round == 1 else "train/"
        tasks = {f"{task}mix", f"{task}mean"}
        attempts = [Attempt.read(m) for asked, _, m in self.engine.said if asked in tasks and "attempt" in m]
        return list({attempt.name: attempt for attempt in attempts}.values())

    def uploaded(self, round: int) -> tuple[str, ...]:
        """Whose uploads are in the mean."""
        task = "start/unmask" if round == 1 else "train/unmask"
        (sites,) = {Opening.read(message).uploaded for asked, _, message in self.engine.said if asked == task}
        return sites

    def log(self, site: str, direction: str, round: int) -> list[str]:
        """The names of the attempts that a site's log tells, which holds."""
        assert verify(self.configs[site].audit).ok
        passed = {"in": Outcome.ACCEPTED, "out": Outcome.SENT}[direction]
        sought = (round, direction, "sites", passed)
        entries = read(self.configs[site].audit)
        told = [str(e.reason) for e in entries if (e.round, e.direction, e.peer, e.outcome) == sought]
        return [reason.partition("attempt ")[2].split()[0] for reason in told]


RunJob = Callable[..., Run]


@pytest.fixture
def run(nursery: Nursery, introduced: Sites, quick_job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunJob:
    """Runs a method's job in which sites meet fates."""
    for method in METHODS:
        monkeypatch.setitem(registry._METHODS, method.name, method)
    monkeypatch.setattr("medfedvqa.federation.aggregation_attempt.MESSAGE_TIMEOUT", MESSAGE_TIMEOUT)
    common = introduced(*SITES, organ="chest", methods=[method.name for method in METHODS], require_secagg=True)
    numbers = itertools.count()

    def ran(
        method: type[Mixed],
        fates: Mapping[str, Fate],
        watch: Callable[..., None] = lambda *_: None,
        secagg: Secagg = True,
    ) -> Run:
        out = tmp_path / str(next(numbers))
        files = {site: {name: out / site / name for name in ("state", "audit", "ledger")} for site in SITES}
        configs = {site: config.model_copy(update=files[site]) for site, config in common.items()}
        for site in SITES:
            (out / site).mkdir(parents=True)
        job = JobSpec.from_dict(quick_job(rounds=ROUNDS).to_dict() | {"method": method.name, "secagg": secagg})
        with ProcessEngine(nursery, configs, job, fates, MESSAGE_TIMEOUT) as engine:
            watch(engine)
            results = serve.serve_job(job, SITES, engine.call, out, "local")
            engine.close()
        return Run(method, results, engine, configs)

    return ran


def assert_finished_without(run: Run, victim: str, moment: Any) -> None:
    """The claims on a job in which one site died, or halted, in round 1."""
    assert run.results["status"] == "finished"
    assert [note for note in run.results["notes"] if f"Site {victim} broke off in round" in note]
    assert len([note for note in run.results["notes"] if "broke off" in note]) == 1, run.results["notes"]
    rest = [site for site in SITES if site != victim]
    assert run.attempts(2)[-1].sites == tuple(rest)
    for site in rest:
        for round in range(1, ROUNDS + 1):
            named = [attempt.name for attempt in run.attempts(round) if site in attempt.sites]
            assert run.log(site, "out", round) == named, site
    assert_nothing_shown(run)
    if run.method is Mixed:
        assert_mixtures(run, rest, moment)
    else:
        assert_means(run, rest)


def assert_harmless(run: Run, victim: str, moment: Any) -> None:
    """The same of a site that is there again at the end; what it shared, its log says."""
    assert_finished_without(run, victim, moment)
    assert run.log(victim, "out", 1) == [run.attempts(1)[0].name] and not run.log(victim, "out", 2)
    assert victim in run.engine.counts


def assert_mixtures(run: Run, rest: list[str], moment: Any) -> None:
    """Each survivor has the plain mixture over those of the last attempt, if it got all shares of it, and no other."""
    for round in range(1, ROUNDS + 1):
        last = run.attempts(round)[-1]
        got = [site for site in rest if run.log(site, "in", round)]
        died_in_it = isinstance(moment, int) and set(last.sites) == set(SITES)
        assert len(got) == (min(moment - FIRST_RESULT, 3) if died_in_it else 3)
        assert all(run.log(site, "in", round) == [last.name] for site in got)
        plain = run.method.plain(last.sites, round)
        for site in rest:
            assert_near(given(run.configs[site], round), plain[site] if site in got else {})


def assert_means(run: Run, rest: list[str]) -> None:
    """All that survive got the plain mean over those whose upload is in it."""
    for round in range(1, ROUNDS + 1):
        plain = run.method.plain(run.uploaded(round), round)
        for site in rest:
            assert_alike(given(run.configs[site], round), plain[site])


def assert_nothing_shown(run: Run) -> None:
    """No bytes of any site's prompt, in clear or in fixed point, in all that the server saw."""
    seen = b"|".join(run.engine.passed)
    for site in SITES:
        for round in range(1, ROUNDS + 1):
            for marker in markers(run.method.holding(site, round), run.method.weight):
                assert marker not in seen


def markers(held: Tensors, weight: str) -> Iterator[bytes]:
    """A prompt as it would be seen if it were not masked."""
    prompt = held["prompt.x"].astype(np.float64).reshape(-1)
    yield prompt.astype(np.float32).tobytes()
    yield prompt.tobytes()
    yield FixedPoint(24).encode(prompt * float(held[weight])).tobytes()
    for bits in range(8, 32):
        yield FixedPoint(bits).encode(prompt / np.linalg.norm(prompt)).tobytes()


def steps(method: type[Mixed]) -> list[tuple[str, Any]]:
    """Task and moment of all steps of the first round."""
    task, count = ("start/mix", MIX_MESSAGES) if method is Mixed else ("start/mean", MEAN_MESSAGES)
    between = [(task, moment) for moment in (*range(count), "saved", "answered")]
    other = "start/coin" if method is Mixed else "start/unmask"
    last = [(other, moment) for moment in ("saved", "answered")]
    return [*(("start", moment) for moment in ("working", "saved", "answered")), *between, *last]


def failed(check: Callable[..., None], cases: Collection[tuple[Any, ...]]) -> list[str]:
    """The cases that did not go as promised, and why."""

    def one(case: tuple[Any, ...]) -> str | None:
        try:
            check(*case)
        except Exception as error:
            return f"{case}: {type(error).__name__}: {str(error)[:300]}"
        return None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [sentence for sentence in pool.map(one, cases) if sentence]


def killed(run: RunJob, method: type[Mixed], site: str, task: str, moment: Any) -> None:
    """A site that is killed in a task of the first round is left out."""
    assert_finished_without(run(method, {site: Fate(f"{task} 1", moment)}), site, moment)


@pytest.mark.parametrize(
    "method",
    [pytest.param(each, marks=pytest.mark.slow if each is Averaged else pytest.mark.release) for each in METHODS],
)
def test_a_site_that_is_killed_at_any_step_is_left_out_and_the_job_finishes_with_the_rest(
    run: RunJob, method: type[Mixed]
) -> None:
    """SIGKILL of one site before every message of an attempt, and around every task."""
    problems = failed(partial(killed, run, method), [("b", *step) for step in steps(method)])
    assert not problems, "\n".join(problems)


@pytest.mark.release
@pytest.mark.parametrize("method", ONE_OF_EACH)
def test_it_does_not_matter_which_site_is_killed(run: RunJob, method: type[Mixed]) -> None:
    """The first, and those that others wait for last: after some of its messages of each exchange, and at the end."""
    every = 6 if method is Mixed else 2
    cases = [(site, *step) for first, site in enumerate("acd") for step in steps(method)[4 + first :: every]]
    problems = failed(partial(killed, run, method), cases)
    assert not problems, "\n".join(problems)


@pytest.mark.release
@pytest.mark.parametrize("method", ONE_OF_EACH)
def test_a_site_that_halts_is_left_out_and_does_no_harm_when_it_goes_on(run: RunJob, method: type[Mixed]) -> None:
    """SIGSTOP at some steps of an attempt, SIGCONT during the next round: its late messages and answers are dropped,
    and what it shared, its log says."""
    for moment in ("saved", 1, MIX_MESSAGES // 2 if method is Mixed else MEAN_MESSAGES // 2):
        task = steps(method)[3][0]
        ran = run(method, {"c": Fate(f"{task} 1", moment, signal.SIGSTOP)}, goes_on)
        assert_harmless(ran, "c", moment)


def mean_with_crypten(run: RunJob, moment: int | str) -> None:
    """The claims on a job with one site that dies in the second round, before a message of the sum or around a task."""
    task = "train" if moment == "working" else "train/mean"
    ran = run(Averaged, {"b": Fate(f"{task} 2", moment)}, secagg="crypten")
    assert ran.results["status"] == "finished" and len(ran.attempts(2)) <= 2
    rest = [site for site in SITES if site != "b"]
    lost = isinstance(moment, int) and READY < moment <= LAST_SHARE
    assert lost is any("Round 2 gave no mean" in note for note in ran.results["notes"])
    repeated = moment == "working" or (isinstance(moment, int) and moment <= READY)
    plain = Averaged.plain(SITES, 1) if lost else Averaged.plain(rest if repeated else SITES, 2)
    for site in rest:
        assert_alike(given(ran.configs[site], 2), plain["a"])
        assert verify(ran.configs[site].audit).ok
    assert_nothing_shown(ran)


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(("working", 0, 12, 14, READY, READY + 1, LAST_SHARE, 25, "answered"), marks=pytest.mark.slow),
        pytest.param((*range(SUM_MESSAGES), "saved", "answered"), marks=pytest.mark.release),
    ],
    ids=["some", "all"],
)
def test_a_site_is_killed_in_a_mean_with_crypten(run: RunJob, moments: tuple[int | str, ...]) -> None:
    """Before all members are ready the round is repeated without it. If a member has its share of the sum, the sum is
    used. In between the mean is lost, and the one of the round before stays: no second sum of the round is opened."""
    problems = failed(partial(mean_with_crypten, run), [(moment,) for moment in moments])
    assert not problems, "\n".join(problems)


def goes_on(engine: ProcessEngine) -> None:
    """The halted site, once the next round has begun."""
    when(lambda: any(task == "train" for task, *_ in engine.said), lambda: os.kill(engine.pids["c"], signal.SIGCONT))


@pytest.mark.release
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("moment", [1, 9])
def test_a_site_that_comes_back_in_the_attempt_takes_no_further_part(
    run: RunJob, method: type[Mixed], moment: int
) -> None:
    """Asked again for the attempt in which it was killed, it says so: nothing of it serves twice, and the others go on
    without it."""
    ran = run(method, {"c": Fate(f"{steps(method)[3][0]} 1", moment)}, comes_back)
    assert_harmless(ran, "c", moment)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["working", "saved"])
def test_a_site_that_comes_back_before_the_attempt_is_one_of_all(run: RunJob, moment: str) -> None:
    """Killed while it trained, or before it said that it had: it does so again, and nobody is left out."""
    ran = run(Averaged, {"c": Fate("start 1", moment)}, comes_back)
    assert ran.results["status"] == "finished" and not [n for n in ran.results["notes"] if "broke off" in n]
    assert ran.uploaded(1) == ran.uploaded(2) == SITES
    assert_means(ran, list(SITES))


def comes_back(engine: ProcessEngine) -> None:
    """The killed site, as soon as it is dead."""
    when(lambda: engine.dead("c"), lambda: engine.start("c"))


def when(condition: Callable[[], bool], act: Callable[[], None]) -> None:
    """Acts as soon as the condition holds, on a thread of its own."""

    def wait() -> None:
        while not condition():
            time.sleep(0.02)
        act()

    threading.Thread(target=wait, daemon=True).start()


# The hub alone, told in an order that makes it hard.

SECRET = bytes(range(32))
"""Every member's seed and coin."""


def offer(site: str) -> Tensors:
    """What goes with an answer."""
    commitment = Nonce("toss of coins", site, SECRET).commitment
    return {"tuple_seed": np.frombuffer(SECRET, "<i8"), "coin_commitment": np.frombuffer(commitment, "<i8")}


DEALING: dict[str, Callable[[str], Tensors]] = {
    "start": offer,
    "start/seed": offer,
    "start/coin": lambda site: {"coin": np.frombuffer(SECRET, "<i8")},
}
RULE = MembersRule(8)
"""All of the sites compute."""


def hub_told(answers: list[tuple[str, str | None]]) -> SecureHub:
    """After one attempt at a mixture: who answers, in order, and whom it accuses."""

    def answer(call: TaskCall) -> dict[str, Reply]:
        if call.task != "start/mix":
            return {site: Reply(DEALING[call.task](site), 0.0) for site in call.messages}
        replies: dict[str, Reply] = {}
        for site, accused in answers:
            if call.messages.keys() <= {*replies, *call.excused(replies)}:
                break
            fault = SITES.index(accused) if accused else -1
            replies[site] = Reply({"fault": np.array(fault), "shared_bytes": np.array(0)}, 0.0)
        return replies

    x = TensorSpec("x", (2,), "float32", Kind.PARAMETERS, "A vector.")
    start, how = TaskSpec("start", (x,), ()), MixOnShares()
    exchange = Exchange("mixed", (TaskSpec("start", how.beside, ()), *how.tasks(start)))
    hub = SecureHub(SITES, answer, exchange, on_shares={"start": how}, shared={"start": start}, least=3, rule=RULE)
    hub._dealer.offered(hub.collect("start"))
    hub._mixed("start")
    return hub


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([("a", "b"), ("c", "d"), ("b", "d")], id="accused while it waits for the dead one"),
        pytest.param([("a", "b"), ("b", "d"), ("d", "d"), ("c", "d")], id="the dead one has come back"),
        pytest.param([("a", "b"), ("b", "c"), ("c", "d"), ("d", None)], id="the accusations lead on and on"),
        pytest.param([("a", None), ("b", None), ("c", None)], id="dead after its last message"),
    ],
)
def test_the_hub_leaves_out_the_site_that_broke_off_and_no_other(answers: list[tuple[str, str | None]]) -> None:
    """Whoever waits for a dead site is late itself, and accused of it."""
    assert hub_told(answers).history.left_out == {"d": 0}


def test_once_the_dead_one_says_so_nobody_is_left_out_for_being_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that waited for it are accused as well, and may answer as late as they like."""
    monkeypatch.setattr("medfedvqa.federation.aggregation_attempt.MESSAGE_TIMEOUT", 0.0)
    assert hub_told([("a", "b"), ("c", "b"), ("d", "d"), ("b", "d")]).history.left_out == {"d": 0}


def test_an_attempt_that_nobody_answers_ends_the_job() -> None:
    """All sites are dead: there is nobody to repeat it with."""
    hub = hub_told([])
    with pytest.raises(FederationError, match="0 sites are left"):
        hub._mixed("start")
