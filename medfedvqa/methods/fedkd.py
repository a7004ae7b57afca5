"""FedKD: a mentor stays at each site, a small mentee travels, both learn from each other (C. Wu et al., 2022).

"Communication-efficient federated learning via knowledge distillation", Nature Communications 13, 2032.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from medfedvqa.bounds import Blocks, Weight
from medfedvqa.core.averaging import Averaging, AveragingConfig
from medfedvqa.core.knowledge_preserving import Outputs, outputs
from medfedvqa.core.method import State
from medfedvqa.core.registry import register
from medfedvqa.data import Examples
from medfedvqa.models import Depth, TunedModel, TuningConfig, Values, divergence
from medfedvqa.models.tuning import Kind as TuningKind
from medfedvqa.training import RowLoss, Rows, Site, Trainer

MENTOR = "mentor."
"""Before the names of the mentor's values, in what a site keeps."""


class FedKDConfig(AveragingConfig, frozen=True):
    """Options; those of FedAvg describe the mentee, and `evaluated` 'personal' tests the mentor."""

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
        """A mentee as all other sites', a mentor of the site's own."""
        values = super().setup(site)["values"]
        generator = torch.Generator().manual_seed(site.task_seed("mentor", 0))
        mentor = self.mentor(site).initial(generator, generator)
        return {"values": values | {MENTOR + name: value for name, value in mentor.items()}}

    def row_loss(self, trainer: Trainer, state: State, start: Values) -> RowLoss:
        """Both at once: one gradient, of the sum of both losses."""
        config, model = self.config, self.mentor(trainer.site)

        def loss(values: Values, rows: Rows) -> torch.Tensor:
            mentee = outputs(trainer.model, values, rows, rows.chance)
            mentor = outputs(model, _mentors(values), rows, rows.chance and rows.chance.apart(MENTOR))
            return mutual(mentee, mentor, rows.answers, config.distil, config.form)

        return loss

    def right(self, trainer: Trainer, values: Values, examples: Examples) -> torch.Tensor:
        """By the mentee, or by the mentor where the site's own model is tested."""
        if self.config.evaluated == "shared":
            return super().right(trainer, values, examples)
        return trainer.right(_mentors(values), examples, self.mentor(trainer.site))

    def mentor(self, site: Site) -> TunedModel:
        """The model that stays."""
        config = self.config
        tuning = TuningConfig(config.mentor, config.mentor_blocks, config.rank, config.reduction, config.length)
        return self.model_of(site, tuning)

    def depth(self, site: Site) -> Depth:
        """The deeper of both, tower by tower."""
        one, other = self.model(site).depth, self.mentor(site).depth
        return {tower: max(one[tower], other[tower]) for tower in one}


def mutual(
    mentee: Outputs, mentor: Outputs, answers: torch.Tensor, weight: float, form: Literal["paper", "reference"]
) -> torch.Tensor:
    """Both models' losses of each row together, [rows]: what they teach each other is divided by how wrong both are.

    `reference`: as the authors' code, where nothing is held constant and the divergence is a mean over answers.
    """
    of_mentee, of_mentor = (F.cross_entropy(each.logits, answers, reduction="none") for each in (mentee, mentor))
    losses = of_mentee + of_mentor
    if not weight:
        return losses
    taught = lesson(mentor, mentee, form) + lesson(mentee, mentor, form)
    unsure = losses.detach() if form == "paper" else losses
    return losses + weight * taught / unsure.clamp(min=_LEAST)


def lesson(teacher: Outputs, student: Outputs, form: Literal["paper", "reference"]) -> torch.Tensor:
    """Divergence of answers plus mean squared distance of features, [rows]."""
    if form == "paper":
        teacher = Outputs(teacher.features.detach(), teacher.logits.detach())
    answers = divergence(teacher.logits, student.logits) / (1 if form == "paper" else teacher.logits.shape[1])
    return answers + (teacher.features - student.features).square().mean(dim=1)


def _mentors(values: Values) -> Values:
    return {name.removeprefix(MENTOR): value for name, value in values.items() if name.startswith(MENTOR)}


_LEAST = 1e-2
"""What both models' losses on a row count at least: where both are sure, a quotient by less would drown all else."""
