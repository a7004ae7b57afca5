"""The baselines that need neither picture nor training, against the figures measured on the published files."""

from pathlib import Path

import pytest
import torch

from medfedvqa.data import Examples, Split, load_site
from medfedvqa.evaluation.accuracy import majority_correct, question_prior_correct

MEASURED = [  # reader, organ, test rows, majority %, question-only prior %
    ("vqa-rad", "chest", 116, 50.0, 50.0),
    ("vqa-rad", "abdomen", 102, 44.1, 46.1),
    ("vqa-rad", "head", 54, 44.4, 48.1),
    ("slake", "lung", 141, 45.4, 82.3),
    ("slake", "abdomen", 141, 41.8, 62.4),
    ("slake", "brain", 91, 37.4, 73.6),
    ("slake", "others", 43, 48.8, 69.8),
]


def examples(*rows: tuple[str, int]) -> Examples:
    zeros = torch.zeros(len(rows), dtype=torch.int64)
    answers = torch.tensor([answer for _, answer in rows], dtype=torch.int64)
    return Examples(tuple(question for question, _ in rows), answers, zeros, zeros)


@pytest.mark.parametrize(("reader", "organ", "rows", "majority", "prior"), MEASURED)
def test_the_measured_table(
    data_folder: Path, reader: str, organ: str, rows: int, majority: float, prior: float
) -> None:
    """From all published train rows to the published test rows."""
    site = load_site(reader, data_folder / reader, organ, Split(validation=0.0))
    assert len(site.test) == rows
    assert round(100 * majority_correct(site.train.answers, site.test.answers) / rows, 1) == majority
    assert round(100 * question_prior_correct(site.train, site.test) / rows, 1) == prior


def test_the_prior_answers_each_question_as_train_did_most_often() -> None:
    train = examples(("a", 0), ("a", 1), ("a", 1), ("b", 0), ("b", 0))
    assert question_prior_correct(train, examples(("a", 1), ("a", 0), ("b", 0))) == 2


def test_questions_compare_folded() -> None:
    train = examples(("Is it  BIG?", 1), ("other", 0), ("other", 0))
    assert question_prior_correct(train, examples(("is it big", 1), (" is it big ?", 1))) == 2


def test_a_question_that_train_never_asked_gets_the_majority() -> None:
    train = examples(("a", 0), ("a", 0), ("b", 1))
    assert question_prior_correct(train, examples(("c", 0), ("d", 1))) == 1


def test_of_equally_frequent_answers_the_one_seen_first_counts() -> None:
    assert majority_correct(torch.tensor([2, 0, 0, 2]), torch.tensor([2, 2, 0])) == 2
    assert question_prior_correct(examples(("a", 1), ("a", 0)), examples(("a", 1), ("a", 0), ("a", 1))) == 2


def test_answers_outside_of_the_space_are_neither_given_nor_right() -> None:
    """They occur in validation and test rows; joined to train they must not become a guess."""
    assert majority_correct(torch.tensor([-1, -1, 0]), torch.tensor([-1, -1, 0])) == 1
    train = examples(("a", -1), ("a", -1), ("b", 0))
    assert question_prior_correct(train, examples(("a", -1), ("a", 0), ("b", 0))) == 2


def test_without_test_rows_nothing_is_right() -> None:
    train = examples(("a", 0), ("b", 1))
    assert majority_correct(train.answers, examples().answers) == question_prior_correct(train, examples()) == 0
