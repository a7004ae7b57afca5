"""Prompt-based personalised federated learning (Zhu et al., ICASSP 2024): only small prompts travel.

Each site trains prompts P and an answer head on a frozen CLIP; the server sends each site the others' prompts,
mixed by reliability, as its shared prompt S (Eqs. 8, 10, 11).
"""

from collections.abc import Mapping
from typing import Literal, cast

import numpy as np
import torch
from pydantic import Field

from audits import Exchange, Kind, TaskSpec, Tensors, TensorSpec
from medfedvqa.bounds import BatchRows, Blocks, Passes, PromptLength, Rate, Rounds, Share, Weight, WeightDecay, Width
from medfedvqa.core.head_options import HeadOptions
from medfedvqa.core.hub import Hub
from medfedvqa.core.kept_model import Keeping
from medfedvqa.core.local_training import Alone, AloneConfig
from medfedvqa.core.method import Answering, Probe, State, arrays_of, tensors_of
from medfedvqa.core.on_shares import MixOnShares, OnShares
from medfedvqa.core.registry import register
from medfedvqa.core.scores import ACCURACY, RELEASED_ACCURACY, SCORED, counts, scored, validated
from medfedvqa.data import Examples
from medfedvqa.errors import ConfigError
from medfedvqa.models import (
    HEAD,
    IMAGE,
    PROMPT,
    TEXT,
    BackboneShape,
    Shapes,
    TunedModel,
    TuningConfig,
    Values,
    prompt_distance,
    weight_penalty,
)
from medfedvqa.models.backbone import NOTHING, Features
from medfedvqa.models.prompts import Joining, Placing
from medfedvqa.training import Optimizer, Penalty, Site, Trainer, answer_losses
from privacy import Cost, DPSettings, Reliability, Secagg, Unit, noisy_share

ABLATIONS = Literal["none", "AS1", "AS2", "AS3", "AS4"]


class PromptPFLConfig(AloneConfig, HeadOptions, frozen=True):
    """Options; the defaults are the paper's where it gives one (section 3.1)."""

    rounds: Rounds = Field(30, description="exchanges of prompts (paper: 30)")
    local_epochs: Passes = Field(5, description="passes over the site's rows per round (paper: 5 'iterations')")
    batch_rows: BatchRows = Field(64, description="rows per batch, whole patients (paper: unsaid)")
    optimizer: Optimizer = Field("adam", description="optimiser, whose memory lasts over rounds (paper: unsaid)")
    learning_rate: Rate = Field(0.01, description="first learning rate (paper: 0.01)")
    weight_decay: WeightDecay = Field(0.0, description="decay of weights per step (paper: none; see beta)")
    alpha: Weight = Field(0.5, description="weight of the distance loss L_d (paper: 0.5)")
    beta: Weight = Field(0.001, description="weight of ||w_mlp||^2 (paper: 0.001)")
    blocks: Blocks = Field(None, description="r: prompts in the last r blocks; null is all (paper: 12)")
    length: PromptLength = Field(4, description="L: tokens per block and prompt, half keys, half values (paper: 4)")
    joining: Joining = Field("concatenate", description="how local and shared prompts join")
    placing: Placing = Field("before", description="prompts join before or after W^K, W^V")
    features: Features = Field(
        "concat",
        description="features of the backbone: its towers' side by side, or also their product in CLIP's "
        "common space, which goes with fusion 'concat'",
    )
    hidden: Width = Field(512, description="width of the answer head's hidden layer (paper: 512)")
    dropout: Share = Field(0.2, description="dropout in the answer head (paper: 0.2)")
    prompt_std: Rate = Field(0.02, description="deviation of new prompts (paper: unsaid)")
    prompt_rate: Rate | None = Field(None, description="first learning rate of prompts; null: that of the head")
    prompt_norm: Literal["free", "states"] = Field(
        "free", description="norm in which prompts' tokens join: their own, or that of normalised states"
    )
    momentum: Share = Field(0.9, description="momentum of the optimiser 'sgd' (Algorithm 1: none)")
    loss: Literal["mean", "sum"] = Field(
        "mean", description="what alpha and beta stand beside: the mean loss of rows, or, as in Eq. 6, their sum"
    )
    compared: Literal["prompts", "changes"] = Field(
        "prompts", description="what is sent, mixed and compared: prompts, or their changes since the common start"
    )
    mode: Literal["clamped", "paper"] = Field("clamped", description="reliability with cosines clamped at 0, or Eq. 11")
    similarity: Literal["prompt", "block", "paper"] = Field(
        "prompt", description="one cosine per prompt, per block, or, as in the paper, over both prompts together"
    )
    most_share: float = Field(
        1.0, ge=0.5, le=1, description="largest weight of one site's prompt in another's mixture; 1 is the paper's"
    )
    order: Literal["synchronous", "sequential"] = Field(
        "synchronous", description="all sites from one snapshot, or one after the other (Algorithm 1)"
    )
    ablation: ABLATIONS = Field(
        "none", description="AS1 no prompts, no sharing; AS2 no sharing; AS3 no image prompt; AS4 no text prompt"
    )
    local_baseline: bool = Field(True, description="also train the same model alone, for the table's row 'alone'")

    @property
    def unit(self) -> Unit:
        """The unit that L_d and the weights compare as one vector."""
        return "upload" if self.similarity == "paper" else self.similarity

    @property
    def sharing(self) -> bool:
        """Whether the prompts travel."""
        return self.ablation not in ("AS1", "AS2")

    @property
    def tuned(self) -> TuningConfig:
        """The tuning of the backbone: the prompts."""
        if self.ablation == "AS1":
            return TuningConfig("classifier")
        without = {"AS3": (IMAGE,), "AS4": (TEXT,)}.get(self.ablation, ())
        return TuningConfig(
            "prompt",
            self.blocks,
            length=self.length,
            without=without,
            joining=self.joining,
            placing=self.placing,
            normed=self.prompt_norm == "states",
            std=self.prompt_std,
        )


@register
class PromptPFL(Alone[PromptPFLConfig]):
    """Personalised prompts, shared by reliability: accuracy times similarity."""

    name = "prompt_pfl"
    config_type = PromptPFLConfig

    def __init__(self, config: PromptPFLConfig, dp: DPSettings | None = None, secagg: Secagg = False) -> None:
        super().__init__(config, dp, secagg)
        if dp is not None and config.loss == "sum":
            raise ConfigError("'loss' as 'sum' weighs by a site's number of rows, which is private: choose 'mean'")

    @property
    def silent(self) -> bool:
        """No: every round releases an accuracy, even where no prompts travel."""
        return False

    @property
    def least_sites(self) -> int:
        """At least two sites if they share prompts, and three if no mixture may be a single other site's prompts."""
        return max(super().least_sites, (2 if self.config.most_share == 1 else 3) if self.config.sharing else 1)

    @property
    def mixture_share(self) -> float:
        """See `Method.mixture_share`."""
        return self.config.most_share if self.config.sharing else 0.0

    @property
    def on_shares(self) -> Mapping[str, OnShares]:
        """The prompts of all training tasks. Shares allow only one order and one kind of weights."""
        if self.config.mode == "paper":
            raise ConfigError("mode 'paper' fails at weights outside of 0..1, which shares hide: use 'clamped'")
        if self.config.order == "sequential":
            raise ConfigError("order 'sequential' shows what one site changed: secure aggregation needs 'synchronous'")
        mix = MixOnShares(self.config.unit, self.config.most_share)
        return {"start": mix, "train": mix} if self.config.sharing else {}

    def exchange(self, shape: BackboneShape) -> Exchange:
        """Up: prompts and validation accuracy; down: shared prompts; at the end: counts of test answers."""
        self.config.check_head(self.config.tuned, shape, shape.embed if self.config.features == "product" else 0)
        shapes = self.prompts(shape) if self.config.sharing else {}
        what = "prompt" if self.config.compared == "prompts" else "prompt less the common start"
        trained = tuple(_prompt(name, size, f"the site's {what}") for name, size in shapes.items())
        mixed = tuple(_prompt(name, size, f"the other sites' mixed {what}") for name, size in shapes.items())
        return Exchange(
            self.name,
            (
                TaskSpec("start", up=(*trained, RELEASED_ACCURACY), down=()),
                TaskSpec("train", up=(*trained, RELEASED_ACCURACY), down=mixed),
                TaskSpec("evaluate", up=counts(*self.scores), down=mixed),
            ),
        )

    @property
    def scores(self) -> tuple[str, ...]:
        """The counts of `evaluate`. The baseline adds the rows that the same model, trained alone, answers right."""
        return (*SCORED, "alone_correct") if self._trains_alone else super().scores

    def prompts(self, shape: BackboneShape) -> Shapes:
        """The shapes of a site's prompts, by name. Raises `ConfigError` if the backbone lacks their towers."""
        if self.config.ablation in ("AS3", "AS4") and not {IMAGE, TEXT} <= shape.towers.keys():
            raise ConfigError("this backbone reads picture and question in one tower: prompts are for both or for none")
        return self.config.tuned.shapes(shape)

    def cost(self, task: str) -> Cost:
        """The local steps, and the accuracy that weighs the site's prompts."""
        if self.dp is None or task == "evaluate":
            return Cost()
        return super().cost(task) + Cost(counts=1)

    def setup(self, site: Site) -> State:
        """New prompts and a new head. All sites start from the same prompts, so that similarities are comparable."""
        self.check_answers(site.data.public_answers)
        generator = torch.Generator().manual_seed(site.seed)
        return {"values": self.model(site).initial(generator, generator)}

    def model(self, site: Site, shared: Values | None = None) -> TunedModel:
        """A site's model. `shared`: the others' mixed prompts as received, if any; they are constants."""
        self.prompts(site.backbone.shape)
        config, start = self.config, self._common_start(site)
        if shared and start:  # Weights sum to 1, so that the mixture of changes is that of prompts less the start.
            shared = {name: start[name] + value for name, value in shared.items()}
        head = config.head_of(self.answer_count(site))
        return TunedModel(site.backbone, config.tuned, head, config.features, shared or None)

    def train(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """A round of local steps. The first round has no shared prompt yet, and so no L_d."""
        shared = tensors_of(received, site.device)
        trainer = self._trainer(site, shared)
        state = self.local(trainer, state, state["values"], round, site.task_seed("train", round))
        right = trainer.right(state["values"], site.data.validate)
        accuracy = np.array(self._accuracy(site, right), np.float32)
        state |= validated(state, right) | trainer.clipped(state)
        return state, {**self.reply(trainer, state), ACCURACY: accuracy}

    def local(self, trainer: Trainer, state: State, start: Values, round: int, seed: int) -> State:
        """L = CE + alpha L_d + beta ||w_mlp||^2 (Eq. 8). Prompts and head have optimisers with memories."""
        loss, penalty = answer_losses(trainer.model), self._penalty(trainer)
        prompts, config = _prompts(start), self.config
        values = {"prompts": prompts, "head": {n: value for n, value in start.items() if n not in prompts}}
        parts = {name: self.own_part(trainer, state, name, each, round) for name, each in values.items() if each}
        for name, part in parts.items():
            (group,) = part.optimizer.param_groups
            group |= {"momentum": config.momentum} if config.optimizer == "sgd" else {}
            group["lr"] *= (
                (config.prompt_rate or config.learning_rate) / config.learning_rate if name == "prompts" else 1
            )
        for (draw,) in trainer.draws(seed):
            trainer.step([*parts.values()], loss, draw, penalty)
        trained = {name: value for part in parts.values() for name, value in part.trained().items()}
        return {**state, "values": trained, **self.memory(parts)}

    def reply(self, trainer: Trainer, state: State) -> Tensors:
        """The site's prompts, or the changes that training made in them, float32 [blocks, tokens, width] each."""
        if not self.config.sharing:
            return {}
        return arrays_of(_prompts(state["values"], self._common_start(trainer.site)))

    def evaluate(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """See `Alone.evaluate`. The baseline adds the rows that the same model, trained alone, answers right."""
        if not self._trains_alone:
            return super().evaluate(site, state, received, round)
        alone = Keeping(self, site, state, received, round).alone
        right = self.without_others().answered(site, alone, {}, site.data.test)
        released = self.answered(site, state, received, site.data.test)
        return scored(state, site.data, released, alone_correct=int(right.sum()))

    def answered(self, site: Site, state: State, received: Tensors, examples: Examples) -> torch.Tensor:
        """See `Alone.answered`. The model uses the shared prompts."""
        return self._trainer(site, tensors_of(received, site.device)).right(state["values"], examples)

    def answering_with(self, site: Site, state: State, received: Values) -> Answering:
        """See `Alone.answering_with`. The model uses the shared prompts."""
        shared = {name: value.to(site.device) for name, value in received.items()}
        return Answering(self.model(site, shared), state["values"], self._space(site))

    def used(self, received: Tensors) -> Tensors:
        """The last shared prompts."""
        return received

    def probe(self, site: Site, state: State, received: Tensors) -> Probe:
        """See `Method.probe`: it trains prompts and head, with the shared prompts as constants."""
        trainer = self._trainer(site, tensors_of(received, site.device))
        loss = answer_losses(trainer.model)
        return Probe(self.trained(state), lambda values, rows: loss(dict(values), trainer.all_rows(rows)))

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

    def _common_start(self, site: Site) -> Values:
        """The prompts that all sites start from, if they compare and send changes; otherwise empty."""
        if self.config.compared == "prompts":
            return {}
        generator = torch.Generator().manual_seed(site.seed)
        initial = self.config.tuned.initial(site.backbone.shape, site.backbone, generator)
        return {name: value.to(site.device) for name, value in initial.items()}

    @property
    def _trains_alone(self) -> bool:
        # Where a site keeps a model, the one trained alone is counted anyway.
        return self.config.local_baseline and self.config.sharing and not self.config.finish_epochs

    @property
    def _reliability(self) -> Reliability:
        return Reliability(self.config.mode, self.config.unit, self.config.most_share)

    def _trainer(self, site: Site, shared: Values) -> Trainer:
        """The trainer of a model with these shared prompts."""
        return Trainer(site, self.model(site, shared), self.config.training, self.answers, self.privacy)

    def _accuracy(self, site: Site, right: torch.Tensor) -> float:
        """The released share of validation rows that are `right`, bool [rows]; 0 without rows.

        Under differential privacy it is the noisy mean over validation patients of the share of their rows.
        """
        if self.dp is None:
            return int(right.sum()) / max(1, len(right))
        _, patient = torch.unique(site.data.validate.patients, return_inverse=True)
        rows = torch.bincount(patient)
        shares = torch.bincount(patient, weights=right.double(), minlength=len(rows)) / rows
        return noisy_share(shares, self.noise.counts, site.randomness)

    def _penalty(self, trainer: Trainer) -> Penalty:
        """The terms of the loss that depend on no data."""
        # Every trainer of this method holds a model that `model` makes.
        config, shared = self.config, cast(TunedModel, trainer.model).shared
        start = self._common_start(trainer.site)
        beside = 1 if config.loss == "mean" else max(1, len(trainer.train_rows))

        def penalty(values: Values) -> torch.Tensor:
            head = [value for name, value in values.items() if name.startswith(HEAD)]
            total = config.beta * weight_penalty(head)
            if shared:
                total = total + config.alpha * prompt_distance(
                    _prompts(values, start), _prompts(shared, start), config.unit
                )
            return total / beside

        return penalty


def _prompts(values: Mapping[str, torch.Tensor], start: Mapping[str, torch.Tensor] = NOTHING) -> Values:
    """The prompts among these values, minus the prompts in `start` if there are any."""
    prompts = {name: value for name, value in values.items() if name.startswith(PROMPT)}
    return {name: value - start[name] if start else value for name, value in prompts.items()}


def _prompt(name: str, shape: tuple[int, ...], meaning: str) -> TensorSpec:
    return TensorSpec(name, shape, "float32", Kind.PARAMETERS, f"{meaning}, [blocks, tokens, width]")
