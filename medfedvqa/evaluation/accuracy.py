"""Accuracies with the uncertainty that small test sets have, by round too, and baselines that need no training."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import torch

from medfedvqa.data.site_data import Examples
from medfedvqa.public_answers import fold

Interval = tuple[float, float]
"""Lower and upper bound, both in 0..1."""


@dataclass(frozen=True)
class Proportion:
    """`correct` of `rows` rows answered right. Raises `ValueError` unless 0 <= correct <= rows."""

    correct: int
    rows: int

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.rows:
            raise ValueError(f"{self.correct} of {self.rows} rows is not a proportion")

    @property
    def value(self) -> float | None:
        """The share in 0..1; None without rows."""
        return self.correct / self.rows if self.rows else None

    def wilson(self, confidence: float = 0.95) -> Interval:
        """The interval of `wilson`, each row counted as independent."""
        return wilson(self.value or 0.0, self.rows, confidence)


def wilson(share: float, rows: float, confidence: float = 0.95) -> Interval:
    """Score interval of a binomial proportion observed on `rows` independent rows; (0, 1) without rows.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 1927.
    Raises `ValueError` unless the confidence lies strictly between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ValueError("a confidence must lie strictly between 0 and 1")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    right, wrong = share * rows, (1 - share) * rows
    return _wilson_lower(right, wrong, z), 1 - _wilson_lower(wrong, right, z)


def _wilson_lower(correct: float, wrong: float, z: float) -> float:
    """The lower bound. The upper bound is the mirrored lower bound of the wrong answers."""
    if correct == 0:
        return 0.0
    rows = correct + wrong
    centre = correct + z**2 / 2
    spread = z * sqrt(correct * wrong / rows + z**2 / 4)
    return min((centre - spread) / (rows + z**2), correct / rows)


def mean_accuracy(sites: Sequence[Proportion]) -> tuple[float, Interval] | None:
    """The mean over sites, each counting the same, with its 95 % interval; None if a site has no rows.

    Variance recovery combines the sites' Wilson intervals: independent deviations of the sites add up to the distance
    of each bound from the mean. A single site keeps its Wilson interval.
    Source: Zou and Donner, "Construction of confidence limits about effect measures", Statist. Med. 2008.
    """
    values = [site.value for site in sites]
    present = [value for value in values if value is not None]
    if not present or len(present) < len(values):
        return None
    mean = sum(present) / len(present)
    bounds = [site.wilson() for site in sites]
    below = sqrt(sum((value - low) ** 2 for value, (low, _) in zip(present, bounds, strict=True))) / len(present)
    above = sqrt(sum((high - value) ** 2 for value, (_, high) in zip(present, bounds, strict=True))) / len(present)
    return mean, (max(0.0, mean - below), min(1.0, mean + above))


def percent(share: float) -> str:
    """A share in 0..1 as every text prints it."""
    return f"{100 * share:.1f} %"


def rounds_since_best(curve: Sequence[float]) -> int:
    """The rounds since the first one with the highest accuracy, so that an equal one is no better; 0 without rounds."""
    return len(curve) - 1 - max(range(len(curve)), key=curve.__getitem__) if curve else 0


def late_gain(curve: Sequence[float]) -> float:
    """The best of all rounds minus the best of the first two thirds; 0 for fewer than 2 rounds."""
    early = curve[: len(curve) * 2 // 3]
    return max(curve) - max(early) if early else 0.0


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
    """The number of test pictures with the most frequent test caption: the baseline of one caption for all pictures."""
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


# The test of a server's own model on public pictures that it did not learn from.

FIRST = (1, 5, 10)
"""The numbers of first results that may hold a partner: Recall@1, 5 and 10 (A. Karpathy and L. Fei-Fei, CVPR 2015)."""


@dataclass(frozen=True)
class ServerScore:
    """A server model's retrieval and answers. A model without a common space of pictures and texts has no retrieval."""

    questions: int
    """Public test questions."""
    correct: int
    """The questions that the model answers right."""
    pictures: int = 0
    """Public test pictures; 0 without retrieval."""
    captions: int = 0
    """The distinct captions of these pictures."""
    image_to_text: tuple[int, ...] = ()
    """The pictures whose caption is among the first 1, 5 and 10 of all captions."""
    text_to_image: tuple[int, ...] = ()
    """The captions with one of their pictures among the first 1, 5 and 10 of all pictures."""

    @property
    def recalls(self) -> tuple[float, ...]:
        """Recall@1, 5 and 10 from pictures to texts, then from texts to pictures, in 0..1; empty without retrieval."""
        return (
            *(hits / self.pictures for hits in self.image_to_text),
            *(hits / self.captions for hits in self.text_to_image),
        )

    @property
    def rsum(self) -> float:
        """The sum of the six recalls, in per cent, at most 600; 0 without retrieval."""
        return 100 * sum(self.recalls)

    @property
    def sentence(self) -> str:
        """The figures in words."""
        answers = f"{percent(self.correct / max(1, self.questions))} of {self.questions} questions"
        if not self.recalls:
            return f"The server's own model, on public pictures that it did not learn from: {answers}."
        recalls = [f"{percent(share)}" for share in self.recalls]
        return (
            f"The server's own model, on {self.pictures} public pictures with {self.captions} captions that it did not "
            f"learn from: Recall@1, 5, 10 from image to text {', '.join(recalls[:3])}, from text to image "
            f"{', '.join(recalls[3:])}, rsum {self.rsum:.1f}; {answers}."
        )
