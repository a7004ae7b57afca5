"""Cheng, Wu, Xiao, Liu: *FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion*, 2021
(arXiv 2110.11027). Cite it.

A larger model at the server learns labelled public questions, and each row from those who answer it right. With the
label's cross-entropy CE and weight e (`answer_weight`), the server's loss of a row is

- where the server is right: e CE + (1 - e) KL(its own logits at the beginning of the round || its logits);
- where it is wrong and some sites are right: e CE + (1 - e) KL(z || its logits), z the mean of these sites' logits,
  each weighed by 1 / H(p_k), the entropy of its answer;
- where nobody is right: CE.

It learns that for `server_epochs` passes a round and sends its logits on the public rows, from which each site
learns, by e CE + (1 - e) KL(the server's || its own) and for `public_epochs` passes, before its own rows. With
`public_epochs` 0 sites train as [local](local.md), bit for bit. The public set is that of
[creamfl](creamfl.md#objective). The server's model is tested on `test_pairs` other pictures (`server_model` in
`results.json`).

Logits are answers of the private model to known inputs: enough to infer whether a row was trained on. Secure
aggregation is refused, since the server must know which sites are right. Under differential privacy logits cost
nothing more. A site's policy has to allow `representations`.

| paper | here | why |
|---|---|---|
| logits of rows where the server is wrong | of all public rows | no shape may depend on answers |
| right or wrong at each step | at the beginning of each round | one look at the sites' logits |
| ResNet-20 to 56 at the server | a wide head on a frozen backbone, or `server_tuning` | few public rows |
| logits without bounds | cut to -30..30 | values that affect an aggregation have a range |

The paper was not at hand: its equations stand here as the field restates them.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from pydantic import Field

from medfedvqa.bounds import Factor
from medfedvqa.core.method import State
from medfedvqa.core.registry import register
from medfedvqa.models import divergence
from medfedvqa.papers.public_outputs import AnsweringServer, Lesson, OutputLoss, TaughtServer, TaughtServerConfig
from medfedvqa.training.frozen_rows import FrozenRows


class FedGEMSConfig(TaughtServerConfig, frozen=True):
    """Options of FedGEMS."""

    answer_weight: Factor = Field(0.75, description="weight of the public answers against a teacher's; 1 is no teacher")


@register
class FedGEMS(TaughtServer[FedGEMSConfig]):
    """The server is taught on public rows by itself where it is right, and elsewhere by the sites that are right."""

    name = "fedgems"
    config_type = FedGEMSConfig

    def lessons(self, state: State, rows: FrozenRows, received: torch.Tensor | None) -> Iterator[Lesson]:
        """The public answers and the server's logits."""
        if received is not None:
            everywhere = torch.ones(len(rows), dtype=torch.bool, device=received.device)
            yield taught(rows, received, everywhere, self.config.answer_weight), self.config.public_epochs

    def lesson_of_server(self, server: AnsweringServer, uploads: torch.Tensor) -> OutputLoss:
        """The public answers, and the teacher of each row that has one."""
        teacher, has_teacher = selected(server.logits(), uploads, server.rows.answers)
        return taught(server.rows, teacher, has_teacher, self.config.answer_weight)


def taught(rows: FrozenRows, teacher: torch.Tensor, has_teacher: torch.Tensor, answer_weight: float) -> OutputLoss:
    """Public answers and the teacher's logits [rows, answers]; answers alone where there is no teacher, bool [rows]."""

    def loss(logits: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        answers = F.cross_entropy(logits, rows.answers[items].to(logits.device), reduction="none")
        both = answer_weight * answers + (1 - answer_weight) * divergence(teacher[items], logits)
        return torch.where(has_teacher[items], both, answers)

    return loss


def selected(
    server_logits: torch.Tensor, uploads: torch.Tensor, answers: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's teacher, logits [rows, answers], and whether it has one, bool [rows].

    `server_logits`: [rows, answers]; `uploads`: the sites', [sites, rows, answers]; `answers`: the right ones, int64
    [rows].
    """
    right = uploads.argmax(dim=2) == answers
    log_p = uploads.log_softmax(dim=2)
    entropy = -(log_p.exp() * log_p).sum(dim=2)
    weights = right / entropy.clamp(min=_LEAST_ENTROPY)
    fused = (weights[..., None] * uploads).sum(dim=0) / weights.sum(dim=0).clamp(min=_LEAST_ENTROPY)[:, None]
    server_right = server_logits.argmax(dim=1) == answers
    return torch.where(server_right[:, None], server_logits, fused), server_right | right.any(dim=0)


_LEAST_ENTROPY = 1e-6
"""The least entropy and the least sum of weights, in nats: a site that is quite sure outweighs others a millionfold."""
