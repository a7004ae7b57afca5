"""A server that dies in a job on shares, and the one that continues from its journal. Sites are in this process."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import Engine
from untrained import Averaged, AveragedAtSites, Lasting, Mixed, assert_alike, assert_near, given

from audits import Entry, Event, Outcome, read, verify
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.aggregation_attempt import Opening
from medfedvqa.federation.hub import Reply, TaskCall
from medfedvqa.federation.journal import Journal
from medfedvqa.federation.serve import serve_job

Make = Callable[..., Any]
SITES = ("abdomen", "chest", "head")
ROUNDS = 2
MEAN = ("start", "start/mean", "start/unmask", "train", "train/mean", "train/unmask", "evaluate")
LASTING = ("start", "start/mean", "start/unmask", "train", "evaluate")
MIX = ("start", "start/toss", "start/mix", "train", "train/toss", "train/mix", "evaluate")


class Dead(BaseException):
    """The end of the server's process."""


def dying(engine: Engine, step: int, reached: int) -> Callable[[TaskCall], dict[str, Reply]]:
    """Carries calls until that of the given number, from 0, which only the first `reached` sites get."""
    calls = 0

    def call(asked: TaskCall) -> dict[str, Reply]:
        nonlocal calls
        calls += 1
        if calls <= step:
            return engine.call(asked)
        engine.dead = set(sorted(SITES)[reached:])
        if reached:
            engine.call(asked)
        engine.dead = set()
        raise Dead

    return call


def stage(entry: Entry) -> str | None:
    """How far the computation is to which an entry belongs."""
    return entry.sharing["stage"] if entry.sharing and entry.outcome is Outcome.SENT else None


def opened_sums(engine: Engine) -> dict[str, set[tuple[str, ...]]]:
    """By attempt, the sets of sites whose sums were asked for."""
    sums: dict[str, set[tuple[str, ...]]] = {}
    for _, message in engine.passed:
        if "uploaded" in message:
            opening = Opening.read(message)
            sums.setdefault(opening.attempt, set()).add(opening.uploaded)
    return sums


def cases() -> Iterator[Any]:
    """Every step of all plans, reached by no, some or all sites. The aggregation of round 1 stands for all."""
    for method, plan in ((AveragedAtSites, MEAN), (Lasting, LASTING), (Mixed, MIX)):
        for step, reached in itertools.product(range(len(plan)), (0, 2, 3)):
            task = "train" if method is Lasting else "start/mean"
            usual = method is not Mixed and (plan[step], reached) == (task, 3)
            yield pytest.param(method, step, reached, marks=() if usual else pytest.mark.slow)


@pytest.mark.parametrize(("method", "step", "reached"), list(cases()))
def test_a_server_may_die_at_every_step(
    job_on_shares: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: type[Mixed], step: int, reached: int
) -> None:
    """Whether none, some or all sites got what it asked for: the next one continues with all sites, each round has its
    aggregate over all of them, no site trains twice or opens two sums of a round, and every log holds."""
    configs, job = job_on_shares(method, SITES, rounds=ROUNDS)
    engine, journal = Engine(configs, job), tmp_path / "journal"
    with monkeypatch.context() as patch, pytest.raises(Dead):
        patch.setattr(attempts, "MESSAGE_TIMEOUT", 1.0)  # after the death nobody is silent, only slow on a busy machine
        serve_job(job, SITES, dying(engine, step, reached), tmp_path, "local", journal=Journal(journal))
    results = serve_job(job, SITES, engine.call, tmp_path, "local", journal=Journal(journal))
    assert results["status"] == "finished" and not journal.exists()
    assert results["missing_at_end"] == [] and not any(record["missing"] for record in results["rounds"])
    for site, config in configs.items():
        for round in range(1, ROUNDS + 1):
            plain = method.plain(SITES, round)[site]
            (assert_near if method is Mixed else assert_alike)(given(config, round), plain)
        engine.local.close()
        assert verify(config.audit).ok
        entries = list(read(config.audit))
        sums = [(entry.round, *entry.sharing["sites"]) for entry in entries if stage(entry) == "opened"]
        assert len(set(sums)) <= ROUNDS and not [entry for entry in entries if entry.event is Event.REFUSAL]
    assert all(sums == {SITES} for sums in opened_sums(engine).values())


def test_a_server_may_die_again_and_again(job_on_shares: Make, tmp_path: Path) -> None:
    """Each process dies in the first call that it makes itself, or in the one after: an attempt that a server began
    counts, and a round has eight."""
    configs, job = job_on_shares(Averaged, SITES, rounds=ROUNDS)
    engine, deaths = Engine(configs, job), 0
    while deaths < 12:
        try:
            serve_job(job, SITES, dying(engine, 1 + deaths % 2, 3), tmp_path, "local", journal=Journal(tmp_path / "j"))
            break
        except Dead:
            deaths += 1
    results = json.loads((tmp_path / "results.json").read_text())
    assert deaths > 4 and results["status"] == "finished" and len(results["rounds"]) == ROUNDS
    for config in configs.values():
        assert_alike(given(config, ROUNDS), Averaged.plain(SITES, ROUNDS)["head"])
