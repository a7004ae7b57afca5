"""Li, Wang: *FedMD: Heterogenous Federated Learning via Model Distillation*, NeurIPS workshop 2019. Cite it.

Sites share the answers that their models give to public questions; there is no model at the server. Before its first
exchange a site learns the public set by its labels, `transfer_epochs` times, and then its own rows. In each later
round it first learns the consensus f(x) = 1/m sum over sites of f_k(x), the mean of all sites' logits, by the loss
|f_k(x) - f(x)|, the mean absolute difference over answers (*digest*), for `public_epochs` passes, and then its own
rows again (*revisit*). With `public_epochs` and `transfer_epochs` 0 it is [local](local.md) bit for bit. The public
set is that of [creamfl](creamfl.md#objective).

The consensus is a mean, so a job may take it on shares, or by `--gather trimmed`. Logits are answers of the private
model to known inputs: enough to infer whether a row was trained on. Under differential privacy they cost nothing more.
A site's policy has to allow `representations`.

| paper | here | why |
|---|---|---|
| public: MNIST, CIFAR-10 | phantom pictures with closed questions | free of licences, small enough to ship |
| 5000 random public rows a round | all public rows | there are a few hundred |
| transfer learning to convergence | `transfer_epochs` passes | the benchmark counts passes |
| weights of sites, if wished | all sites the same | row counts tell of a site |
| logits without bounds | cut to -30..30 | values that affect an aggregation have a range |
| digest ends a round | it begins the next one; nobody digests the last consensus | one message each way |

The paper was not at hand: its equations stand here as the field restates them.
"""

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from pydantic import Field

from audits import Tensors
from medfedvqa.bounds import ExtraPasses
from medfedvqa.core.hub import Hub
from medfedvqa.core.method import State
from medfedvqa.core.on_shares import MeanOnShares, OnShares
from medfedvqa.core.registry import register
from medfedvqa.papers.public_outputs import Lesson, OutputLoss, PublicOutputs, PublicOutputsConfig
from medfedvqa.training.frozen_rows import FrozenRows


class FedMDConfig(PublicOutputsConfig, frozen=True):
    """Options of the method `fedmd`."""

    transfer_epochs: ExtraPasses = Field(
        5, description="a site's passes over the public rows and their labels before its first round"
    )


@register
class FedMD(PublicOutputs[FedMDConfig]):
    """Sites train on the mean of all sites' answers to public questions."""

    name = "fedmd"
    config_type = FedMDConfig
    teacher = "the mean of all sites'"

    @property
    def averages(self) -> bool:
        """Yes: the consensus is a mean."""
        return True

    @property
    def on_shares(self) -> Mapping[str, OnShares]:
        """See `Method.on_shares`: the logits of every round end in a mean of sites that weigh the same."""
        return {"start": MeanOnShares(), "train": MeanOnShares()}

    def lessons(self, state: State, rows: FrozenRows, received: torch.Tensor | None) -> Iterator[Lesson]:
        """The labels before the site's first round, then the consensus."""
        if "begun" not in state:
            yield labelled(rows), self.config.transfer_epochs
        if received is not None:
            yield digest(received), self.config.public_epochs

    def without_others(self, local_epochs: int | None = None) -> "FedMD":
        """See `PublicOutputs.without_others`."""
        alone = super().without_others(local_epochs)
        return FedMD(alone.config.model_copy(update={"transfer_epochs": 0}))

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        """Rounds of training and the mean of logits, then the evaluation."""
        self.check_models(hub.sites)
        consensus: Tensors = {}
        for number in hub.rounds(self.config.rounds):
            task, called = "start" if number == 1 else "train", self.drawn(hub, number, hub.sites)
            consensus = hub.mean(task, dict.fromkeys(called, consensus))
        return hub.collect("evaluate")


def labelled(rows: FrozenRows) -> OutputLoss:
    """The cross-entropy with the public answers."""
    return lambda logits, items: F.cross_entropy(logits, rows.answers[items].to(logits.device), reduction="none")


def digest(consensus: torch.Tensor) -> OutputLoss:
    """The mean absolute difference from the consensus [rows, answers]."""
    return lambda logits, items: (logits - consensus[items]).abs().mean(dim=1)
