"""FedDAT: a shared adapter, and a teacher made of its frozen copy and a local adapter (H. Chen et al., AAAI 2024).

Only the shared adapter A_s travels. At each site, a step of A_s learns from the answers and from the teacher, then a
step of the local adapter A_c learns from the answers and from the student as it was before its own step.

At a site of captions projections into a common space stand in the head's place. There the contrast of a batch's
pictures and captions replaces the cross-entropy, and the distillations compare, for each picture, the softmax of its
similarities to the batch's captions: without answers the paper's logits are not defined.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from medfedvqa.bounds import MOST_ROUNDS, Temperature, Weight
from medfedvqa.core.averaging import AveragingConfig
from medfedvqa.core.method import State
from medfedvqa.core.registry import register
from medfedvqa.errors import ConfigError
from medfedvqa.models import HEAD, OTHER, AnswerModel, PairedModel, Values, check_apart, divergence
from medfedvqa.models.paired import PROJECTION
from medfedvqa.papers.caption_sites import CaptionSites, contrast_of, similarities
from medfedvqa.training import Rows, Site, Trainer
from privacy import Chance, DPSettings, Secagg

LOCAL, FROZEN = "local", "frozen"
"""Keys of a site's state: the local adapter, and the shared adapter at the start of the last round."""
ANSWERING = (HEAD, PROJECTION)
"""What names begin with of values that are no adapter: the answer head's, and the projections of a site of captions."""
SPACE, CONTRAST = 256, 0.07
"""At a site of captions: the width of the common space, and the temperature of the contrast. Both are CreamFL's."""


class FedDATConfig(AveragingConfig, frozen=True):
    """Options; defaults follow the authors' code where it and the paper differ."""

    tuning: Literal["adapter"] = Field("adapter", description="what is trained beside the answer head")
    own: Literal["nothing", "head"] = Field("head", description="whether the answer head stays or is averaged")
    weighting: Literal["rows", "uniform"] = Field(
        "uniform", description="the weight of a site in the mean (paper: rows in Eq. 3, uniform in Algorithm 1)"
    )
    alpha: Weight = Field(1.0, description="weight of the teacher in the student's loss (code: 1)")
    beta: Weight = Field(1.0, description="weight of the student in the teacher's loss (code: 1)")
    ramp_rounds: int = Field(
        0, ge=0, le=MOST_ROUNDS, description="rounds in which alpha and beta grow exponentially; 0 is constant"
    )
    temperature: Temperature = Field(3.0, description="of both distillations (code: 3; paper: unsaid)")
    direction: Literal["reference", "paper"] = Field(
        "reference", description="KL(teacher || student), as the code has it, or the paper's KL(student || teacher)"
    )
    loss: Literal["ce", "bce"] = Field("ce", description="cross-entropy, or the code's binary one summed over answers")
    head_update: Literal["both", "student_only"] = Field("both", description="whether the teacher trains the head, too")
    local_adapter: Literal["own", "common"] = Field("own", description="A_c begins differently at each site, or alike")
    ablation: Literal["none", "frozen", "local", "mkd"] = Field(
        "none", description="leave out the teacher's frozen adapter, its local one, or the student's part in its loss"
    )
    inference: Literal["shared", "local", "both"] = Field(
        "shared", description="test with A_s, with A_c, or with the teacher: A_c and the last round's frozen adapter"
    )

    def weights(self, round: int) -> tuple[float, float]:
        """alpha and beta in this round."""
        grown = min(1.0, round / self.ramp_rounds) if self.ramp_rounds else 1.0
        ramp = math.exp(-5 * (1 - grown) ** 2)
        return self.alpha * ramp, 0.0 if self.ablation == "mkd" else self.beta * ramp


@register
class FedDAT(CaptionSites[FedDATConfig]):
    """Averaged adapters, each taught by a teacher that stays at its site."""

    name = "feddat"
    config_type = FedDATConfig

    def __init__(self, config: FedDATConfig, dp: DPSettings | None = None, secagg: Secagg = False) -> None:
        super().__init__(config, dp, secagg)
        if config.ablation == "local" and config.inference != "shared":
            raise ConfigError("without a local adapter a site can only test the shared one: use inference 'shared'")

    @property
    def passes(self) -> int:
        """Student and teacher each take a step. Without a local adapter, the teacher has nothing to train."""
        return 1 if self.config.ablation == "local" else 2

    def check_kind(self, site: Site) -> None:
        """See `CaptionSites.check_kind`. A site of captions has no head to share, and needs a tower for texts."""
        super().check_kind(site)
        if site.data.captioned:
            check_apart(site.backbone.shape)
            if self.config.own != "head":
                raise ConfigError("a site of captions has no answer head to share: give 'own' as 'head'")

    def model(self, site: Site) -> AnswerModel:
        """See `Averaging.model`."""
        return self.paired(site) if site.data.captioned else super().model(site)

    def paired(self, site: Site) -> PairedModel:
        """The model of a site of captions, whose answer head is not used."""
        plain = self.model_of(site, self.config.tuned)
        return PairedModel(plain.backbone, plain.tuning, plain.head, space=SPACE)

    def setup(self, site: Site) -> State:
        """The state of `Averaging`, and a local adapter."""
        state = super().setup(site)
        seed = site.task_seed(LOCAL, 0) if self.config.local_adapter == "own" else site.seed + 1
        generator = torch.Generator().manual_seed(seed)
        local = self.config.tuned.initial(site.backbone.shape, site.backbone, generator)
        frozen = {name: value for name, value in state["values"].items() if not name.startswith(HEAD)}
        if site.data.captioned:
            state["values"] |= self.projection(site)
        return {**state, LOCAL: {name: value.to(site.device) for name, value in local.items()}, FROZEN: frozen}

    def local(self, trainer: Trainer, state: State, start: Values, round: int, seed: int) -> State:
        """For each batch, a step of the shared adapter and the head, then a step of the local adapter and the head."""
        config, model = self.config, trainer.model
        frozen = {name: value for name, value in start.items() if not name.startswith(ANSWERING)}
        answer_head = {name: value for name, value in start.items() if name.startswith(ANSWERING)}
        shared, own = self.shared_part(trainer, frozen, round), {LOCAL: state[LOCAL]}
        if config.own == "head":
            own["head"] = answer_head
        kept = {name: self.own_part(trainer, state, name, values, round) for name, values in own.items()}
        local, head = kept[LOCAL], kept.get("head") or self.shared_part(trainer, answer_head, round)
        alpha, beta = config.weights(round)
        before: Values = {}

        # The student draws dropout as in plain averaging; the teacher and all targets draw from another stream.
        def student(values: Values, rows: Rows) -> torch.Tensor:
            teacher = self.teacher(frozen, local.values) | head.values
            return self._losses(model, values, rows, alpha, teacher, rows.chance)

        def tutor(values: Values, rows: Rows) -> torch.Tensor:
            teacher = self.teacher(frozen, values) | head.values
            return self._losses(model, teacher, rows, beta, before, _teacher_chance(rows))

        for draw, *others in trainer.draws(seed, self.passes):
            before = shared.trained() | head.trained()
            trainer.step([shared, head], student, draw)
            for other in others:
                trainer.step([local, head] if config.head_update == "both" else [local], tutor, other)
        trained = {"values": shared.trained() | head.trained(), LOCAL: local.trained(), FROZEN: frozen}
        return {**state, **trained, **self.memory(kept)}

    def teacher(self, frozen: Values, local: Values) -> Values:
        """The Dual-Adapter Teacher (Eq. 4). Values of `local` outside of its adapter pass through unchanged."""
        if self.config.ablation == "local":
            return frozen
        if self.config.ablation == "frozen":
            return local
        return local | {OTHER + name: value for name, value in frozen.items()}

    def tested(self, site: Site, state: State, received: Values) -> Values:
        """See `Averaging.tested`. The option `inference` chooses the adapter."""
        values = super().tested(site, state, received)
        match self.config.inference:
            case "local":
                local: Values = state[LOCAL]
                return values | local
            case "both":
                return values | self.teacher(state[FROZEN], state[LOCAL])
        return values

    def _losses(
        self, model: AnswerModel, values: Values, rows: Rows, weight: float, other: Values, chance: Chance | None
    ) -> torch.Tensor:
        """The loss of each row: from its answer, and with `weight` from the model with the `other` values.

        `chance`: the random source of dropout in the model that is trained.
        """
        config, logits = self.config, _logits(model, values, rows, chance)
        if isinstance(model, PairedModel):
            losses = contrast_of(logits, rows.answers)
        elif config.loss == "ce":
            losses = F.cross_entropy(logits, rows.answers, reduction="none")
        else:
            right = F.one_hot(rows.answers, logits.shape[1]).to(logits)
            losses = F.binary_cross_entropy_with_logits(logits, right, reduction="none").sum(dim=1)
        if not weight:
            return losses
        with torch.no_grad():
            target = _logits(model, other, rows, _teacher_chance(rows))
        pair = (logits, target) if config.direction == "paper" else (target, logits)
        return losses + weight * divergence(*pair, config.temperature)


def _logits(model: AnswerModel, values: Values, rows: Rows, chance: Chance | None) -> torch.Tensor:
    """The logits of the answers, [rows, answers]; at a site of captions, of the batch's captions, [rows, rows]."""
    if isinstance(model, PairedModel):
        return similarities(model, values, rows, CONTRAST)
    return model.logits(values, rows.batch, chance)


def _teacher_chance(rows: Rows) -> Chance | None:
    """The random source of dropout in the teacher and in targets."""
    return rows.chance and rows.chance.apart("teacher")
