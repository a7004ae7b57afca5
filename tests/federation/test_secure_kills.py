"""Sites that are killed or halted at every step of an aggregation on shares, as real processes, without FLARE."""

import itertools
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import METHODS, Averaged, AveragedAtSites, Fate, Mixed, Nursery, ProcessEngine, holding

from audits import Outcome, read, verify
from medfedvqa.federation import serve
from medfedvqa.federation.attempt import Attempt, Opening
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from medfedvqa.federation.state import Saved, StateFile
from medfedvqa.methods import Tensors, base
from privacy import Reliability, mean, mix
from privacy.secagg.ring import FixedPoint

SITES = ("a", "b", "c", "d")
ROUNDS = 2
MESSAGE_TIMEOUT = 4.0  # seconds; many processes share few cores
AT_ONCE = 8

MIX_MESSAGES = 14 * 6
"""That one of four sites sends and receives: keys, confirmations, inputs, 10 exchanges, mixtures."""
MEAN_MESSAGES = 3 * 6
"""Keys, confirmations, shares of the masks' keys."""

Sites = Callable[..., dict[str, SiteConfig]]
Job = Callable[..., JobSpec]


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory, random_backbone: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("nursery"), random_backbone) as nursery:
        yield nursery


@dataclass(frozen=True)
class Run:
    """A job that is over."""

    method: type[Mixed]
    results: dict[str, Any]
    engine: ProcessEngine
    configs: Mapping[str, SiteConfig]

    def attempts(self, round: int) -> list[Attempt]:
        """In order."""
        task = "start/" if round == 1 else "train/"
        said = [Attempt.read(m) for asked, _, m in self.engine.said if asked.startswith(task) and "attempt" in m]
        return list({attempt.name: attempt for attempt in said}.values())

    def uploaded(self, round: int) -> tuple[str, ...]:
        """Whose uploads are in the mean."""
        task = "start/unmask" if round == 1 else "train/unmask"
        (sites,) = {Opening.read(message).uploaded for asked, _, message in self.engine.said if asked == task}
        return sites

    def saved(self, site: str) -> Saved:
        saved = StateFile(self.configs[site].state, "job").load()
        assert saved is not None
        return saved

    def log(self, site: str, direction: str, round: int) -> list[str]:
        """The attempts that a site's log tells, which holds."""
        assert verify(self.configs[site].audit).ok
        passed = {"in": Outcome.ACCEPTED, "out": Outcome.SENT}[direction]
        entries = [e for e in read(self.configs[site].audit) if (e.direction, e.peer, e.outcome) == (direction, "sites", passed)]
        return [str(entry.reason) for entry in entries if entry.round == round]


RunJob = Callable[..., Run]


@pytest.fixture
def run(
    nursery: Nursery, introduced: Sites, quick_job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RunJob:
    """Runs a method's job in which sites meet fates."""
    for method in METHODS:
        monkeypatch.setitem(base._METHODS, method.name, method)
    monkeypatch.setattr(serve, "draw_plots", lambda *_: None)
    monkeypatch.setattr("medfedvqa.federation.attempt.MESSAGE_TIMEOUT", MESSAGE_TIMEOUT)
    common = introduced(*SITES, organ="chest", methods=[method.name for method in METHODS], require_secagg=True)
    numbers = itertools.count()

    def ran(method: type[Mixed], fates: Mapping[str, Fate], watch: Callable[..., None] = lambda *_: None) -> Run:
        out = tmp_path / str(next(numbers))
        files = {site: {name: out / site / name for name in ("state", "audit", "ledger")} for site in SITES}
        configs = {site: config.model_copy(update=files[site]) for site, config in common.items()}
        for site in SITES:
            (out / site).mkdir(parents=True)
        job = JobSpec.from_dict(quick_job(rounds=ROUNDS).to_dict() | {"method": method.name, "secagg": True})
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
            named = [str(attempt.sharing) for attempt in run.attempts(round) if site in attempt.sites]
            assert run.log(site, "out", round) == named, site
    assert_nothing_shown(run)
    if run.method is Mixed:
        assert_mixtures(run, rest, moment)
    else:
        assert_means(run, rest)


def assert_mixtures(run: Run, rest: list[str], moment: Any) -> None:
    """Each survivor has the plain mixture over those of the last attempt, of which it got all shares, and no other."""
    shares_sent = min(max(moment - (MIX_MESSAGES - 6), 0), 3) if isinstance(moment, int) else 0
    for round in range(1, ROUNDS + 1):
        last = run.attempts(round)[-1]
        got = [site for site in rest if run.log(site, "in", round)]
        assert len(got) == (shares_sent if "working" != moment and set(last.sites) == set(SITES) else 3) or moment in ("saved", "answered")
        for site in got:
            assert run.log(site, "in", round) == [str(last.sharing)]
        held = {site: holding(site, round, "accuracy") for site in last.sites}
        prompts = {site: {"prompt.x": tensors["prompt.x"]} for site, tensors in held.items()}
        plain = mix(prompts, {site: float(tensors["accuracy"]) for site, tensors in held.items()}, Reliability())
        for site in rest:
            found = run.saved(site).state.get(str(round))
            if site not in got:
                assert found is None and round == 1
                continue
            expected = plain.shared[site]["prompt.x"]
            assert np.linalg.norm(found.numpy() - expected) <= 1e-3 * np.linalg.norm(expected)


def assert_means(run: Run, rest: list[str]) -> None:
    """All that survive got the plain mean over those whose upload is in it."""
    for round in range(1, ROUNDS + 1):
        held = {site: holding(site, round, "rows") for site in run.uploaded(round)}
        assert set(rest) <= held.keys()
        plain = mean(held, {site: float(tensors.pop("rows")) for site, tensors in held.items()})["prompt.x"]
        for site in rest:
            assert np.allclose(run.saved(site).state[str(round)].numpy(), plain, rtol=1e-6, atol=2.0**-22)


def assert_nothing_shown(run: Run) -> None:
    """No bytes of any site's prompt, in clear or in fixed point, in all that the server saw."""
    seen = b"|".join(run.engine.passed)
    for site in SITES:
        for round in range(1, ROUNDS + 1):
            for marker in markers(holding(site, round, run.method.weight), run.method.weight):
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
    last = [] if method is Mixed else [("start/unmask", moment) for moment in ("saved", "answered")]
    return [*(("start", moment) for moment in ("working", "saved", "answered")), *between, *last]


def failed(run: RunJob, method: type[Mixed], cases: list[tuple[str, str, Any]]) -> list[str]:
    """The cases of a site, a task and a moment that did not go as promised, and why."""

    def one(case: tuple[str, str, Any]) -> str | None:
        site, task, moment = case
        try:
            assert_finished_without(run(method, {site: Fate(f"{task} 1", moment)}), site, moment)
        except Exception as error:
            return f"{case}: {type(error).__name__}: {str(error)[:300]}"
        except AssertionError as error:
            return f"{case}: {str(error)[:300]}"
        return None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [sentence for sentence in pool.map(one, cases) if sentence]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_site_that_is_killed_at_any_step_is_left_out_and_the_job_finishes_with_the_rest(
    run: RunJob, method: type[Mixed]
) -> None:
    """SIGKILL before every message of an attempt, and around every task."""
    cases = [("b", *step) for step in steps(method)]
    problems = failed(run, method, cases)
    assert not problems, "\n".join(problems)
