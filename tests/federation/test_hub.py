"""The server's hub: what it gathers, mixes, counts and records."""

from itertools import permutations

import numpy as np
import pytest
from fixed_answers import EXCHANGE, SITES, answer, vectors

from medfedvqa.errors import FederationError
from medfedvqa.federation.hub import Reply, ServerHub, TaskAnswer, TaskCall
from privacy import Reliability, mean, mix


def test_rounds_record_bytes_seconds_accuracy_and_reliability() -> None:
    """After a round the history holds what each site sent and was sent, to the byte."""
    hub = ServerHub(SITES, answer(vectors((1, 0), (1, 0), (0, 1))), EXCHANGE)
    for _ in hub.rounds(1):
        shared = hub.mix("start", Reliability())
    record = hub.history.rounds[0]
    assert record.bytes_up == dict.fromkeys(SITES, 8 + 4) and record.bytes_down == dict.fromkeys(SITES, 0)
    assert record.site_seconds == dict.fromkeys(SITES, 0.25) and record.accuracy == dict.fromkeys(SITES, 0.5)
    assert record.reliability["prompt"][0] == [0.0, 1.0, 0.0]
    assert np.array_equal(shared["a"]["prompt"], np.float32([[(1, 0)]]))


def test_the_mean_can_be_weighted_by_an_upload_that_is_not_averaged() -> None:
    """`mean` uses the named scalar as weight and leaves it out of the result."""
    hub = ServerHub(SITES, answer(vectors((1, 0), (3, 0), (5, 3))), EXCHANGE)
    for _ in hub.rounds(1):
        result = hub.mean("train", weight="accuracy")
    assert set(result) == {"prompt"} and np.allclose(result["prompt"], [[(3, 1)]])


FOUR = {"a": 2.0**60, "b": 1.0, "c": -(2.0**60), "d": 3.0}
"""A value for each site. Their sum in float64 depends on its order."""


def test_no_order_of_arrival_and_no_order_of_names_changes_a_bit() -> None:
    """`mean`, weighted or not, and `mix` give the same bytes in all 24 orders, where the sums themselves do not. Draws
    and steps that go site by site follow `sites`, which is in order of names however the engine lists them."""
    uploads = {site: np.float32([[(1e30, value)]]) for site, value in FOUR.items()}
    bare = {site: {"prompt": array} for site, array in uploads.items()}
    hubs, sums, mixtures = set[bytes](), set[bytes](), set[bytes]()
    for order in permutations(FOUR):

        def engine(call: TaskCall, order: tuple[str, ...] = order) -> dict[str, Reply]:
            replies = answer(uploads)(call)
            return {site: replies[site] for site in order if site in replies}

        hub = ServerHub(order, engine, EXCHANGE)
        assert hub.sites == tuple(FOUR)
        gathered = b""
        for _ in hub.rounds(1):
            hub.mix("start", Reliability(), dict.fromkeys(order[:2], {}))  # the others join later
            plain, weighted = hub.mean("start"), hub.mean("train", weight="accuracy")
            mixed = hub.mix("train", Reliability())
            gathered += plain["prompt"].tobytes() + weighted["prompt"].tobytes()
            gathered += b"".join(mixed[site]["prompt"].tobytes() for site in FOUR)
        hubs.add(gathered)
        ordered = {site: bare[site] for site in order}
        sums.add(mean(ordered)["prompt"].tobytes())
        mixed = mix(ordered, dict.fromkeys(order, 0.5), Reliability()).shared
        mixtures.add(b"".join(mixed[site]["prompt"].tobytes() for site in FOUR))
    assert len(hubs) == 1 and len(sums) > 1 and len(mixtures) > 1


def test_paper_mode_ends_the_run_where_its_weights_make_no_sense() -> None:
    """Opposed prompts under Eq. 11 as printed: the run ends and names the round."""
    hub = ServerHub(SITES, answer(vectors((1, 0), (1, 0.1), (-1, 0.2))), EXCHANGE)
    with pytest.raises(FederationError, match="round 1: mode 'paper'"):
        for _ in hub.rounds(1):
            hub.mix("start", Reliability("paper"))


def test_no_round_begins_after_a_stop() -> None:
    """`stop` is asked before each round; what was reached stays recorded."""
    asked: list[int] = []

    def stop() -> bool:
        return len(asked) == 2

    hub = ServerHub(
        SITES, answer(vectors((1, 0), (1, 0), (0, 1))), EXCHANGE, stop=stop, ended=lambda history: asked.append(1)
    )
    done = [number for number in hub.rounds(9) if hub.collect("train")]
    assert done == [1, 2] and len(hub.history.rounds) == 2


def test_every_task_and_every_answer_of_a_site_is_an_event() -> None:
    """Whoever watches sees that a task is sent, then each site's answer, with the round and how many are planned.

    With a task that is sent comes the mean accuracy that the sites released in the round before, if all of them did.
    """
    seen: list[TaskAnswer] = []
    hub = ServerHub(SITES, answer(vectors((1, 0), (1, 0), (0, 1))), EXCHANGE, watch=seen.append)
    for _ in hub.rounds(2):
        hub.collect("train")
    answers = [[TaskAnswer(number, 2, "train", site) for site in SITES] for number in (1, 2)]
    assert seen == [TaskAnswer(1, 2, "train", None), *answers[0], TaskAnswer(2, 2, "train", None, 0.5), *answers[1]]
