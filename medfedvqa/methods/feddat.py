"""FedDAT: a shared adapter, and a teacher made of its frozen copy and a local adapter (H. Chen et al., AAAI 2024).

Only the shared adapter A_s travels. At each site, a step of A_s learns from the answers and from the teacher, then a
step of the local adapter A_c learns from the answers and from the student as it was before its own step.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from medfedvqa.bounds import MOST_ROUNDS, Temperature, Weight
from medfedvqa.core.averaging import Averaging, AveragingConfig
from medfedvqa.core.method import State
from medfedvqa.core.registry import register
from medfedvqa.errors import ConfigError
from medfedvqa.models import HEAD, OTHER, AnswerModel, Values, divergence
from medfedvqa.training import Rows, Site, Trainer
from privacy import Chance, DPSettings

LOCAL, FROZEN = "local", "frozen"
"""What a site keeps beside its values: the local adapter, and the shared one as the last round began with it."""


class FedDATConfig(AveragingConfig, frozen=True):
    """Options; defaults follow the authors' code where it and the paper differ."""

    tuning: Literal["adapter"] = Field("adapter", description="what is trained beside the answer head")
    head: Literal["shared", "local"] = Field("local", description="whether the answer head is averaged or stays")
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
class FedDAT(Averaging[FedDATConfig]):
    """Averaged adapters, each taught by a teacher that stays at its site."""

    name = "feddat"
    config_type = FedDATConfig

    def __init__(self, config: FedDATConfig, dp: DPSettings | None = None, secagg: bool = False) -> None:
        super().__init__(config, dp, secagg)
        if config.ablation == "local" and config.inference != "shared":
            raise ConfigError("without a local adapter there is none to test with: use inference 'shared'")

    @property
    def passes(self) -> int:
        """Student and teacher each look at the data; without a local adapter, the teacher has nothing to learn."""
        return 1 if self.config.ablation == "local" else 2

    def setup(self, site: Site) -> State:
        """As for all, and a local adapter."""
        state = super().setup(site)
        seed = site.task_seed(LOCAL, 0) if self.config.local_adapter == "own" else site.seed + 1
        generator = torch.Generator().manual_seed(seed)
        local = self.config.tuned.initial(site.backbone.shape, site.backbone, generator)
        return {**state, LOCAL: {name: value.to(site.device) for name, value in local.items()}}

    def local(self, trainer: Trainer, state: State, start: Values, round: int, seed: int) -> State:
        """Per batch, a step of the shared adapter and the head, then one of the local adapter and the head."""
        config, model = self.config, trainer.model
        frozen = {name: value for name, value in start.items() if not name.startswith(HEAD)}
        answering = {name: value for name, value in start.items() if name.startswith(HEAD)}
        shared, head, own = (trainer.part(values, round) for values in (frozen, answering, state[LOCAL]))
        alpha, beta = config.weights(round)
        before: Values = {}

        # Dropout of the teacher and in targets has a stream of its own: the student's is that of plain averaging.
        def student(values: Values, rows: Rows) -> torch.Tensor:
            teacher = self.teacher(frozen, own.values) | head.values
            return self._losses(model, values, rows, alpha, teacher, rows.chance)

        def taught(values: Values, rows: Rows) -> torch.Tensor:
            trained = self.teacher(frozen, values) | head.values
            return self._losses(model, trained, rows, beta, before, _teaching(rows))

        for draw, *others in trainer.draws(seed, self.passes):
            before = shared.trained() | head.trained()
            trainer.step([shared, head], student, draw)
            for other in others:
                trainer.step([own, head] if config.head_update == "both" else [own], taught, other)
        return {"values": shared.trained() | head.trained(), LOCAL: own.trained(), FROZEN: frozen}

    def teacher(self, frozen: Values, local: Values) -> Values:
        """The Dual-Adapter Teacher (Eq. 4); `local` may hold more than its adapter, which stays as it is."""
        if self.config.ablation == "local":
            return frozen
        if self.config.ablation == "frozen":
            return local
        return local | {OTHER + name: value for name, value in frozen.items()}

    def tested(self, site: Site, state: State, received: Values) -> Values:
        """See `Averaging.tested`; `inference` chooses the adapter."""
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
        """Of each row: from its answer, and with `weight` from what the model with the `other` values answers.

        `chance`: what the dropout of the model that is trained draws from.
        """
        config, logits = self.config, model.logits(values, rows.batch, chance)
        if config.loss == "ce":
            losses = F.cross_entropy(logits, rows.answers, reduction="none")
        else:
            right = F.one_hot(rows.answers, logits.shape[1]).to(logits)
            losses = F.binary_cross_entropy_with_logits(logits, right, reduction="none").sum(dim=1)
        if not weight:
            return losses
        with torch.no_grad():
            target = model.logits(other, rows.batch, _teaching(rows))
        pair = (logits, target) if config.direction == "paper" else (target, logits)
        return losses + weight * divergence(*pair, config.temperature)


def _teaching(rows: Rows) -> Chance | None:
    """What dropout draws from in the teacher, and in what the trained model is held against."""
    return rows.chance and rows.chance.apart("teacher")
