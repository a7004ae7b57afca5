"""A run whose process dies, and the process that continues it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fate import killed
from fixed_answers import EXCHANGE, SITES, answer, vectors
from in_process import Job
from tiny_clip import TINY
from typer.testing import CliRunner

from audits import VerdictState, examine, find_logs
from audits.examination import sites_of
from medfedvqa.cli import app
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.federation.hub import Reply, ServerHub, TaskAnswer, TaskCall
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.journal import JOURNAL, Journal, RecordedCall
from medfedvqa.federation.launch import LAUNCH, plan, resume, run
from medfedvqa.federation.quorum import RECONNECT, QuorumRule
from privacy import Reliability

RANDOM = "medclip@random"


class Dead(BaseException):
    """The end of a process, as far as one can have it in the process of the test."""


def dying_at(event: int) -> Callable[[TaskAnswer], None]:
    """Dies at the n-th event of progress."""
    seen = []

    def watch(answer: TaskAnswer) -> None:
        seen.append(answer)
        if len(seen) == event:
            raise Dead

    return watch


def figures(results: dict[str, Any]) -> dict[str, Any]:
    """Everything in the results that must not depend on how often the run died."""
    sites = {name: {**entry, "seconds": 0} for name, entry in results["sites"].items()}
    return {"sites": sites, "rounds": [{**record, "seconds": 0} for record in results["rounds"]]}


def undisturbed(job: JobSpec, backbone: Path, out: Path) -> dict[str, Any]:
    return run(plan(job, None, out, ("chest", "head"), 1, {job.backbone: backbone}), "local", lambda event: None)


def assert_logs_agree(out: Path) -> None:
    """Each site's log is whole, and the server's receipts and the other sites confirm it."""
    for name, (folder, against) in sites_of(find_logs(out), out).items():
        examined = examine(folder, name, against, network=False)
        assert all(verdict.state is VerdictState.SHOWN for _, verdict in examined.verdicts()), (name, examined)


def test_a_run_that_died_is_continued_and_ends_as_if_it_had_not(
    quick_job: Job, tiny_backbone: Path, tmp_path: Path, plots: None
) -> None:
    """It dies before round 2's last answer, and again in the evaluation. Figures are those of an undisturbed run, logs
    agree, and nothing of the sites' uploads stays at the server."""
    job, out = quick_job(), tmp_path / "run"
    launch = plan(job, None, out, ("chest", "head"), 1, {job.backbone: tiny_backbone})
    with pytest.raises(Dead):
        run(launch, "local", dying_at(6))
    assert [path.name for path in sorted((out / JOURNAL).iterdir())] == ["00000000.npz"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in ((out / JOURNAL), *(out / JOURNAL).iterdir()))
    with pytest.raises(Dead):
        resume(out, dying_at(5))
    events: list[TaskAnswer] = []
    results = resume(out, events.append)
    assert {event.task for event in events} == {"evaluate"}
    assert figures(results) == figures(undisturbed(job, tiny_backbone, tmp_path / "other"))
    assert not (out / JOURNAL).exists() and (out / "plots").is_dir()
    assert results["rounds"][0]["seconds"] > 0
    assert_logs_agree(out)
    with pytest.raises(ConfigError, match="has finished: its results are in"):
        resume(out, events.append)


def test_a_server_that_keeps_a_model_for_each_site_continues_with_all_of_them(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    """Models, optimisers and running gradients of a stepwise job that mixes by reliability: after a death in its third
    exchange the weights of all later ones are the undisturbed run's to the bit, and differ from equal ones."""
    options = {"schedule": "stepwise", "rounds": 10, "tuning": "classifier", "learning_rate": 0.03, "units": 16}
    facts = {"method": "fedavg", "options": options | {"hidden": 16, "mixing": "reliability"}, "backbone": TINY}
    job, out = JobSpec.from_dict(facts | {"data": "phantom"}), tmp_path / "run"
    launch = plan(job, None, out, ("chest", "head"), 1, {job.backbone: tiny_backbone})
    with pytest.raises(Dead):
        run(launch, "local", dying_at(9))
    results = resume(out, lambda event: None)
    assert figures(results) == figures(undisturbed(job, tiny_backbone, tmp_path / "other"))
    tables = [record["reliability"]["gradients"] for record in results["rounds"]]
    assert len({str(table) for table in tables}) > 3 and abs(tables[-1][0][1] - 0.5) > 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("private", "event"), [(False, 4), (True, 5)], ids=["clear", "dp"])
def test_a_run_that_is_killed_again_and_again_is_continued(
    quick_job: Job, random_backbone: Path, tmp_path: Path, private: bool, event: int
) -> None:
    """SIGKILL of each process as the second call that it makes itself is sent, or has its first answer. Also under
    differential privacy, where each task is charged once, since none died while it trained."""
    changes = {"dp": {"noise": 1.5, "count_noise": 10.0}} if private else {}
    job = JobSpec.from_dict(quick_job(answers="closed").to_dict() | {"backbone": RANDOM, **changes})
    out = tmp_path / "run"
    assert [killed(out, event, job, random_backbone) for _ in range(3)] == [True, True, False]
    results = json.loads((out / "results.json").read_text())
    other = undisturbed(job, random_backbone, tmp_path / "other")
    assert results["status"] == "finished"
    if private:  # the noise differs
        assert [entry["epsilon"] for entry in results["sites"].values()] == [
            entry["epsilon"] for entry in other["sites"].values()
        ]
    else:
        assert figures(results) == figures(other)
    assert_logs_agree(out)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["prompt_pfl", "fedavg"])
def test_a_run_on_shares_is_continued(quick_job: Job, tiny_backbone: Path, tmp_path: Path, method: str) -> None:
    """It dies while the sites aggregate round 1; they do it again, and all of them have part in the results."""
    options = quick_job().options if method == "prompt_pfl" else {"local_epochs": 1, "blocks": 1, "hidden": 8}
    job = quick_job().model_copy(update={"method": method, "options": {**options, "rounds": 2}, "secagg": True})
    launch = plan(job, None, tmp_path / "run", ("abdomen", "chest", "head"), 1, {job.backbone: tiny_backbone})
    with pytest.raises(Dead):
        run(launch, "local", dying_at(9 if method == "prompt_pfl" else 5))
    events: list[TaskAnswer] = []
    results = resume(launch.out, events.append)
    assert results["status"] == "finished" and results["secagg"] and len(results["rounds"]) == 2
    assert {event.task for event in events if event.round == 1} >= {"start"}  # all were heard again
    assert results["missing_at_end"] == [] and not (launch.out / JOURNAL).exists()
    assert_logs_agree(launch.out)


def test_the_command_continues_a_run(quick_job: Job, tiny_backbone: Path, tmp_path: Path) -> None:
    """`run --resume FOLDER` takes nothing else of the job; without a folder, `run` needs a method."""
    job, out = quick_job(rounds=1), tmp_path / "run"
    with pytest.raises(Dead):
        run(plan(job, None, out, ("chest", "head"), 1, {job.backbone: tiny_backbone}), "local", dying_at(2))
    ended = CliRunner().invoke(app, ["run", "--resume", str(out), "--json"], catch_exceptions=False)
    assert ended.exit_code == 0 and json.loads(ended.stdout)["status"] == "finished"
    with pytest.raises(ConfigError, match="leave them out"):
        CliRunner().invoke(app, ["run", "fedavg", "--resume", str(out)], catch_exceptions=False)
    without = CliRunner().invoke(app, ["run"])
    assert without.exit_code == 2 and "name a method" in without.output


@pytest.mark.parametrize("content", [None, "[", "{}", '{"format": 1}', '{"format": 2}'])
def test_a_folder_without_a_run_is_refused(tmp_path: Path, content: str | None) -> None:
    """Also what is damaged, or of a newer version."""
    if content is not None:
        (tmp_path / LAUNCH).write_text(content)
    with pytest.raises(ConfigError, match="newer version" if content == '{"format": 2}' else "holds no run"):
        resume(tmp_path, lambda event: None)


def test_a_run_of_another_engine_is_not_continued(quick_job: Job, tiny_backbone: Path, tmp_path: Path) -> None:
    """FLARE's processes keep what they need elsewhere: to continue in this process would train from the beginning."""
    job = quick_job()
    launch = plan(job, None, tmp_path / "run", ("chest", "head"), 1, {job.backbone: tiny_backbone})
    replace(launch, engine="simulator").write()
    with pytest.raises(ConfigError, match="only 'local'"):
        resume(launch.out, lambda event: None)


MESSAGES = {"a": {"x": np.float32([1, 2])}, "b": {}}
CALL = RecordedCall({"b": ({"y": np.int64(3)}, 0.5), "a": ({"y": np.int64(4), "z/w": np.float32([[1]])}, 1.5)}, 2.5)


def test_the_journal_returns_what_it_was_given(tmp_path: Path) -> None:
    """Answers in order of arrival, bit for bit, with their types and shapes; then there is nothing more."""
    Journal(tmp_path).record("train", 2, MESSAGES, CALL)
    journal = Journal(tmp_path)
    recalled = journal.recall("train", 2, MESSAGES)
    assert recalled is not None and recalled.seconds == 2.5 and list(recalled.answers) == ["b", "a"]
    for site, (tensors, seconds) in CALL.answers.items():
        assert recalled.answers[site][1] == seconds and recalled.answers[site][0].keys() == tensors.keys()
        for name, array in tensors.items():
            again = recalled.answers[site][0][name]
            assert (again.dtype, again.shape, again.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert not journal.recalls and journal.recall("train", 3, MESSAGES) is None


@pytest.mark.parametrize(
    ("task", "round", "messages"),
    [
        ("start", 2, MESSAGES),
        ("train", 1, MESSAGES),
        ("train", 2, {"a": {"x": np.float32([1, 3])}, "b": {}}),
        ("train", 2, {"a": {"x": np.float32([[1, 2]])}, "b": {}}),
        ("train", 2, {"a": {"x": np.float32([1, 2])}}),
    ],
    ids=["task", "round", "values", "shape", "sites"],
)
def test_a_server_that_computes_otherwise_does_not_continue(
    tmp_path: Path, task: str, round: int, messages: dict[str, Any]
) -> None:
    """Another version of the code would mix two runs into one."""
    Journal(tmp_path).record("train", 2, MESSAGES, CALL)
    with pytest.raises(FederationError, match="compute other values"):
        Journal(tmp_path).recall(task, round, messages)


def test_a_damaged_journal_and_a_newer_one_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a sentence of its own."""
    monkeypatch.setattr("medfedvqa.federation.journal.FORMAT", 2)
    Journal(tmp_path).record("train", 2, MESSAGES, CALL)
    monkeypatch.undo()
    with pytest.raises(FederationError, match="newer version"):
        Journal(tmp_path).recall("train", 2, MESSAGES)
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(entry.read_bytes()[:-40])
    with pytest.raises(FederationError, match="damaged"):
        Journal(tmp_path).recall("train", 2, MESSAGES)


def test_the_hub_asks_no_site_for_what_it_has(tmp_path: Path) -> None:
    """The second server recalls two calls and makes the third; history and result are those of one server."""
    prompts, calls, journal = vectors((1, 0), (1, 0), (0, 1)), list[str](), tmp_path / "journal"

    def engine(call: TaskCall) -> dict[str, Reply]:
        calls.append(call.task)
        limits.append(call.quorum.seconds)
        return answer(prompts)(call)

    histories, limits = [], list[float | None]()
    for stop in (2, 3):
        hub = ServerHub(SITES, engine, EXCHANGE, rule=QuorumRule(round_timeout=9.0), journal=Journal(journal))
        shared: dict[str, Any] = {}
        for number in hub.rounds(stop):
            shared = hub.mix("start" if number == 1 else "train", Reliability(), shared or None)
        histories.append(hub.history)
    assert calls == ["start", "train", "train"]
    # Sites may still wait for the dead server's answer when the next one asks them.
    assert limits == [9.0, 9.0, 9.0 + RECONNECT]
    assert [record.bytes_up for record in histories[1].rounds] == [histories[0].rounds[0].bytes_up] * 3
