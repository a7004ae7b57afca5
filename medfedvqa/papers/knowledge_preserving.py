"""Knowledge preserving: a frozen copy of the model at the start of a round teaches the model in training.

Source: FedP3 (M. Lao et al., "FedVQA", ACM MM 2023, Sec. 3.3.1), which compares several distillation losses this way.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from pydantic import Field

from medfedvqa.bounds import Rounds, Weight
from medfedvqa.core.averaging import Averaging, AveragingConfig
from medfedvqa.core.method import State
from medfedvqa.models import AnswerModel, Values
from medfedvqa.training import RowLoss, Rows, Trainer, answer_losses
from privacy import Chance


@dataclass(frozen=True)
class Outputs:
    """A model's outputs for some rows: features [rows, width], logits [rows, answers]."""

    features: torch.Tensor
    logits: torch.Tensor


def outputs(model: AnswerModel, values: Mapping[str, torch.Tensor], rows: Rows, chance: Chance | None) -> Outputs:
    """The outputs of a model with these values. Dropout applies only if there is a `chance` to draw from."""
    features = model.features(values, rows.batch)
    return Outputs(features, model.answer(values, features, rows.batch, chance))


class PreservingConfig(AveragingConfig, frozen=True):
    """Options of all knowledge-preserving methods."""

    weight: Weight = Field(1.0, description="weight of what the teacher says (lambda); 0 is FedAvg")
    start_round: Rounds = Field(2, description="first round with a teacher; in round 1 its head is untrained")


Config = TypeVar("Config", bound=PreservingConfig)


class Preserving(Averaging[Config]):
    """FedAvg with a term between student and teacher in the loss of each row."""

    @abstractmethod
    def term(self, student: Outputs, teacher: Outputs, rows: Rows) -> torch.Tensor:
        """The loss of each row for differing from the teacher, [rows]. The teacher has no dropout and no gradient."""

    def local(self, trainer: Trainer, state: State, start: Values, round: int, seed: int) -> State:
        """One round. It is FedAvg's until there is a teacher, and for weight 0."""
        has_teacher = self.config.weight > 0 and round >= self.config.start_round
        loss = self.distilled(trainer.model, start) if has_teacher else answer_losses(trainer.model)
        return self.stepped(trainer, state, start, loss, round, seed)

    def distilled(self, model: AnswerModel, start: Values) -> RowLoss:
        """Cross-entropy plus the weighted term. The teacher has the values `start`."""

        def loss(values: Values, rows: Rows) -> torch.Tensor:
            student = outputs(model, values, rows, rows.chance)
            with torch.no_grad():
                teacher = outputs(model, start, rows, None)
            answers = F.cross_entropy(student.logits, rows.answers, reduction="none")
            return answers + self.config.weight * self.term(student, teacher, rows)

        return loss
