"""The counts of a site's test, and their declarations in the exchange."""

import numpy as np
import torch

from audits import Kind, Tensors, TensorSpec
from medfedvqa.core.method import State
from medfedvqa.data import SiteData
from medfedvqa.evaluation.accuracy import majority_correct, one_caption_correct, question_prior_correct
from medfedvqa.evaluation.history import KEPT_MODELS

RIGHT = "right"
"""The key in the state after `evaluate`: whether each test row is answered right, bool [rows]. It never leaves."""
CLOSED = "closed"
"""The key in the state after `evaluate`: whether each test row's question is closed, bool [rows]. It never leaves."""
VALIDATED = "validated"
"""The key in the training state: the validation accuracy after each round, float32 [rounds]. It never leaves."""

MOST_ROWS = 1_000_000
"""The most rows that a site may claim: several times the largest public set of medical questions. It bounds the
weight of a lying site in a mean by rows."""

ACCURACY = "accuracy"
"""The scalar in an upload that weighs it in a mixture."""
RELEASED_ACCURACY = TensorSpec(
    ACCURACY, (), "float32", Kind.STATISTIC, "share of validation rows answered right", bounds=(0, 1)
)
"""The declaration of `ACCURACY` in an exchange."""


def validated(state: State, right: torch.Tensor) -> State:
    """The validation accuracies of all rounds; this round's is the share of rows that are `right`, bool [rows]."""
    share = right.float().mean() if len(right) else torch.zeros(())
    return {VALIDATED: torch.cat([state.get(VALIDATED, torch.zeros(0)), share.view(1)])}


SCORED = ("rows", "train_rows", "correct", "majority_correct", "prior_correct")
"""The names of the counts of `scored`."""
FINISHED = ("finished_correct", "alone_correct", "alone_equal_correct", "ensemble_correct", "kept_model")
"""The names of the further counts if the option `FINISH` is above 0, so that sites keep a model."""
FINISH = "finish_epochs"
"""The option of methods whose sites may train on by themselves after their last release."""


def scored(state: State, data: SiteData, right: torch.Tensor, **others: int) -> tuple[State, Tensors]:
    """The result of a handler `evaluate`: the state with the `right` test rows, bool [rows], and the counts to release.

    The state also records which rows' questions are closed. The counts include those of the baselines that need no
    training (majority, question-only prior) and `others`. At a site of captions both baselines are one caption for all
    pictures.
    """
    if data.captioned:
        majority = prior = one_caption_correct(data.test)
    else:
        majority = majority_correct(data.train.answers, data.test.answers)
        prior = question_prior_correct(data.train, data.test)
    totals = {
        "rows": len(data.test),
        "train_rows": len(data.train),
        "correct": int(right.sum()),
        "majority_correct": majority,
        "prior_correct": prior,
        **others,
    }
    state = {**state, RIGHT: right, CLOSED: data.test.are_closed}
    return state, {name: np.array(count, np.int64) for name, count in totals.items()}


def counts(*names: str) -> tuple[TensorSpec, ...]:
    """The declarations of the int64 scalars of these names, see `COUNTS`."""
    most = {"kept_model": len(KEPT_MODELS) - 1}
    return tuple(
        TensorSpec(name, (), "int64", Kind.STATISTIC, COUNTS[name], bounds=(0, most.get(name, MOST_ROWS)))
        for name in names
    )


COUNTS = {
    "rows": "number of test rows",
    "train_rows": "number of training rows",
    "correct": "test rows that the site's model answers right",
    "majority_correct": "test rows that the most frequent training answer answers right",
    "prior_correct": "test rows that the most frequent answer to the same question answers right",
    "first_five": "test rows whose right answer, or caption, is among the first five of the site's model",
    "alone_correct": "test rows that the same model, trained without the other sites, answers right",
    "alone_equal_correct": "the same, trained alone for the passes of the federation and of finishing together",
    "finished_correct": "test rows that the model answers right which the site trained on after its last release",
    "ensemble_correct": "test rows that the released model and the one trained alone answer right together",
    "kept_model": "which model the site keeps: " + ", ".join(f"{n} {name}" for n, name in enumerate(KEPT_MODELS)),
}
