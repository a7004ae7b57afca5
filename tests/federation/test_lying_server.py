"""What a server that lies gets from real sites in process: one test for each finding of an attack on version 0.1.0."""

from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest
from lying_server import LyingServer, numbers
from lying_sums import ROWS, averaged_shapes, mean_of
from tiny_clip import TINY

from audits import Event, read, verify
from medfedvqa.core import Tensors
from medfedvqa.data.phantom import organs
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.site_config import SiteConfig
from privacy import DPSettings, Ledger, spent
from privacy.secagg.ring import Ring

Sites = Callable[..., dict[str, SiteConfig]]
Job = Callable[..., JobSpec]
FOUR = organs(4)
THREE, VICTIM = FOUR[:3], FOUR[3]
DP = DPSettings(noise=2.0, count_noise=20.0, sample_rate=0.3, patient_rows=4, physical_patients=5)


@pytest.fixture
def averaging(introduced: Sites) -> Iterator[LyingServer]:
    """Four sites that average what they train in two rounds, under policies that allow sums only."""
    configs = introduced(*FOUR, methods=["fedavg"], require_secagg=True, min_sites=3)
    options = {"rounds": 2, "local_epochs": 1, "local_unit": "batches", "batch_rows": 16, "blocks": 1, "hidden": 16}
    job = {"method": "fedavg", "options": options, "data": "phantom", "backbone": TINY, "secagg": True}
    server = LyingServer(configs, JobSpec.from_dict(job))
    yield server
    server.close()


def refusals(config: SiteConfig) -> list[str]:
    """The codes of the refusals in a site's log."""
    entries = read(config.audit)
    return [entry.admission["code"] for entry in entries if entry.event is Event.REFUSAL and entry.admission]


def assert_refused_in_order(server: LyingServer, sites: tuple[str, ...]) -> None:
    """Each of these sites logged one refusal, with the code of a task out of order, in a log that verifies."""
    for site in sites:
        assert refusals(server.configs[site]) == ["order"]
        assert verify(server.configs[site].audit).ok


def two_rounds(server: LyingServer) -> tuple[Tensors, Ring]:
    """An honest job until its end: the first mean, and the second sum."""
    shapes = averaged_shapes(server.job)
    server.tell("start", 1, FOUR)
    first = server.mean("start", 1, FOUR, list(shapes), ROWS)
    assert first is not None
    server.tell("train", 2, FOUR, mean_of(first, shapes))
    second = server.mean("train", 2, FOUR, list(shapes), ROWS)
    assert second is not None
    server.tell("evaluate", 2, FOUR, mean_of(second, shapes))
    return mean_of(first, shapes), second


@pytest.mark.parametrize("restarted", [False, True])
def test_a_server_that_goes_back_a_round_opens_no_second_sum_of_it(averaging: LyingServer, restarted: bool) -> None:
    """Finding 1: after `evaluate`, `train` of round 2 again over three sites; the difference of the two sums was the
    fourth site's whole upload. The three refuse to train, and no sum opens, also after their processes died."""
    down, four = two_rounds(averaging)
    if restarted:
        averaging.restart(*FOUR)
    again = averaging.tell("train", 2, THREE, down)
    three = averaging.mean("train", 2, THREE, list(averaged_shapes(averaging.job)), ROWS)
    assert three is None, f"the difference has the {round(numbers(four - three)[-1])} rows of {VICTIM}"
    assert {answer.code for answer in again.values()} == {"order"}
    assert_refused_in_order(averaging, THREE)


def test_a_server_that_goes_back_a_round_has_no_second_answer_of_one_site(averaging: LyingServer) -> None:
    """Finding 1, over the same sites: only the fourth is sent another mean, so that the difference of the two sums of
    round 2 would be that of its answers to two models of the server's choice."""
    down, first = two_rounds(averaging)
    other = {name: array + np.float32(0.5) for name, array in down.items()}
    again = averaging.ask("train", 2, dict.fromkeys(THREE, down) | {VICTIM: other})
    second = averaging.mean("train", 2, FOUR, list(averaged_shapes(averaging.job)), ROWS)
    assert second is None, f"{np.count_nonzero(first - second)} numbers of {VICTIM} alone are open"
    assert {answer.code for answer in again.values()} == {"order"}
    assert_refused_in_order(averaging, FOUR)


def test_a_task_beyond_the_plan_is_refused(averaging: LyingServer) -> None:
    """Finding 2, without a draw: a job of two rounds trains in no third one, and starts under no other number."""
    late = averaging.tell("start", 35, FOUR[:2])
    assert {answer.code for answer in late.values()} == {"order"}
    averaging.tell("start", 1, FOUR[2:])
    shapes = averaged_shapes(averaging.job)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    beyond = averaging.tell("train", 3, FOUR[2:], zeros)
    assert {answer.code for answer in beyond.values()} == {"order"}
    assert_refused_in_order(averaging, FOUR)


# The budget.


@pytest.fixture
def private(sites: Sites, quick_job: Job) -> Iterator[LyingServer]:
    """One site that trains in two rounds under differential privacy, in clear."""
    job = quick_job(answers="closed", local_epochs=1).model_copy(update={"dp": DP})
    server = LyingServer(sites("chest"), job)
    yield server
    server.close()


def charged(config: SiteConfig, delta: float) -> tuple[float, int]:
    """The epsilon that the site's ledger says was spent, and how many entries of its log carry a charge."""
    with closing(Ledger(config.ledger, config.name)) as ledger:
        epsilon = ledger.together(delta, False).epsilon
    return epsilon, sum(entry.dp_event is not None for entry in read(config.audit))


def test_a_server_that_goes_back_spends_no_budget_beyond_the_plan(private: LyingServer) -> None:
    """Finding 5: planned 0.312, spent 1.330 after the server went back 29 times. A site that is asked for `start` after
    `train` refuses, and has spent what the tasks cost that the plan has up to there."""
    job, config = private.job, private.configs["chest"]
    assert job.dp is not None
    start = private.tell("start", 1, ["chest"])["chest"].tensors
    shared = {name: start[name] for name in ("prompt.image", "prompt.text")}
    private.tell("train", 2, ["chest"], shared)
    again = [private.tell(*task)["chest"].code for task in (("start", 1, ["chest"]), ("train", 2, ["chest"], shared))]
    planned = spent([event for task in job.build().plan() for event in task.events], job.dp.delta).epsilon
    private.close(ended=False)
    assert charged(config, job.dp.delta)[0] == pytest.approx(planned, abs=1e-9)
    assert again == ["order", "order"]
    assert refusals(config) == ["order"]


def test_the_same_request_again_gets_the_same_bytes_without_training_or_charge(private: LyingServer) -> None:
    """What a server asks again, also of a site that died meanwhile, is what the site saved: the ledger has one charge,
    and the state file does not change."""
    job, config = private.job, private.configs["chest"]
    assert job.dp is not None
    first = private.tell("start", 1, ["chest"])["chest"]
    state = (config.state / "job.pt").read_bytes()
    private.close(ended=False)
    after_one = charged(config, job.dp.delta)[0]
    for _ in range(3):
        private.restart("chest")
        again = private.tell("start", 1, ["chest"])["chest"]
        assert {name: array.tobytes() for name, array in again.tensors.items()} == {
            name: array.tobytes() for name, array in first.tensors.items()
        }
    private.close(ended=False)
    assert charged(config, job.dp.delta)[0] == after_one > 0
    assert (config.state / "job.pt").read_bytes() == state
