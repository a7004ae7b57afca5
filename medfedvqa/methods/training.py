"""A site's local training of prompts and answer head: the same for every method that trains them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Literal

import torch
import torch.nn.functional as F
from torch.func import functional_call

from medfedvqa.data import Examples, batches, views
from medfedvqa.methods.base import Site, State, Tensors
from medfedvqa.models import (
    Batch,
    Cache,
    ModelConfig,
    SiteModel,
    answer_loss,
    prompt_depth,
    prompt_distance,
    weight_penalty,
)

Prompts = dict[str, torch.Tensor]


@dataclass(frozen=True)
class TrainConfig:
    """How a site trains; `PromptPFLConfig` documents each field."""

    local_epochs: int
    local_unit: Literal["epochs", "batches"]
    batch_rows: int
    views: int
    optimizer: Literal["adam", "sgd"]
    learning_rate: float
    decay: float
    decay_every: int
    alpha: float
    beta: float
    similarity: Literal["prompt", "block"]


class SiteTrainer:
    """Trains and applies one site's model; all that lasts is in the state that goes in and comes out."""

    def __init__(self, site: Site, model: ModelConfig, config: TrainConfig) -> None:
        self._site, self._model, self._config = site, model, config
        self._cache = site.derive(("frozen", model, config.views), self._freeze)

    def new(self, seed: int) -> State:
        """A model before its first step."""
        return {"model": self._build(torch.Generator().manual_seed(seed)).state(), "optimizer": None}

    def train(self, state: State, shared: Prompts | None, round: int, seed: int) -> State:
        """One round's local steps (Eq. 8): L = CE + alpha L_d + beta ||w_mlp||^2; `shared` is a constant."""
        generator = torch.Generator().manual_seed(seed)
        model, shared = self._restore(state), self._on_device(shared)
        optimizer = self._optimizer(model, round)
        if state["optimizer"]:
            rate = optimizer.param_groups[0]["lr"]
            optimizer.load_state_dict(state["optimizer"])
            optimizer.param_groups[0]["lr"] = rate
        self._learn(model, optimizer, shared, generator)
        return {"model": model.state(), "optimizer": optimizer.state_dict()}

    def accuracy(self, right: torch.Tensor) -> float:
        """The share of validation rows that are `right`, bool [rows], as it is released; 0 without any."""
        return int(right.sum()) / max(1, len(right))

    @torch.no_grad()
    def right(self, state: State, rows: Examples, shared: Prompts | None) -> torch.Tensor:
        """Whether the model answers each of these rows right, bool [rows]."""
        model, shared = self._restore(state), self._on_device(shared)
        right = torch.zeros(len(rows), dtype=torch.bool)
        for part in torch.arange(len(rows)).split(self._config.batch_rows):
            batch = self._batch(rows, part, torch.zeros(len(self._site.data.pictures), dtype=torch.int64))
            right[part] = model(batch, shared).argmax(dim=1).eq(batch.answers).cpu()
        return right

    @torch.no_grad()
    def attention(self, state: State, rows: Examples) -> torch.Tensor:
        """How the backbone with the model's own prompts looks at each patch of these rows, [rows, patches]."""
        backbone, model = self._site.backbone, self._restore(state)
        # Attention is computed in the last block: what is kept of a picture must lie below it.
        depth = {tower: max(1, blocks) for tower, blocks in prompt_depth(backbone.shape, self._model).items()}
        cache = backbone.cache(depth, self._site.data.pictures.load(backbone.shape.image_size), rows.questions)
        batch = cache.batch(rows.pictures, cache.question_ids(rows.questions), rows.answers)
        return backbone.attention(batch, model.tuned(batch, None, model.prompts))

    def losses(self, values: Mapping[str, torch.Tensor], rows: Examples, shared: Prompts | None) -> torch.Tensor:
        """Cross-entropy of each row, [rows], of a model with these values, without dropout."""
        model, shared = self._build(torch.Generator().manual_seed(0)), self._on_device(shared)
        batch = self._batch(
            rows, torch.arange(len(rows)), torch.zeros(len(self._site.data.pictures), dtype=torch.int64)
        )
        logits = functional_call(model, dict(values), (batch, shared))
        return F.cross_entropy(logits, batch.answers, reduction="none")

    def prompts(self, state: State) -> Tensors:
        """The local prompts, float32 [blocks, tokens, width] each."""
        return {name: tensor.numpy(force=True) for name, tensor in state["model"].items() if name.startswith("prompt.")}

    def _learn(
        self, model: SiteModel, optimizer: torch.optim.Optimizer, shared: Prompts | None, generator: torch.Generator
    ) -> None:
        """All steps of one round."""
        for rows in self._rows(generator):
            batch = self._batch(self._site.data.train.answered, rows, self._shown(generator))
            loss = answer_loss(model(batch, shared, generator), batch.answers) + self._penalty(model, shared)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def _penalty(self, model: SiteModel, shared: Prompts | None) -> torch.Tensor:
        """The terms of the loss that depend on no data."""
        config = self._config
        penalty = config.beta * weight_penalty(model.head)
        if shared:
            per_block = config.similarity == "block"
            penalty = penalty + config.alpha * prompt_distance(model.prompts, shared, per_block)
        return penalty

    def _rows(self, generator: torch.Generator) -> Iterator[torch.Tensor]:
        train, config = self._site.data.train.answered, self._config
        if config.local_unit == "epochs":
            for _ in range(config.local_epochs):
                yield from batches(train, config.batch_rows, generator)
            return
        epochs = (batches(train, config.batch_rows, generator) for _ in count())
        yield from islice(chain.from_iterable(epochs), config.local_epochs)

    def _freeze(self) -> Cache:
        data, backbone = self._site.data, self._site.backbone
        questions = data.train.questions + data.validate.questions + data.test.questions
        pictures = data.pictures.load(backbone.shape.image_size)
        if self._config.views > 1:
            pictures = views(pictures, self._config.views, data.view_seeds(self._site.seed)).flatten(0, 1)
        return backbone.cache(prompt_depth(backbone.shape, self._model), pictures, questions)

    def _shown(self, generator: torch.Generator) -> torch.Tensor:
        """A view of each picture, int64 [pictures]."""
        return torch.randint(self._config.views, (len(self._site.data.pictures),), generator=generator)

    def _batch(
        self, examples: Examples, rows: torch.Tensor, shown: torch.Tensor, owners: torch.Tensor | None = None
    ) -> Batch:
        """These rows, with the view `shown` of each picture, int64 [pictures]; view 0 is the picture itself.

        `owners`: whose each row is, int64 [rows], where patients need prompts of their own.
        """
        pictures = examples.pictures[rows]
        questions = self._cache.question_ids([examples.questions[row] for row in rows.tolist()])
        shown_pictures = pictures * self._config.views + shown[pictures]
        return self._cache.batch(shown_pictures, questions, examples.answers[rows], owners)

    def _build(self, generator: torch.Generator) -> SiteModel:
        return SiteModel(self._site.backbone, self._model, len(self._site.data.answers), generator)

    def _restore(self, state: State) -> SiteModel:
        model = self._build(torch.Generator().manual_seed(0))
        model.load_state_dict(state["model"])
        return model

    def _optimizer(self, model: SiteModel, round: int) -> torch.optim.Optimizer:
        config = self._config
        rate = config.learning_rate * config.decay ** ((round - 1) // config.decay_every)
        if config.optimizer == "adam":
            return torch.optim.Adam(model.parameters(), lr=rate)
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    def _on_device(self, shared: Prompts | None) -> Prompts | None:
        return shared and {name: tensor.to(self._site.device) for name, tensor in shared.items()}
