"""FedKD: a mentor stays at each site, a small mentee travels, both learn from each other (C. Wu et al., 2022).

"Communication-efficient federated learning via knowledge distillation", Nature Communications 13, 2032.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from medfedvqa.bounds import Blocks, Weight
from medfedvqa.core.averaging import Averaging, AveragingConfig
from medfedvqa.core.method import Answering, State
from medfedvqa.core.registry import register
from medfedvqa.data import Examples
from medfedvqa.models import Depth, TunedModel, TuningConfig, Values, divergence
from medfedvqa.models.tuning import Kind as TuningKind
from medfedvqa.papers.knowledge_preserving import Outputs, outputs
from medfedvqa.training import RowLoss, Rows, Site, Trainer

MENTOR = "mentor."
"""The prefix of the names of the mentor's values in a site's state."""


class FedKDConfig(AveragingConfig, frozen=True):
    """Options. Those of FedAvg describe the mentee, and `evaluated` 'personal' tests the mentor."""

    mentor: TuningKind = Field("blocks", description="what the mentor trains beside its answer head")
    mentor_blocks: Blocks = Field(3, description="as `blocks`, of the mentor")
    distil: Weight = Field(1.0, description="weight of what they learn from each other; 0 is FedAvg")
    form: Literal["paper", "reference"] = Field(
        "paper", description="whether each learns from the other, held constant, or all gradients flow into both"
    )


@register
class FedKD(Averaging[FedKDConfig]):
    """FedAvg of mentees, each beside a mentor, with adaptive mutual distillation."""

    name = "fedkd"
    config_type = FedKDConfig

    def setup(self, site: Site) -> State:
        """A mentee with the same initial values at all sites, and the site's own mentor."""
        values = super().setup(site)["values"]
        generator = torch.Generator().manual_seed(site.task_seed("mentor", 0))
        mentor = self.mentor(site).initial(generator, generator)
        return {"values": values | {MENTOR + name: value for name, value in mentor.items()}}

    def row_loss(self, trainer: Trainer, state: State, start: Values) -> RowLoss:
        """The sum of both models' losses, so that one gradient trains both."""
        config, model = self.config, self.mentor(trainer.site)

        def loss(values: Values, rows: Rows) -> torch.Tensor:
            mentee = outputs(trainer.model, values, rows, rows.chance)
            mentor = outputs(model, _mentors(values), rows, rows.chance and rows.chance.apart(MENTOR))
            return mutual(mentee, mentor, rows.answers, config.distil, config.form)

        return loss

    def right(self, trainer: Trainer, values: Values, examples: Examples) -> torch.Tensor:
        """See `Alone.right`: the mentee answers, or the mentor if `evaluated` is 'personal'."""
        if self.config.evaluated == "shared":
            return super().right(trainer, values, examples)
        return trainer.right(_mentors(values), examples, self.mentor(trainer.site))

    def answering_with(self, site: Site, state: State, received: Values) -> Answering:
        """See `Alone.answering_with`: the model that `right` tests."""
        mentee = super().answering_with(site, state, received)
        if self.config.evaluated == "shared":
            return mentee
        return Answering(self.mentor(site), _mentors(mentee.values), mentee.answers)

    def mentor(self, site: Site) -> TunedModel:
        """The model that stays at the site."""
        config = self.config
        tuning = TuningConfig(config.mentor, config.mentor_blocks, config.rank, config.reduction, config.length)
        return self.model_of(site, tuning)

    def depth(self, site: Site) -> Depth:
        """The larger depth of both models, tower by tower."""
        mentee, mentor = self.model(site).depth, self.mentor(site).depth
        return {tower: max(mentee[tower], mentor[tower]) for tower in mentee}


def mutual(
    mentee: Outputs, mentor: Outputs, answers: torch.Tensor, weight: float, form: Literal["paper", "reference"]
) -> torch.Tensor:
    """The sum of both models' losses of each row, [rows]. Mutual distillation is divided by the sum of their errors.

    `reference`: the authors' code, which holds nothing constant and takes the divergence's mean over answers.
    """
    of_mentee, of_mentor = (F.cross_entropy(each.logits, answers, reduction="none") for each in (mentee, mentor))
    losses = of_mentee + of_mentor
    if not weight:
        return losses
    distilled = distillation(mentor, mentee, form) + distillation(mentee, mentor, form)
    errors = losses.detach() if form == "paper" else losses
    return losses + weight * distilled / errors.clamp(min=_LEAST)


def distillation(teacher: Outputs, student: Outputs, form: Literal["paper", "reference"]) -> torch.Tensor:
    """The divergence of answers plus the mean squared distance of features, [rows]."""
    if form == "paper":
        teacher = Outputs(teacher.features.detach(), teacher.logits.detach())
    answers = divergence(teacher.logits, student.logits) / (1 if form == "paper" else teacher.logits.shape[1])
    return answers + (teacher.features - student.features).square().mean(dim=1)


def _mentors(values: Values) -> Values:
    return {name.removeprefix(MENTOR): value for name, value in values.items() if name.startswith(MENTOR)}


_LEAST = 1e-2
"""The smallest divisor. If both models are sure, a smaller one would let this term dominate all others."""
