"""The base of methods whose sites train a model and whose server averages the shared part of it.

One site's noise is too small to protect its patients (see `privacy.mechanisms.shared_gaussian`). So the results from
its rows are used only through the opened sum: no part of the model stays at the site, and each exchange has one batch.
A site sends w - g, as in every stepwise job, in whole grid steps: g is its noisy sum of gradients, and w is the model
that all sites received and round in the same way.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field

from audits import Exchange, Kind, TaskSpec, Tensors, TensorSpec
from medfedvqa.bounds import MOST_SITES, Blocks, PromptLength, Rank, SiteName, Width
from medfedvqa.core.gradient_mixing import RECORDS, Mixer, MixingConfig, check_mixing
from medfedvqa.core.head_options import HeadOptions
from medfedvqa.core.hub import GroupMean, Hub
from medfedvqa.core.method import MethodConfig, State, arrays_of
from medfedvqa.core.on_shares import MeanOnShares, OnShares
from medfedvqa.core.scores import ACCURACY, RELEASED_ACCURACY, VALIDATED, counts
from medfedvqa.core.stepwise import NOISY, RATE, STARTED, Stepwise, StepwiseConfig
from medfedvqa.core.task import Task
from medfedvqa.data import CLOSED_ANSWERS
from medfedvqa.errors import ConfigError
from medfedvqa.models import (
    HEAD,
    NOTHING_TO_TUNE,
    AnswerModel,
    Backbone,
    BackboneShape,
    Shapes,
    TunedModel,
    TuningConfig,
    Values,
)
from medfedvqa.models.tuning import Kind as TuningKind
from medfedvqa.models.tuning import PromptForm
from medfedvqa.training import RowLoss, Site, Trainer
from privacy import DPSettings, Secagg
from privacy.mechanisms import shared_gaussian
from privacy.mechanisms.sampled_gaussian import grid_step
from privacy.secagg.layout import SUM_BITS

LARGEST = 2.0**51
"""Whole numbers below this stay exact in float64 with noise added, whose standard deviation is at most 2^46."""


def check_shared_noise(config: StepwiseConfig, dp: DPSettings | None, secagg: Secagg, alone: bool) -> None:
    """Raises `ConfigError` for a job that uses a site's part of the noise outside of the full sum. `alone`: a part of
    the model stays at a site, or not all sites are in each sum."""
    if dp is None or not dp.is_shared:
        return
    if not secagg:
        raise ConfigError("in clear the server sees each site's own noise: share noise with 'secagg', or not at all")
    if secagg == "crypten":
        raise ConfigError("sites share noise of means under masks: give 'secagg' as 'masks'")
    if not config.is_stepwise or config.local_epochs != 1:
        raise ConfigError("noise is shared only in sums of one step: set 'schedule' to 'stepwise', with one batch each")
    if alone:
        raise ConfigError(
            "shared noise is enough only if every site is in each sum and no trained part stays at a site: leave out "
            "'own', 'mixing', 'unseen' and 'sampled'"
        )


def unit(dp: DPSettings, shapes: Shapes, rate: float) -> float:
    """The change of the model per whole number that a site sends: grid step / expected patients * learning rate."""
    values = sum(math.prod(shape) for shape in shapes.values())
    return grid_step(dp.clip, values, shared_gaussian.GRID_SHARE) / dp.expected_patients * rate


def encoded(start: Values, sums: Mapping[str, torch.Tensor], size: float) -> Tensors:
    """A site's upload, float64: start minus the noisy sum, in whole units of `size`, times 2^-SUM_BITS.

    The power of two makes masked sums exact.
    """
    begun = {name: start[name].detach().double().cpu().div(size).round() for name in sums}
    if not all(value.abs().max() < LARGEST for value in begun.values()):
        raise ConfigError(
            "the model's values are too large for the grid of shared noise: raise 'learning_rate' or 'clip', or train "
            "fewer values; if they grew in training, lower 'learning_rate'"
        )
    whole = {name: value - sums[name].cpu() for name, value in begun.items()}
    return {name: np.ldexp(value.numpy(), -SUM_BITS) for name, value in whole.items()}


def decoded(mean: Tensors, size: float) -> Tensors:
    """The mean of `encoded` uploads in the model's own units, float32."""
    scale = size * 2.0**SUM_BITS
    return {name: (array.astype(np.float64) * scale).astype(np.float32) for name, array in mean.items()}


ROWS = "train_rows"
"""The scalar that weighs a site in a mean by rows: its number of training rows."""


class TunedConfig(MethodConfig, frozen=True):
    """Options of methods that tune a backbone."""

    tuning: TuningKind = Field("adapter", description="what of the backbone is trained")
    blocks: Blocks = Field(None, description="how many of each tower's last blocks are tuned; null is all")
    rank: Rank = Field(16, description="rank of low-rank updates and of low-rank prompts")
    reduction: Width = Field(16, description="a token's width over that of an adapter's bottleneck")
    length: PromptLength = Field(4, description="tokens of a prompt per block, half keys, half values")
    prompt_form: PromptForm = Field(
        "full",
        description="prompts of fewer numbers, for private training: the same tokens in all blocks, or the tokens of "
        "all blocks as a product of two factors of 'rank'",
    )

    @property
    def tuned(self) -> TuningConfig:
        """The tuning of the backbone."""
        return TuningConfig(self.tuning, self.blocks, self.rank, self.reduction, self.length, self.prompt_form)

    def trained_shape(self, shape: BackboneShape) -> BackboneShape:
        """The shape of the network that is trained on a job's backbone: here the backbone itself."""
        return shape

    def trained_backbone(self, site: Site) -> Backbone:
        """The network that a site trains, before its first step; it has the `trained_shape`."""
        return site.backbone


Own = Literal["nothing", "bias", "last", "head", "tuned"]
"""See `AveragingConfig.own`."""
_LAST = f"{HEAD}answers"
_STAYS: Mapping[str, Callable[[str], bool]] = {
    "nothing": lambda name: False,
    "bias": lambda name: name.startswith(_LAST) and name.endswith("bias"),
    "last": lambda name: name.startswith(_LAST),
    "head": lambda name: name.startswith(HEAD),
    "tuned": lambda name: not name.startswith(HEAD),
}
"""Whether a trained tensor stays at the site, by the option `own`."""


class QuestionAnswering(Task):
    """Visual question answering: an answer head on a backbone whose tuned parts alone are trained."""

    def __init__(self, config: "AveragingConfig") -> None:
        self._config = config

    def shapes(self, shape: BackboneShape, answers: int) -> Shapes:
        """See `Task.shapes`."""
        shape = self._config.trained_shape(shape)
        return self._config.tuned.shapes(shape) | self._config.head_of(answers).shapes(shape)

    def check(self, shape: BackboneShape) -> None:
        """See `Task.check`."""
        if not shape.towers:
            raise ConfigError(NOTHING_TO_TUNE)
        self._config.check_head(self._config.tuned, self._config.trained_shape(shape))

    def model(self, site: Site, answers: int) -> TunedModel:
        """See `Task.model`."""
        config = self._config
        return TunedModel(config.trained_backbone(site), config.tuned, config.head_of(answers))


class AveragingConfig(MixingConfig, TunedConfig, HeadOptions, frozen=True):
    """Options of all averaging methods."""

    own: Own = Field(
        "nothing",
        description="what is trained and stays at the site: nothing, the bias of the answer head's last layer, that "
        "layer, the whole head, or what is tuned of the backbone, such as prompts",
    )
    weighting: Literal["rows", "uniform"] = Field("rows", description="the weight of a site in the mean")
    evaluated: Literal["shared", "personal"] = Field(
        "shared", description="test the last mean, or the site's own model before it was averaged"
    )
    unseen: tuple[SiteName, ...] = Field(
        (), max_length=MOST_SITES, description="sites that never train, and test the last mean on their rows"
    )
    sampled: int | None = Field(
        None, ge=1, le=MOST_SITES, description="sites that train in a round, drawn anew for each round; null is all"
    )

    @property
    def task(self) -> Task:
        """The task that the sites learn."""
        return QuestionAnswering(self)


Config = TypeVar("Config", bound=AveragingConfig)


class Averaging(Stepwise[Config]):
    """Local training, then a mean of the shared part. Without overrides this is FedAvg (B. McMahan et al., 2017)."""

    compares_features: ClassVar[bool] = False
    """Whether the method compares features, which never change where only the answer head is trained."""

    def __init__(self, config: Config, dp: DPSettings | None = None, secagg: Secagg = False) -> None:
        super().__init__(config, dp, secagg)
        if self._shares_answers and config.answers == "site":
            raise ConfigError("a shared head has one answer space: give 'answers' a list or a bundled list's name")
        if config.finish_epochs and config.unseen:
            raise ConfigError("sites in 'unseen' never train: leave out 'finish_epochs'")
        if dp is not None and config.weighting == "rows":
            raise ConfigError("the number of rows is not released under differential privacy: use weighting 'uniform'")
        if self.compares_features and config.tuning == "classifier":
            raise ConfigError(f"'{self.name}' compares features, which tuning 'classifier' never changes: tune more")
        if config.unseen and not (self.shares and config.own == "nothing"):
            raise ConfigError(
                "sites in 'unseen' test the shared model: take a method that shares its head, and 'own' as 'nothing'"
            )
        if config.sampled is not None:
            self._check_sampling()
        check_mixing(config, dp, secagg, training=not config.unseen and config.sampled is None)
        if config.is_stepwise and config.evaluated == "personal":
            raise ConfigError("in a stepwise job no site has a model before the mean: leave out 'evaluated'")
        alone = config.own != "nothing" or config.mixing != "none" or config.unseen or config.sampled is not None
        check_shared_noise(config, dp, secagg, bool(alone))
        if config.own == "tuned" and config.tuning == "classifier":
            raise ConfigError("tuning 'classifier' trains the answer head alone: leave out 'own', or tune more")
        if self.steps_at_server:
            self._check_server_step()
        self.task.check_answers(self.answers)

    @property
    def task(self) -> Task:
        """The task that the sites learn, with or without differential privacy as in this job."""
        return self.config.task.under(self.dp is not None)

    @property
    def answers(self) -> tuple[str, ...] | None:
        """The job's list of answers. A shared head takes the bundled list if the job has none."""
        return self.config.listed or (CLOSED_ANSWERS if self._shares_answers else None)

    @property
    def shares(self) -> bool:
        """Whether the sites share any part of the model."""
        return self.config.own != "head" or self.config.tuning != "classifier"

    @property
    def has_personal_models(self) -> bool:
        """Whether sites test the mean and also have models from before it, which can be tested separately."""
        return self.config.evaluated == "shared" and not self.config.is_stepwise

    @property
    def mixture_share(self) -> float:
        """See `Method.mixture_share`. With weights by reliability, a mixture may be one other site's values."""
        return 1.0 if self.config.mixing == "reliability" else 0.0

    @property
    def silent(self) -> bool:
        """See `Alone.silent`."""
        return not self.shares

    @property
    def on_shares(self) -> Mapping[str, OnShares]:
        """See `Method.on_shares`: every training task ends in a mean."""
        weight, whole = ROWS if self.config.weighting == "rows" else None, self.dp is not None and self.dp.is_shared
        how = MeanOnShares(weight, lasting=self.config.is_stepwise, alike=True, whole=whole)
        return {"start": how, "train": how} if self.shares else {}

    @property
    def code(self) -> tuple[object, ...]:
        """See `Method.code`."""
        return (*super().code, *self.task.code)

    @property
    def averages(self) -> bool:
        """See `Method.averages`. A mixture by reliability compares single uploads."""
        return self.shares and self.config.mixing != "reliability"

    @property
    def rejoins(self) -> bool:
        """See `Method.rejoins`. Every round starts from the mean, unless the method overrides `start`."""
        return type(self).start is Averaging.start

    @property
    def bystanders(self) -> int:
        """The number of sites that only test."""
        return len(self.config.unseen)

    def shared(self, shape: BackboneShape) -> Shapes:
        """The shapes of the averaged tensors, by name."""
        trained, stays = self.task.shapes(shape, len(self.answers or ())), _STAYS[self.config.own]
        return {name: size for name, size in trained.items() if not stays(name)}

    def exchange(self, shape: BackboneShape) -> Exchange:
        """The trained shared part goes up, its mean comes down, and counts of test answers go up at the end."""
        self.task.check(shape)
        up = tuple(self._uploaded(_parameters(name, size, "the site's")) for name, size in self.shared(shape).items())
        whose = "the server's" if self.steps_at_server else "the mean of all sites'"
        down = tuple(_parameters(name, size, whose) for name, size in self.shared(shape).items())
        if up and self.config.weighting == "rows":
            up = (*up, *counts(ROWS))
        if self.config.mixing == "reliability":
            up = (*up, RELEASED_ACCURACY)
        return Exchange(
            self.name,
            (TaskSpec("start", up, ()), TaskSpec("train", up, down), TaskSpec("evaluate", counts(*self.scores), down)),
        )

    def setup(self, site: Site) -> State:
        """Initial values. The shared part starts equal at all sites; a local head starts from the site's own seed."""
        self.check_answers(site.data.public_answers)
        model = self.model(site)
        head_seed = site.task_seed("setup", 0) if self.config.own == "head" else site.seed
        values = model.initial(torch.Generator().manual_seed(site.seed), torch.Generator().manual_seed(head_seed))
        return {"values": values}

    def train(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """A round that starts from the last mean. Raises `ConfigError` at a site that only tests."""
        if site.name in self.config.unseen:
            raise ConfigError("this site was asked to train in a job that only tests at it: end the job")
        return super().train(site, state, received, round)

    def reply(self, trainer: Trainer, state: State) -> Tensors:
        """The site's trained values of the shared part."""
        shared = self.shared(trainer.site.backbone.shape)
        if self.dp is not None and self.dp.is_shared:
            return encoded(state[STARTED], state[NOISY], unit(self.dp, shared, state[RATE]))
        reply = arrays_of({name: state["values"][name] for name in shared})
        if shared and self.config.weighting == "rows":
            reply[ROWS] = np.array(len(trainer.train_rows), np.int64)
        if self.config.mixing == "reliability":
            reply[ACCURACY] = state[VALIDATED][-1].numpy().astype(np.float32)
        return reply

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        """Rounds of training and averaging, then the evaluation. Raises `ConfigError` if no site is left to train."""
        weight = ROWS if self.config.weighting == "rows" else None
        training = [site for site in hub.sites if site not in self.config.unseen]
        if not training or len(hub.sites) - len(training) < len(self.config.unseen):
            raise ConfigError("'unseen' names a site that does not take part, or leaves none to train")
        mixer, rounds = Mixer(self.config, hub.sites, self.secagg, self.server_step), self.config.rounds
        for number in hub.rounds(rounds):
            task = "start" if number == 1 else "train"
            first = hub.model if number == 1 else {}
            down = {site: mixer.model(site) or first for site in self.drawn(hub, number, training)}
            if not self.shares:
                hub.collect(task, down)
                continue
            weights = mixer.take(self._read(hub.means(task, mixer.groups, down, weight), number))
            if number % max(1, rounds // RECORDS) == 0 or number == rounds:
                hub.weighed(weights)
        hub.model = mixer.shared
        return hub.collect("evaluate", {site: mixer.model(site) for site in hub.sites})

    def _uploaded(self, spec: TensorSpec) -> TensorSpec:
        """The declaration of an uploaded tensor of the model. With shared noise, it holds whole numbers."""
        if self.dp is None or not self.dp.is_shared:
            return spec
        return replace(spec, dtype="float64", meaning=f"{spec.meaning}, in whole steps of the noise's grid")

    def _read(self, means: dict[str, GroupMean], round: int) -> dict[str, GroupMean]:
        """The means in the model's own units: with shared noise, decoded from whole numbers."""
        if self.dp is None or not self.dp.is_shared:
            return means
        shapes = {name: array.shape for mean in means.values() for name, array in mean.tensors.items()}
        size = unit(self.dp, shapes, self.rate(round))
        return {group: mean._replace(tensors=decoded(mean.tensors, size)) for group, mean in means.items()}

    def drawn(self, hub: Hub, round: int, sites: Sequence[str]) -> tuple[str, ...]:
        """The sites that train in this round: all, or `sampled` of them, uniformly and without replacement.

        The draw depends only on the job's seed and the round, so a restarted server draws the same sites. Raises
        `ConfigError` if there are fewer sites.
        """
        count = len(sites) if self.config.sampled is None else self.config.sampled
        if count > len(sites):
            raise ConfigError(f"'sampled' is {count}, and {len(sites)} sites train: give at most as many")
        digest = hashlib.sha256(f"{hub.seed}/sampled/{round}".encode()).digest()
        order = torch.randperm(len(sites), generator=torch.Generator().manual_seed(int.from_bytes(digest[:6], "big")))
        return tuple(sites[place] for place in sorted(order[:count].tolist()))

    def _check_sampling(self) -> None:
        """Raises `ConfigError` for a job with `sampled` in which sites cannot sit out rounds."""
        if self.silent:
            raise ConfigError(f"with these options the sites of '{self.name}' share nothing: leave out 'sampled'")
        if not self.rejoins:
            raise ConfigError(f"a site of '{self.name}' must take part in every round: leave out 'sampled'")
        if self.secagg:
            raise ConfigError(
                "'sampled' does not run with secure aggregation: sums of rounds whose sites differ by one would show "
                "the upload of that site"
            )

    def _check_server_step(self) -> None:
        """Raises `ConfigError` for a method with a server step in a job whose server never learns the mean."""
        if not self.shares:
            raise ConfigError(
                f"the server of '{self.name}' steps towards the sites' mean, and with these options they share none: "
                "give 'own' as 'nothing', or 'tuning' as more than 'classifier'"
            )
        if self.secagg and any(isinstance(how, MeanOnShares) and how.hidden for how in self.on_shares.values()):
            raise ConfigError(
                f"the server of '{self.name}' steps towards the sites' mean, which with this method's secure "
                "aggregation only the sites know: leave out secure aggregation, or choose a method without such a step"
            )

    def model(self, site: Site) -> AnswerModel:
        """The model that a site trains."""
        return self.task.model(site, self.answer_count(site))

    def model_of(self, site: Site, tuning: TuningConfig) -> TunedModel:
        """A model for the site's answer space."""
        return TunedModel(self.config.trained_backbone(site), tuning, self.config.head_of(self.answer_count(site)))

    def row_loss(self, trainer: Trainer, state: State, start: Values) -> RowLoss:
        """See `Alone.row_loss`: the task's."""
        return self.task.row_loss(trainer.model)

    def tested(self, site: Site, state: State, received: Values) -> Values:
        """The values that the site tests: the last mean or, by the option `evaluated`, the site's own before it was
        averaged.
        """
        values: Values = state["values"]
        if self.config.evaluated == "shared" or site.name in self.config.unseen:
            return values | received
        return dict(values)

    @property
    def _shares_answers(self) -> bool:
        """Whether any part of the answers' layer is shared, so that all sites need the same answers."""
        return self.config.own in ("nothing", "bias", "tuned")


def _parameters(name: str, shape: tuple[int, ...], whose: str) -> TensorSpec:
    part = "answer head" if name.startswith(HEAD) else "tuned part"
    return TensorSpec(name, shape, "float32", Kind.PARAMETERS, f"{whose} {part}")
