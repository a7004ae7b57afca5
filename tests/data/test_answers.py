"""Answers that sites have in common."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medfedvqa.data import CLOSED_ANSWERS, fold, numbered, public_list

ANSWERS = st.lists(st.sampled_from(CLOSED_ANSWERS[:8]), unique=True, max_size=5).map(tuple)


def test_the_public_list_holds_each_answer_once_as_answers_are_compared():
    assert len(set(CLOSED_ANSWERS)) == len(CLOSED_ANSWERS)
    assert all(answer == fold(answer) for answer in CLOSED_ANSWERS)


@given(ANSWERS, ANSWERS, st.data())
def test_an_answer_keeps_its_words_in_another_list_or_is_outside_of_it(own, common, data):
    """Also for rows whose answer was outside of the site's own list."""
    rows = data.draw(st.lists(st.integers(-1, len(own) - 1), max_size=6))
    found = numbered(own, common, torch.tensor(rows, dtype=torch.int64)).tolist()
    for row, place in zip(rows, found, strict=True):
        if row >= 0 and own[row] in common:
            assert common[place] == own[row]
        else:
            assert place == -1


@given(ANSWERS)
def test_a_list_is_numbered_as_itself(own):
    rows = torch.arange(-1, len(own))
    assert torch.equal(numbered(own, own, rows), rows)


@pytest.mark.parametrize(
    "answers",
    [(), ("yes",), ("yes", "yes"), ("yes", "no", "yes"), ("Yes", "no"), ("yes", "no "), ("yes?", "no"), ("yes", "")],
)
def test_a_public_list_has_two_answers_each_once_as_answers_are_compared(answers):
    """Answers that would never be matched, or would be two outputs for one, are refused without being quoted."""
    with pytest.raises(
        ValueError, match="^give at least two answers, each once, in lower case, with single spaces and in plain"
    ):
        public_list(answers)


def test_a_public_list_keeps_its_order():
    """The place of an answer is its number in the head, so that it must not depend on anything else."""
    assert public_list(["yes", "no", "left side"]) == ("yes", "no", "left side")
    assert public_list(CLOSED_ANSWERS) == CLOSED_ANSWERS
