"""What a server that lies gets from real sites in process: one test for each finding of an attack on version 0.1.0."""

from collections.abc import Iterator

import numpy as np
import pytest
from in_process import Job, Sites, cost
from lying_server import LyingServer, assert_refused_in_order, charged
from server_lies import LIES, ROWS, averaged_shapes, rewound_sum, two_rounds
from tiny_clip import TINY

from medfedvqa.data.phantom import organs
from medfedvqa.federation.job import JobSpec

FOUR = organs(4)
THREE, VICTIM = FOUR[:3], FOUR[3]


@pytest.fixture
def averaging(introduced: Sites) -> Iterator[LyingServer]:
    """Four sites that average what they train in two rounds, under policies that allow sums only."""
    configs = introduced(*FOUR, methods=["fedavg"], require_secagg=True, min_sites=3)
    options = {"rounds": 2, "local_epochs": 1, "local_unit": "batches", "batch_rows": 16, "blocks": 1, "hidden": 16}
    job = {"method": "fedavg", "options": options, "data": "phantom", "backbone": TINY, "secagg": True}
    server = LyingServer(configs, JobSpec.from_dict(job))
    yield server
    server.close()


@pytest.mark.parametrize("name", LIES)
def test_a_server_that_lies_gets_nothing(introduced: Sites, name: str) -> None:
    """What is out of order is refused by each site, once, in a log that verifies. A private job has cost what it
    planned."""
    lie = LIES[name]
    configs = introduced(*FOUR, methods=["prompt_pfl", "fedavg"], min_sites=3, require_fresh=False)
    server = LyingServer(configs, lie.job.model_copy(update={"backbone": TINY}))
    assert lie.play(server, FOUR) == lie.outcome
    server.close(ended=False)
    assert_refused_in_order(server, FOUR[: lie.refusing])
    if lie.job.dp is not None:
        for config in configs.values():
            assert charged(config, lie.job.dp.delta)[0] == pytest.approx(cost(lie.job), abs=1e-9)


def test_a_server_opens_no_second_sum_after_the_processes_of_sites_died(averaging: LyingServer) -> None:
    """Finding 1: what they saved and logged is enough to refuse."""
    assert rewound_sum(averaging, FOUR, lambda: averaging.restart(*FOUR)) == LIES["rewound_sum"].outcome
    assert_refused_in_order(averaging, THREE)


def test_a_server_that_goes_back_a_round_has_no_second_answer_of_one_site(averaging: LyingServer) -> None:
    """Finding 1, over the same sites: only the fourth is sent another mean, so that the difference of the two sums of
    round 2 would be that of its answers to two models of the server's choice."""
    down, first = two_rounds(averaging, FOUR)
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
def private(sites: Sites, private_job: Job) -> Iterator[LyingServer]:
    """One site that trains in two rounds under differential privacy, in clear."""
    server = LyingServer(sites("chest"), private_job(local_epochs=1))
    yield server
    server.close()


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
