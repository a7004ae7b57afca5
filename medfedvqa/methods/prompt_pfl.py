"""Prompt-based personalised federated learning (Zhu et al., ICASSP 2024): only small prompts travel.

Each site trains prompts P and an answer head on a frozen CLIP; the server sends each site the others' prompts,
mixed by reliability, as its shared prompt S (Eqs. 8, 10, 11).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from audits import Exchange, Kind, TaskSpec, TensorSpec
from medfedvqa.data import Examples
from medfedvqa.errors import ConfigError
from medfedvqa.methods.base import (
    ACCURACY,
    SCORED,
    Hub,
    Method,
    MethodConfig,
    Probe,
    Site,
    State,
    Tensors,
    counts,
    register,
    scored,
    tensors_of,
    trained_by_rounds,
    validated,
)
from medfedvqa.methods.on_shares import MixOnShares, OnShares
from medfedvqa.methods.private_training import PrivateTrainer, private_steps
from medfedvqa.methods.training import SiteTrainer, TrainConfig
from medfedvqa.models import BackboneShape, ModelConfig, prompt_shapes
from privacy import Cost, Reliability

ABLATIONS = Literal["none", "AS1", "AS2", "AS3", "AS4"]


class PromptPFLConfig(MethodConfig, frozen=True):
    """Options; the defaults are the paper's where it gives one (section 3.1)."""

    rounds: int = Field(30, ge=1, description="exchanges of prompts (paper: 30)")
    local_epochs: int = Field(5, ge=1, description="passes over the site's rows per round (paper: 5 'iterations')")
    local_unit: Literal["epochs", "batches"] = Field("epochs", description="what local_epochs counts (paper: unsaid)")
    batch_rows: int = Field(64, ge=1, description="rows per batch, whole patients (paper: unsaid)")
    views: int = Field(1, ge=1, description="fixed augmented views of each picture to train on, itself included")
    optimizer: Literal["adam", "sgd"] = Field("adam", description="optimiser (paper: unsaid)")
    learning_rate: float = Field(0.01, gt=0, description="first learning rate (paper: 0.01)")
    decay: float = Field(0.1, gt=0, le=1, description="factor on the learning rate (paper: 0.1)")
    decay_every: int = Field(10, ge=1, description="rounds between decays (paper: 10)")
    alpha: float = Field(0.5, ge=0, description="weight of the distance loss L_d (paper: 0.5)")
    beta: float = Field(0.001, ge=0, description="weight of ||w_mlp||^2 (paper: 0.001)")
    blocks: int | None = Field(None, ge=1, description="r: prompts in the last r blocks; null is all (paper: 12)")
    length: int = Field(4, ge=2, description="L: tokens per block and prompt, half keys, half values (paper: 4)")
    joining: Literal["concatenate", "add"] = Field("concatenate", description="how local and shared prompts join")
    placing: Literal["before", "after"] = Field("before", description="prompts join before or after W^K, W^V")
    features: Literal["concat", "product"] = Field("concat", description="what the answer head sees")
    hidden: int = Field(512, ge=1, description="width of the answer head's hidden layer (paper: 512)")
    dropout: float = Field(0.2, ge=0, lt=1, description="dropout in the answer head (paper: 0.2)")
    prompt_std: float = Field(0.02, gt=0, description="deviation of new prompts (paper: unsaid)")
    mode: Literal["clamped", "paper"] = Field("clamped", description="reliability with cosines clamped at 0, or Eq. 11")
    similarity: Literal["prompt", "block"] = Field("prompt", description="cosine of whole prompts, or per block")
    order: Literal["synchronous", "sequential"] = Field(
        "synchronous", description="all sites from one snapshot, or one after the other (Algorithm 1)"
    )
    ablation: ABLATIONS = Field(
        "none",
        description="AS1 no prompts, no sharing; AS2 no sharing; AS3 no image prompt; AS4 no text prompt",
    )
    local_baseline: bool = Field(True, description="also train the same model alone, for the table's row 'alone'")
    finish_epochs: int = Field(
        0,
        ge=0,
        description="passes that a site trains on by itself after its last release, without noise; 0 is none",
    )

    @property
    def sharing(self) -> bool:
        """Whether prompts travel."""
        return self.ablation not in ("AS1", "AS2")

    @property
    def model(self) -> ModelConfig:
        """The site's model."""
        return ModelConfig(
            blocks=self.blocks,
            length=self.length,
            image_prompt=self.ablation not in ("AS1", "AS3"),
            text_prompt=self.ablation not in ("AS1", "AS4"),
            joining=self.joining,
            placing=self.placing,
            features=self.features,
            hidden=self.hidden,
            dropout=self.dropout,
            prompt_std=self.prompt_std,
        )

    @property
    def training(self) -> TrainConfig:
        """The site's local training."""
        return TrainConfig(**{name: getattr(self, name) for name in TrainConfig.__dataclass_fields__})


@register
class PromptPFL(Method[PromptPFLConfig]):
    """Personalised prompts, shared by reliability: accuracy times similarity."""

    name = "prompt_pfl"
    config_type = PromptPFLConfig

    @property
    def least_sites(self) -> int:
        """Sharing needs somebody to share with."""
        return max(super().least_sites, 2 if self.config.sharing else 1)

    @property
    def on_shares(self) -> Mapping[str, OnShares]:
        """Prompts of all training tasks; in one order and with one kind of weights only."""
        if self.config.mode == "paper":
            raise ConfigError("mode 'paper' stops at weights outside of 0..1, which shares hide: use 'clamped'")
        if self.config.order == "sequential":
            raise ConfigError("order 'sequential' shows what one site changed: secure aggregation needs 'synchronous'")
        mix = MixOnShares(by_block=self.config.similarity == "block")
        return {"start": mix, "train": mix} if self.config.sharing else {}

    def exchange(self, shape: BackboneShape) -> Exchange:
        """Up: prompts and validation accuracy; down: shared prompts; at the end: counts of test answers."""
        shapes = prompt_shapes(shape, self.config.model) if self.config.sharing else {}
        own = tuple(_prompt(name, prompt.size, "the site's prompt") for name, prompt in shapes.items())
        mixed = tuple(_prompt(name, prompt.size, "the other sites' mixed prompt") for name, prompt in shapes.items())
        accuracy = TensorSpec(ACCURACY, (), "float32", Kind.STATISTIC, "share of validation rows answered right")
        alone = ("alone_correct",) if self._trains_alone else ()
        return Exchange(
            self.name,
            (
                TaskSpec("start", up=(*own, accuracy), down=()),
                TaskSpec("train", up=(*own, accuracy), down=mixed),
                TaskSpec("evaluate", up=counts(*SCORED, *alone), down=mixed),
            ),
        )

    def tasks(self) -> Iterator[tuple[str, int]]:
        """The first round, the others, and the evaluation."""
        return trained_by_rounds(self.config.rounds)

    def cost(self, task: str) -> Cost:
        """Local steps, and the accuracy that weighs the site's prompts."""
        if self.dp is None or task == "evaluate":
            return Cost()
        return Cost(steps=private_steps(self.config.training, self.dp), counts=1)

    def trained(self, state: State) -> Mapping[str, torch.Tensor]:
        """Prompts and head."""
        model: Mapping[str, torch.Tensor] = state["model"]
        return model

    def setup(self, site: Site) -> State:
        """New prompts and a new head. The prompts are the same at all sites, so that similarity means something."""
        return self._trainer(site).new(site.seed)

    def start(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """The first round: no shared prompt exists yet, so neither does L_d."""
        return self._train(site, state, None, round)

    def train(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """A later round, with the others' mixed prompts as constants."""
        return self._train(site, state, tensors_of(received) or None, round)

    def evaluate(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """Test rows answered right by this model, by the free baselines, and by the same model trained alone."""
        trainer, test = self._trainer(site), site.data.test
        right, others = trainer.right(state, test, tensors_of(received) or None), {}
        if self._trains_alone:
            others["alone_correct"] = int(trainer.right(self._alone(site, round), test, None).sum())
        return scored(state, site.data, right, **others)

    def attention(self, site: Site, state: State, examples: Examples) -> torch.Tensor:
        """See `Method.attention`: with the site's own prompts; shared ones are not kept."""
        return self._trainer(site).attention(state, examples)

    def probe(self, site: Site, state: State, received: Tensors) -> Probe:
        """See `Method.probe`: prompts and head, with the shared prompts as constants."""
        trainer, shared = self._trainer(site), tensors_of(received) or None
        return Probe(self.trained(state), lambda values, rows: trainer.losses(values, rows, shared))

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        """Rounds of training and mixing, then the evaluation with the last shared prompts."""
        shared: dict[str, Tensors] = {}
        for number in hub.rounds(self.config.rounds):
            task = "start" if number == 1 else "train"
            if not self.config.sharing:
                hub.collect(task)
            elif self.config.order == "synchronous" or number == 1:
                shared = hub.mix(task, self._reliability, shared or None)
            else:
                for site in hub.sites:
                    shared |= hub.mix(task, self._reliability, {site: shared[site]}, targets=hub.sites)
        return hub.collect("evaluate", shared or None)

    @property
    def _trains_alone(self) -> bool:
        return self.config.local_baseline and self.config.sharing

    @property
    def _reliability(self) -> Reliability:
        return Reliability(self.config.mode, by_block=self.config.similarity == "block")

    def _alone(self, site: Site, rounds: int) -> State:
        """The same model, trained without the other sites and without noise: neither it nor its score is released
        where a site is under differential privacy."""
        trainer, state = SiteTrainer(site, self.config.model, self.config.training), self.setup(site)
        for number in range(1, rounds + 1):
            state = trainer.train(state, None, number, site.task_seed("train", number))
        return state

    def _trainer(self, site: Site) -> SiteTrainer:
        model, training = self.config.model, self.config.training
        if self.dp is None:
            return SiteTrainer(site, model, training)
        return PrivateTrainer(site, model, training, self.dp, self.noise)

    def _train(self, site: Site, state: State, shared: Any, round: int) -> tuple[State, Tensors]:
        trainer = self._trainer(site)
        trained = trainer.train(state, shared, round, site.task_seed("train", round))
        right = trainer.right(trained, site.data.validate, shared)
        reply = trainer.prompts(trained) if self.config.sharing else {}
        accuracy = np.array(trainer.accuracy(right), np.float32)
        return trained | validated(state, right), {**reply, ACCURACY: accuracy}


def _prompt(name: str, shape: tuple[int, ...], meaning: str) -> TensorSpec:
    return TensorSpec(name, shape, "float32", Kind.PARAMETERS, f"{meaning}, [blocks, tokens, width]")
