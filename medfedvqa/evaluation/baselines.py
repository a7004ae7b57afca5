"""Baselines that need no picture and no training. A model that loses to them has learnt nothing."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import torch

from medfedvqa.data.site_data import Examples
from medfedvqa.public_answers import fold


def majority_right(train_answers: torch.Tensor, test_answers: torch.Tensor) -> torch.Tensor:
    """Whether each of `test_answers` is the most frequent of `train_answers`, bool [rows].

    Both are int64 [rows], indices into one answer space. Of equally frequent answers the first in
    train counts. Answers outside of the space (-1) are never chosen and never right.
    """
    majority = _most_frequent(train_answers.tolist())
    return torch.tensor([answer == majority for answer in test_answers.tolist()], dtype=torch.bool)


def question_prior_right(train: Examples, test: Examples) -> torch.Tensor:
    """Whether each test row's answer is the most frequent one to its question in train, bool [rows].

    Questions compare folded. A question that train lacks gets train's most frequent answer. Ties and answers outside
    of the space count as in `majority_right`.
    """
    by_question: defaultdict[str, list[int]] = defaultdict(list)
    for question, answer in zip(train.questions, train.answers.tolist(), strict=True):
        by_question[fold(question)].append(answer)
    majority = _most_frequent(train.answers.tolist())
    prior = {question: _most_frequent(answers, otherwise=majority) for question, answers in by_question.items()}
    guesses = [prior.get(fold(question), majority) for question in test.questions]
    pairs = zip(guesses, test.answers.tolist(), strict=True)
    return torch.tensor([guess == answer for guess, answer in pairs], dtype=torch.bool)


def one_caption_correct(test: Examples) -> int:
    """The number of test pictures that have the most frequent test caption: what one caption for all pictures finds."""
    return max(Counter(map(fold, test.questions)).values(), default=0)


def majority_correct(train_answers: torch.Tensor, test_answers: torch.Tensor) -> int:
    """The number of right answers, see `majority_right`."""
    return int(majority_right(train_answers, test_answers).sum())


def question_prior_correct(train: Examples, test: Examples) -> int:
    """The number of right answers, see `question_prior_right`."""
    return int(question_prior_right(train, test).sum())


def _most_frequent(answers: Sequence[int], otherwise: int | None = None) -> int | None:
    counts = Counter(answer for answer in answers if answer >= 0)
    return counts.most_common(1)[0][0] if counts else otherwise
