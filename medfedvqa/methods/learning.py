"""Local steps on named values, plain or under differential privacy by patient: the same for every method."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from typing import Any, Literal

import torch
import torch.nn.functional as F

from medfedvqa.data import Examples, batches, numbered
from medfedvqa.errors import ConfigError
from medfedvqa.methods.base import Site
from medfedvqa.models import AnswerModel, Cache, Depth, Values
from privacy import DPSettings, NoiseLevels, PatientSampler, PrivateStep, Separate


@dataclass(frozen=True)
class LearningConfig:
    """How a site trains; `AloneConfig` documents each field."""

    local_epochs: int
    local_unit: Literal["epochs", "batches"]
    batch_rows: int
    optimizer: Literal["adam", "adamw", "sgd"]
    learning_rate: float
    decay: float
    decay_every: int
    weight_decay: float

    def steps(self, dp: DPSettings) -> int:
        """Private steps of one round: an epoch takes as many as let each patient take part once on average."""
        if self.local_unit == "batches":
            return self.local_epochs
        return max(1, round(self.local_epochs / dp.sample_rate))

    def make(self, values: Values, round: int) -> torch.optim.Optimizer:
        """An optimiser without memory of earlier rounds."""
        rate = self.learning_rate * self.decay ** ((round - 1) // self.decay_every)
        parameters = list(values.values())
        match self.optimizer:
            case "adam":
                return torch.optim.Adam(parameters, rate, weight_decay=self.weight_decay)
            case "adamw":
                return torch.optim.AdamW(parameters, rate, weight_decay=self.weight_decay)
        return torch.optim.SGD(parameters, rate, momentum=0.9, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class Rows:
    """Some of a site's rows, as a loss sees them."""

    batch: Any
    """As the backbone takes them."""
    answers: torch.Tensor
    """int64 [rows], in the model's answer space; -1 for one outside of it, in test rows only."""
    generator: torch.Generator | None = None
    """For dropout; None without."""


RowLoss = Callable[[Values, Rows], torch.Tensor]
"""The loss of each row, [rows]. Only where it depends on no other patient's rows can it be clipped by patient."""
Penalty = Callable[[Values], torch.Tensor]
"""Terms of the loss that depend on no data."""


def answer_losses(model: AnswerModel) -> RowLoss:
    """Cross-entropy of each row."""

    def loss(values: Values, rows: Rows) -> torch.Tensor:
        return F.cross_entropy(model.logits(values, rows.batch, rows.generator), rows.answers, reduction="none")

    return loss


@dataclass(frozen=True)
class Draw:
    """Training rows of one step: a batch, or under differential privacy the rows of each patient that was drawn."""

    rows: tuple[torch.Tensor, ...]
    """int64 [rows] each."""
    generator: torch.Generator
    """For dropout."""


@dataclass(frozen=True)
class Part:
    """Values in training, with an optimiser of their own."""

    values: Values
    optimizer: torch.optim.Optimizer

    def trained(self) -> Values:
        """The values as they are now, apart from their gradients."""
        return {name: value.detach().clone() for name, value in self.values.items()}


class Learner:
    """Trains and applies a model's values on one site's rows; keeps nothing but what data and backbone give."""

    def __init__(
        self,
        site: Site,
        model: AnswerModel,
        config: LearningConfig,
        answers: tuple[str, ...] | None = None,
        private: tuple[DPSettings, NoiseLevels] | None = None,
        depth: Depth | None = None,
    ) -> None:
        """`answers`: the model's answer space, None for the site's own. Training rows outside of it are left out.

        `private`: train under differential privacy by patient, with this noise. `depth`: how deep the models that see
        the rows reach into the backbone, if others than `model` do.
        """
        self.site, self.model, self.config = site, model, config
        self._answers, self._private = answers or site.data.answers, private
        self.train_rows = self.encoded(site.data.train).answered
        self._cache = cached(site, depth or model.depth, model.cache)

    def train(
        self, start: Mapping[str, torch.Tensor], loss: RowLoss, round: int, seed: int, penalty: Penalty | None = None
    ) -> Values:
        """One round's local steps from `start`; what is returned has the same names."""
        part = self.part(start, round)
        for (draw,) in self.draws(torch.Generator().manual_seed(seed)):
            self.step([part], loss, draw, penalty)
        return part.trained()

    def part(self, start: Mapping[str, torch.Tensor], round: int) -> Part:
        """A copy of these values to train in this round. Raises `ConfigError` if there is no row to train on."""
        if not len(self.train_rows):
            raise ConfigError("the job's 'answers' hold none of this site's training answers: add some of them")
        values = {name: value.detach().clone().requires_grad_() for name, value in start.items()}
        return Part(values, self.config.make(values, round))

    def draws(self, generator: torch.Generator, passes: int = 1) -> Iterator[tuple[Draw, ...]]:
        """The rows of one round's steps, for methods that take `passes` of them in turn.

        All passes see the same batch; private ones draw patients each for itself, as their accounting assumes.
        `generator`: for the order of rows, and for dropout.
        """
        if self._private is None:
            for chosen in self._batches(generator):
                yield (Draw((chosen,), generator),) * passes
            return
        dp, rows = self._private[0], self.train_rows
        sampler = PatientSampler(rows.patients, dp.sample_rate, dp.patient_rows, self.site.randomness)
        for _ in range(self.config.steps(dp)):
            yield tuple(Draw(tuple(sampler.sample()), generator) for _ in range(passes))

    def step(self, parts: Sequence[Part], loss: RowLoss, draw: Draw, penalty: Penalty | None = None) -> None:
        """One step of these parts, whose names differ; each draw serves one step. Raises `ConfigError`."""
        values = {name: value for part in parts for name, value in part.values.items()}
        if self._private is None:
            (chosen,) = draw.rows
            losses = loss(values, self.rows(self.train_rows, chosen, draw.generator))
            for value, gradient in zip(values.values(), _gradients(losses.mean(), values), strict=True):
                value.grad = gradient
        else:
            self._noisy(values, loss, draw, *self._private)
        if penalty is not None:
            penalty(values).backward()
        for part in parts:
            part.optimizer.step()
            part.optimizer.zero_grad()

    @torch.no_grad()
    def right(
        self, values: Mapping[str, torch.Tensor], examples: Examples, model: AnswerModel | None = None
    ) -> torch.Tensor:
        """Whether the model, or another one, with these values answers each row right, bool [rows]."""
        model = model or self.model
        right = torch.zeros(len(examples), dtype=torch.bool)
        for part in torch.arange(len(examples)).split(self.config.batch_rows):
            rows = self.rows(self.encoded(examples), part)
            right[part] = model.logits(values, rows.batch).argmax(dim=1).eq(rows.answers).cpu()
        return right

    def encoded(self, examples: Examples) -> Examples:
        """The same rows, with answers in the model's answer space."""
        own = self.site.data.answers
        return replace(examples, answers=numbered(own, self._answers, examples.answers))

    def rows(self, examples: Examples, chosen: torch.Tensor, generator: torch.Generator | None = None) -> Rows:
        """These rows, int64 [rows], of encoded examples."""
        questions = self._cache.question_ids([examples.questions[row] for row in chosen.tolist()])
        batch = self._cache.batch(examples.pictures[chosen], questions, examples.answers[chosen])
        return Rows(batch, batch.answers, generator)

    def _noisy(self, values: Values, loss: RowLoss, draw: Draw, dp: DPSettings, noise: NoiseLevels) -> None:
        """Leaves in the values a noisy sum over patients, each clipped after a backward pass of its own."""
        parameters = list(values.values())
        step = PrivateStep(parameters, dp.clip)
        for chosen in draw.rows:
            gradients = _gradients(loss(values, self.rows(self.train_rows, chosen, draw.generator)).sum(), values)
            # A patient whose gradient is not finite contributes nothing.
            if all(gradient.isfinite().all() for gradient in gradients):
                step.add([Separate({p: g[None] for p, g in zip(parameters, gradients, strict=True)})])
        step.finish(noise.gradients, dp.expected_patients, self.site.randomness)

    def _batches(self, generator: torch.Generator) -> Iterator[torch.Tensor]:
        config = self.config
        epochs = (batches(self.train_rows, config.batch_rows, generator) for _ in count())
        if config.local_unit == "batches":
            return islice(chain.from_iterable(epochs), config.local_epochs)
        return chain.from_iterable(islice(epochs, config.local_epochs))


def cached(site: Site, depth: Depth, make: Callable[[Depth, torch.Tensor, Sequence[str]], Cache]) -> Cache:
    """What is frozen at this depth, computed once for all the site's rows by `make`: that of a backbone or a model."""

    def freeze() -> Cache:
        data, backbone = site.data, site.backbone
        questions = data.train.questions + data.validate.questions + data.test.questions
        return make(depth, data.pictures.load(backbone.shape.image_size), questions)

    return site.derive(("cache", tuple(sorted(depth.items()))), freeze)


def _gradients(loss: torch.Tensor, values: Values) -> tuple[torch.Tensor, ...]:
    gradients = torch.autograd.grad(loss, list(values.values()), allow_unused=True)
    if any(gradient is None for gradient in gradients):
        raise ConfigError("a trained parameter took no part in the loss: leave it out of what is tuned")
    return gradients
