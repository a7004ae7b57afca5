"""Masks whose keys last for a job, in process: later uploads are the answers to the tasks, and open together only."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import Engine, Sites, budget, cost, in_clear_and_on_shares
from tiny_clip import TINY
from untrained import DP, FIVE, Averaged, Lasting, Make, Unweighted, assert_alike, given, saved

from audits import Event, JobRefused, Refusal, Tensors, read, verify
from audits.sharing import EarlierSums
from medfedvqa.core import MeanOnShares
from medfedvqa.errors import FederationError
from medfedvqa.federation import aggregation_attempt as attempts
from medfedvqa.federation.aggregation_attempt import MASKS, Attempt, as_array
from medfedvqa.federation.hub import TaskCall
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import serve_job
from privacy.secagg.ring import signed, unpacked

ROUNDS, WORD = 4, 5


class Uniform(Unweighted):
    """All sites weigh the same."""

    name = "uniform"
    how = MeanOnShares(lasting=True)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites that wait for one that is dead do not wait for long."""
    monkeypatch.setattr(attempts, "MESSAGE_TIMEOUT", 2.0)


def summed(answers: list[Tensors], name: str) -> np.ndarray:
    """The sum that a server can compute of masked answers, as whole numbers."""
    return signed(np.sum([unpacked(answer[name]) for answer in answers], axis=0, dtype=np.uint64), WORD)


def uploads(engine: Engine, round: int) -> list[Tensors]:
    """The masked answers of a round, in the order of arrival."""
    answers = [tensors for task, tensors in engine.passed if task == "train" and "contributors" in tensors]
    return answers[len(FIVE) * (round - 2) : len(FIVE) * (round - 1)]


@pytest.mark.parametrize("method", [Lasting, Uniform])
def test_later_uploads_answer_the_task_itself_in_few_bytes_and_their_mean_is_the_plain_one(
    job_on_shares: Make, tmp_path: Path, method: type[Averaged]
) -> None:
    """Keys are agreed on once; from the second round on there is one task a round, with five bytes a number, and the
    log has the sites of each sum, which other jobs count."""
    configs, job = job_on_shares(method, FIVE, rounds=ROUNDS)
    engine = Engine(configs, job)
    assert serve_job(job, FIVE, engine.call, tmp_path, "local")["status"] == "finished"
    tasks = list(dict.fromkeys(task for task, _ in engine.passed))
    assert tasks == ["start", "start/mean", "start/unmask", "train", "evaluate"]
    for round in range(1, ROUNDS + 1):
        for config in configs.values():
            assert_alike(given(config, round), method.plain(FIVE, round)[config.name])
    (answer, *_) = uploads(engine, 2)
    assert answer["prompt.x"].nbytes == 1.25 * method.holding("a", 2)["prompt.x"].nbytes
    for config in configs.values():
        sums = [entry for entry in read(config.audit) if entry.task == "train/masked"]
        assert [(entry.round, entry.sharing["stage"]) for entry in sums] == [
            (n, "opened") for n in range(2, ROUNDS + 1)
        ]
        assert frozenset(FIVE) in EarlierSums(config.audit).cohorts("other", 1) and verify(config.audit).ok


@pytest.mark.parametrize("private", [False, True])
def test_no_sum_opens_without_every_site(job_on_shares: Make, tmp_path: Path, private: bool) -> None:
    """A site dies before its second answer. That round's mean is lost, and what the server has of four sites is not
    their sum. The rest then end the job, since its sums would show the dead site; under differential privacy they agree
    on new keys, and each answer is charged."""
    configs, job = job_on_shares(Uniform, FIVE, rounds=ROUNDS, **({"dp": DP} if private else {}))
    engine = Engine(configs, job)
    engine.before = {"train": {"e"}}
    if not private:
        with pytest.raises(FederationError) as stopped:
            serve_job(job, FIVE, engine.call, tmp_path, "local")
        assert isinstance(stopped.value.__cause__, JobRefused) and stopped.value.__cause__.code is Refusal.COHORT
    else:
        results = serve_job(job, FIVE, engine.call, tmp_path, "local")
        assert sum(note.startswith("Round 2 gave no mean") for note in results["notes"]) == 1
        for round, sites, held in ((2, FIVE, 1), (3, FIVE[:4], 3), (4, FIVE[:4], 4)):
            assert_alike(given(configs["a"], round), Uniform.plain(sites, held)["a"])
        charged = [entry for entry in read(configs["a"].audit) if entry.task == "train/masked"]
        assert [entry.round for entry in charged] == [2, 4] and all(entry.dp_event for entry in charged)
        assert budget(configs["a"])[0] == pytest.approx(cost(job))
    answers = [tensors for task, tensors in engine.passed if task == "train" and "contributors" in tensors][:4]
    assert len(answers) == 4 and summed(answers, "contributors") != 4
    assert (np.abs(summed(answers, "prompt.x")) > 2.0**34).any()  # differences of the inputs are below 2^33


def prepared(engine: Engine) -> dict[str, Any]:
    """Sites with a mean of the first round, as an honest server gets it: the attempt, and a message for the next."""
    engine.call(TaskCall("start", 1, dict.fromkeys(FIVE, {})))
    attempt = Attempt("one", FIVE, members=FIVE)
    engine.call(TaskCall("start/mean", 1, dict.fromkeys(FIVE, attempt.message())))
    model = Lasting.mean(FIVE, 1)
    return {"attempt": attempt, "model": model, "call": model | attempt.lasting(0)}


def refused(engine: Engine, task: str, site: str, round: int, message: Tensors) -> Refusal:
    """The code with which a site refuses; nothing leaves it."""
    with pytest.raises(FederationError) as stopped:
        engine.call(TaskCall(task, round, {site: message}))
    assert isinstance(stopped.value.__cause__, JobRefused)
    return stopped.value.__cause__.code


def test_an_upload_is_in_one_sum_only(job_on_shares: Make) -> None:
    """A server that has an upload under lasting masks gets no attempt at its mean, and one that has had an attempt gets
    no upload under lasting masks: of two sums of a round the difference would be a site's."""
    configs, job = job_on_shares(Lasting, FIVE, rounds=ROUNDS)
    engine = Engine(configs, job)
    first_mean = prepared(engine)
    second = Attempt("two", FIVE, members=FIVE).message()
    engine.call(TaskCall("train", 2, dict.fromkeys(FIVE, first_mean["call"])))
    with pytest.raises(FederationError, match="has left already"):
        engine.call(TaskCall("train/mean", 2, dict.fromkeys(FIVE, second)))
    engine = Engine(configs, job, "other")
    first_mean = prepared(engine)
    engine.call(TaskCall("train", 2, dict.fromkeys(FIVE, first_mean["model"])))
    engine.call(TaskCall("train/mean", 2, dict.fromkeys(FIVE, second)))
    replies = engine.call(TaskCall("train", 2, dict.fromkeys(FIVE, first_mean["call"])))
    assert replies.keys() == {*FIVE} and not any(reply.tensors for reply in replies.values())


def test_a_repeated_task_gets_the_same_bytes_from_a_new_process(job_on_shares: Make) -> None:
    """No number is ever masked twice by the same key: the upload is on disk before it leaves."""
    configs, job = job_on_shares(Lasting, FIVE, rounds=ROUNDS)
    engine = Engine(configs, job)
    call = TaskCall("train", 2, dict.fromkeys(FIVE, prepared(engine)["call"]))
    first = engine.call(call)
    engine.local.close()
    again = Engine(configs, job).call(call)
    for site in FIVE:
        assert first[site].tensors.keys() == again[site].tensors.keys() >= {"prompt.x"}
        assert all(np.array_equal(first[site].tensors[name], again[site].tensors[name]) for name in first[site].tensors)


@pytest.mark.parametrize("part", ["model", "exponent"])
def test_a_server_that_sends_sites_different_things_opens_nothing(
    job_on_shares: Make, tmp_path: Path, part: str
) -> None:
    """D. Pasquini, D. Francati and G. Ateniese ("Eluding Secure Aggregation in Federated Learning via Model
    Inconsistency", 2022) send each site another model, so that all uploads but one are known. Here the masks follow
    from what was sent, and do not cancel."""
    configs, job = job_on_shares(Lasting, FIVE, rounds=2)

    def other(task: str, site: str, message: Tensors) -> Tensors:
        if task != "train" or site != "c":
            return message
        if part == "exponent":
            return message | Attempt(attempts.named_masks(message)[0], FIVE).lasting(-20)
        return message | {"prompt.x": np.nextafter(message["prompt.x"], np.float32(9))}

    engine = Engine(configs, job)
    engine.tamper = other
    results = serve_job(job, FIVE, engine.call, tmp_path, "local")
    answers = uploads(engine, 2)
    assert len(answers) == 5 and any(note.startswith("Round 2 gave no mean") for note in results["notes"])
    assert summed(answers, "contributors") != 5 and (np.abs(summed(answers, "prompt.x")) > 2.0**34).any()


@pytest.mark.parametrize(
    "demanded",
    [
        {"attempt": "two", "exponent": 0},
        {"attempt": "one", "exponent": 1},
        {"attempt": "one", "exponent": -41},
        {"attempt": "one", "exponent": True},
        {"attempt": "one", "exponent": 0.0},
        {"attempt": "one"},
        {},
        [],
        None,
    ],
)
def test_masks_that_no_mean_has_left_are_refused_before_anything_is_trained(job_on_shares: Make, demanded: Any) -> None:
    """Another attempt, numbers too fine or too coarse, and what is no request at all."""
    configs, job = job_on_shares(Lasting, FIVE, rounds=ROUNDS)
    engine = Engine(configs, job)
    message = prepared(engine)["model"] | {MASKS: as_array(demanded)}
    assert refused(engine, "train", "a", 2, message)
    assert saved(configs["a"]).round == 1
    entries = [entry for entry in read(configs["a"].audit) if entry.round == 2]
    assert not [entry for entry in entries if entry.event is Event.RELEASE]


@pytest.mark.parametrize("weighting", ["rows", "uniform"])
def test_a_stepwise_job_of_users_ends_with_the_model_of_one_in_clear(
    introduced: Sites, tmp_path: Path, weighting: str
) -> None:
    """In four steps, of which three are under lasting masks."""
    configs = introduced("abdomen", "chest", "head", methods=["fedavg"], repeatable_noise=1)
    options = {"schedule": "stepwise", "rounds": 4, "tuning": "classifier", "hidden": 16, "units": 16}
    options |= {"weighting": weighting, "batch_rows": 16}
    plain = JobSpec.from_dict({"method": "fedavg", "options": options, "data": "phantom", "backbone": TINY})
    runs, _ = in_clear_and_on_shares(configs, plain, tmp_path)
    (clear, *_), (shared, *_) = (run.sent("evaluate", "head.answers.bias") for run in runs.values())
    assert np.abs(shared - clear).max() < 1e-5 < 1e-3 < np.abs(clear).max()
    assert not runs["secure"].sent("train/mean", "weight") and runs["secure"].sent("train", "contributors")
