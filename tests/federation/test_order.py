"""A site goes through a job in one direction."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audits import JobRefused, Refusal
from medfedvqa.core import create, method_names, method_type
from medfedvqa.federation.task_order import TaskOrder
from medfedvqa.models import shape_of

PLAN = [("start", 1), ("train", 2), ("train", 3), ("evaluate", 3)]
STEPS = st.sampled_from([("start", 1), ("train", 2), ("train", 3), *(("evaluate", number) for number in (1, 2, 3))])


@given(asked=st.lists(STEPS, max_size=30))
def test_no_sequence_of_requests_takes_a_site_back(asked: list[tuple[str, int]]) -> None:
    """Whatever a server asks for: what is answered is in the order of the plan, each step once."""
    order, answered = TaskOrder(PLAN), []
    for task, round in asked:
        last = answered[-1] if answered else None
        try:
            if not order.repeats(task, round, last):
                answered.append((task, round))
        except JobRefused as error:
            assert error.code is Refusal.ORDER and last is not None
    places = [len(PLAN) if task == "evaluate" else PLAN.index((task, round)) for task, round in answered]
    assert places == sorted(set(places))


@pytest.mark.parametrize(
    "round", [0, 4, -1, True, 2.0, "2", None, [2], 10**400], ids=lambda value: str(type(value).__name__)
)
def test_a_round_that_the_plan_does_not_have_is_refused(round: Any) -> None:
    """Beyond the declared rounds, and what is no whole number, are no part of any job."""
    with pytest.raises(JobRefused) as refused:
        TaskOrder(PLAN).repeats("train", round, None)
    assert refused.value.code is Refusal.ORDER


def test_the_same_request_again_is_told_from_a_new_one() -> None:
    """The last step may be asked for again; an evaluation in another round than the one that was answered may not."""
    order = TaskOrder(PLAN)
    assert order.repeats("train", 2, ("train", 2)) and not order.repeats("train", 3, ("train", 2))
    with pytest.raises(JobRefused):
        order.repeats("evaluate", 3, ("evaluate", 2))


@pytest.mark.parametrize("name", method_names())
def test_every_method_plans_all_of_its_tasks(name: str) -> None:
    """Otherwise a site would refuse an honest server."""
    rounds = {"rounds": 3} if "rounds" in method_type(name).config_type.model_fields else {}
    method = create(name, rounds, secagg=name in ("unicon", "split_learning"))
    planned = [task for task, _ in method.tasks()]
    assert set(planned) == {task.name for task in method.exchange(shape_of("medclip2-slake")).tasks}
    assert len(set(method.tasks())) == len(planned) and planned[-1] == "evaluate"
