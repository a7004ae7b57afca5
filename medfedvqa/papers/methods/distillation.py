"""The four distillation losses that FedP3 compares itself with: ST, SP, CRD and DKD (M. Lao et al., ACM MM 2023, 4.3).

Weights and temperatures are those of the papers, as the library mdistiller has them; FedP3's paper gives none.
"""

import torch
import torch.nn.functional as F
from pydantic import Field

from medfedvqa.bounds import Temperature, Weight
from medfedvqa.core.registry import register
from medfedvqa.models import divergence
from medfedvqa.papers.knowledge_preserving import Outputs, Preserving, PreservingConfig
from medfedvqa.training import Rows


class SoftTargetsConfig(PreservingConfig, frozen=True):
    """Options of the method `soft_targets`."""

    temperature: Temperature = Field(2.0, description="of both models' answers (tau)")


@register
class SoftTargets(Preserving[SoftTargetsConfig]):
    """Soft targets (G. Hinton et al., 2015): tau^2 KL(teacher || student)."""

    name = "soft_targets"
    config_type = SoftTargetsConfig

    def term(self, student: Outputs, teacher: Outputs, rows: Rows) -> torch.Tensor:
        """The divergence of the answers to each row."""
        return divergence(teacher.logits, student.logits, self.config.temperature)


class DKDConfig(PreservingConfig, frozen=True):
    """Options of the method `dkd`."""

    temperature: Temperature = Field(4.0, description="of both models' answers")
    target: Weight = Field(1.0, description="weight of the part about the right answer")
    others: Weight = Field(8.0, description="weight of the part about all other answers")


@register
class DKD(Preserving[DKDConfig]):
    """Decoupled knowledge distillation (B. Zhao et al., CVPR 2022): the divergence in two parts, weighted apart."""

    name = "dkd"
    config_type = DKDConfig

    def term(self, student: Outputs, teacher: Outputs, rows: Rows) -> torch.Tensor:
        """The divergence of "right or wrong", plus the divergence among the wrong answers."""
        config = self.config
        of_teacher, of_student = (decoupled(m.logits / config.temperature, rows.answers) for m in (teacher, student))
        target, others = (divergence(*pair) for pair in zip(of_teacher, of_student, strict=True))
        parts = config.target * target + config.others * others
        return config.temperature**2 * parts


def decoupled(logits: torch.Tensor, answers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sets of logits: right answer against all others, [rows, 2]; among the others, [rows, answers - 1]."""
    right = F.one_hot(answers, logits.shape[1]).bool()
    others = logits[~right].view(len(logits), -1)
    return torch.stack([logits[right], others.logsumexp(dim=1)], dim=1), others


class SPConfig(PreservingConfig, frozen=True):
    """Options of the method `sp`."""

    weight: Weight = Field(3000.0, description="weight of what the teacher says (gamma); 0 is FedAvg")


@register
class SP(Preserving[SPConfig]):
    """Similarity-preserving distillation (F. Tung and G. Mori, ICCV 2019) of the similarities among a batch's rows."""

    name = "sp"
    config_type = SPConfig
    separable = False
    compares_features = True

    def term(self, student: Outputs, teacher: Outputs, rows: Rows) -> torch.Tensor:
        """Each row's share of `|G_T - G_S|^2 / rows^2`, whose mean over rows is the paper's loss."""
        return (similarity(teacher.features) - similarity(student.features)).square().mean(dim=1)


def similarity(features: torch.Tensor) -> torch.Tensor:
    """G: the products of the features of all rows, each row scaled to length 1, [rows, rows]."""
    return F.normalize(features @ features.T, dim=1)


class CRDConfig(PreservingConfig, frozen=True):
    """Options of the method `crd`."""

    weight: Weight = Field(0.8, description="weight of what the teacher says (beta); 0 is FedAvg")
    temperature: Temperature = Field(0.07, description="of cosines")


@register
class CRD(Preserving[CRDConfig]):
    """Contrastive representation distillation (Y. Tian et al., ICLR 2020), with the batch's rows as negatives."""

    name = "crd"
    config_type = CRDConfig
    separable = False
    compares_features = True

    def term(self, student: Outputs, teacher: Outputs, rows: Rows) -> torch.Tensor:
        """The student's row must match the teacher's same row, and not the teacher's rows with other answers."""
        return contrast(student.features, teacher.features, rows.answers, self.config.temperature)


def contrast(student: torch.Tensor, teacher: torch.Tensor, answers: torch.Tensor, temperature: float) -> torch.Tensor:
    """The noise-contrastive loss of each row, [rows]: -log h of its own pair, -log(1 - h) of its N negatives.

    h = e / (e + N Z), where e = exp(cosine / temperature), and Z, the mean of e in the batch, is held constant. A row
    without negatives costs nothing.
    """
    scores = F.normalize(student, dim=1) @ F.normalize(teacher, dim=1).T / temperature
    negative = answers[:, None] != answers[None, :]
    level = scores.detach().flatten().logsumexp(0) - torch.tensor(float(scores.numel())).log()
    odds = scores - level - negative.sum(dim=1, keepdim=True).log()
    return F.softplus(-odds.diagonal()) + F.softplus(odds).where(negative, 0.0).sum(dim=1)
