"""Cho, Manoel, Joshi, Sim, Dimitriadis: *Heterogeneous Ensemble Knowledge Transfer for Training Large Models in
Federated Learning* (Fed-ET), IJCAI 2022. Cite it.

A larger model at the server learns from the ensemble of the sites' smaller ones, on public questions without labels.
Of a row x, sites k have the logits s_k(x). A site counts as much as it is sure: a_k(x) = Var(s_k(x)) / sum over l of
Var(s_l(x)), the variance over answers. The consensus is y(x) = argmax of sum over k of a_k(x) s_k(x), and what those
who disagree say is s_div(x) = the same sum over the sites with argmax s_k(x) other than y(x). The server learns, for
`server_epochs` passes a round,

L(x) = CE(s(x), y(x)) + lambda KL(softmax s_div(x) || softmax s(x)),

without the second term where nobody disagrees (`diversity` is lambda). Then it sends its own logits on the public
rows, from which each site learns, for `public_epochs` passes, KL(softmax s || softmax s_k), before its own rows. With
`public_epochs` 0 sites train as [local](local.md), bit for bit. The public set is that of
[creamfl](creamfl.md#objective). The server's model is tested on `test_pairs` other pictures (`server_model` in
`results.json`).

Logits are answers of the private model to known inputs: enough to infer whether a row was trained on. Secure
aggregation is refused, since the weights need each site's logits. Under differential privacy logits cost nothing
more. A site's policy has to allow `representations`.

| paper | here | why |
|---|---|---|
| sites send weights; the server computes logits on public rows | sites send these logits | the server needs no more |
| the server's representation layers replace the sites' | its logits teach them | models of many sizes share no layer |
| sites of one size are averaged first | each site is a member of the ensemble | hospitals are few |
| VGG-19, ResNet-34 at the server | a wide head on a frozen backbone, or `server_tuning` | few public rows |
| logits without bounds | cut to -30..30 | values that affect an aggregation have a range |

The paper was not at hand: its equations stand here as the field restates them.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from pydantic import Field

from medfedvqa.bounds import Weight
from medfedvqa.core.method import State
from medfedvqa.core.registry import register
from medfedvqa.models import divergence
from medfedvqa.papers.public_outputs import AnsweringServer, Lesson, OutputLoss, TaughtServer, TaughtServerConfig
from medfedvqa.training.frozen_rows import FrozenRows


class FedETConfig(TaughtServerConfig, frozen=True):
    """Options of the method `fedet`."""

    diversity: Weight = Field(0.05, description="weight of what sites say that disagree with the consensus (lambda)")


@register
class FedET(TaughtServer[FedETConfig]):
    """The server learns the sites' mean prediction, weighed by confidence, and also the dissenting predictions."""

    name = "fedet"
    config_type = FedETConfig

    def lessons(self, state: State, rows: FrozenRows, received: torch.Tensor | None) -> Iterator[Lesson]:
        """The server's logits."""
        if received is not None:
            yield distilled(received), self.config.public_epochs

    def lesson_of_server(self, server: AnsweringServer, uploads: torch.Tensor) -> OutputLoss:
        """The consensus, and the dissent."""
        answers, dissent, some = ensemble(uploads)
        weight = self.config.diversity * some

        def loss(logits: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
            agreed = F.cross_entropy(logits, answers[items], reduction="none")
            return agreed + weight[items] * divergence(dissent[items], logits)

        return loss


def ensemble(uploads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The consensus int64 [rows], the dissenting logits [rows, answers], and whether there are any, bool [rows].

    `uploads`: the sites' logits, [sites, rows, answers]. Sites that are all unsure weigh the same.
    """
    sure = uploads.var(dim=2, unbiased=False) + torch.finfo(uploads.dtype).tiny
    weighed = (sure / sure.sum(dim=0))[..., None] * uploads
    answers = weighed.sum(dim=0).argmax(dim=1)
    disagree = uploads.argmax(dim=2) != answers
    return answers, (weighed * disagree[..., None]).sum(dim=0), disagree.any(dim=0)


def distilled(teacher: torch.Tensor) -> OutputLoss:
    """The divergence from the teacher's answers, whose logits are [rows, answers]."""
    return lambda logits, items: divergence(teacher[items], logits)
