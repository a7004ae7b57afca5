"""The interface of a task that sites learn: the model, and the loss of a row.

Everything else is the same for all tasks: the trainer, differential privacy by patient, the gate, the log, the ledger,
sums on shares, the report and the kept model.
"""

from abc import ABC, abstractmethod

from medfedvqa.models import AnswerModel, BackboneShape, Shapes
from medfedvqa.training import RowLoss, Site, answer_losses


class Task(ABC):
    """A model for each number of answers, and the loss by which it learns."""

    @abstractmethod
    def shapes(self, shape: BackboneShape, answers: int) -> Shapes:
        """The shapes of all trained tensors, by name, for an answer space of this size. Raises `ConfigError`."""

    @abstractmethod
    def check(self, shape: BackboneShape) -> None:
        """Raises `ConfigError` if the task cannot be learnt on a backbone of this shape."""

    @abstractmethod
    def model(self, site: Site, answers: int) -> AnswerModel:
        """The model that a site trains. Raises `ConfigError`."""

    @property
    def code(self) -> tuple[object, ...]:
        """The classes and functions from outside that the task loads."""
        return ()

    def under(self, private: bool) -> "Task":
        """The task as a job trains it. `private`: under differential privacy, which needs each patient's gradient."""
        return self

    def check_answers(self, answers: tuple[str, ...] | None) -> None:
        """Raises `ConfigError` for an answer space that does not suit the task. None: each site's own list."""
        del answers

    def row_loss(self, model: AnswerModel) -> RowLoss:
        """The loss of each row: the cross-entropy of its answer."""
        return answer_losses(model)
