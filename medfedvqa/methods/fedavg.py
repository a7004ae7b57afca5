"""Federated averaging (B. McMahan et al., AISTATS 2017) of the tuned part of the model.

A job may start from the model of an earlier run, for example on open data: a public prior that costs no privacy. In a
head of one linear layer it is an offset of the logits, to which training adds.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from audits import Exchange, Tensors
from audits.exchange import canonical
from medfedvqa.bounds import FINGERPRINT
from medfedvqa.core import Hub, Site, State
from medfedvqa.core.averaging import Averaging
from medfedvqa.core.kept_model import FIRST
from medfedvqa.core.method import tensors_of
from medfedvqa.core.network_options import NetworkOptions
from medfedvqa.core.registry import register
from medfedvqa.core.trunk_options import TrunkOptions
from medfedvqa.errors import ConfigError, FederationError
from medfedvqa.models import BackboneShape


def model_digest(answers: Sequence[str] | None, tensors: Tensors) -> str:
    """The SHA-256 of a model, see `FINGERPRINT`: of its answers in order, its tensors' names, shapes, types and bytes.

    Pairs with colons, since FLARE (2.9) warns of plain hex digits in a job as of a possible secret.
    """
    facts = [[name, array.dtype.str, array.shape] for name, array in sorted(tensors.items())]
    digest = hashlib.sha256(canonical([list(answers or ()), facts]))
    for _, array in sorted(tensors.items()):
        digest.update(array.tobytes())
    return f"SHA256:{digest.digest().hex(':').upper()}"


def check_held(answers: Sequence[str] | None, model: Tensors, digest: str) -> None:
    """Raises `ConfigError` if the server has another model than the job names, or none."""
    if not model or model_digest(answers, model) != digest:
        raise ConfigError("the server has no model with the digest that the job names: use the server of that run")


def check_received(answers: Sequence[str] | None, model: Tensors, digest: str) -> None:
    """Raises `FederationError` at a site that received another model than the job names."""
    if model_digest(answers, model) != digest:
        raise FederationError("the received model is not the one that the job names: it was changed on its way")


class FedAvgConfig(NetworkOptions, TrunkOptions, frozen=True):
    """Options; `tuning` chooses the member of the family: classifier, lora, prompt, bias, adapter, blocks or full."""

    start_from: Annotated[str, Field(pattern=FINGERPRINT, max_length=102)] | None = Field(
        None, description="the digest of an earlier run's model from which all sites start; null: from random values"
    )


@register
class FedAvg(Averaging[FedAvgConfig]):
    """Local training, then the mean of all sites."""

    name = "fedavg"
    config_type = FedAvgConfig

    def exchange(self, shape: BackboneShape) -> Exchange:
        """See `Averaging.exchange`. A model to start from comes down before the first round."""
        exchange = super().exchange(shape)
        if self.config.start_from is None:
            return exchange
        start, train, evaluate = exchange.tasks
        return replace(exchange, tasks=(replace(start, down=train.down), train, evaluate))

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        """See `Averaging.serve`. Raises `ConfigError` if the server lacks the model to start from."""
        if self.config.start_from is not None:
            check_held(self.answers, hub.model, self.config.start_from)
        return super().serve(hub)

    def train(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """See `Averaging.train`. Raises `FederationError` if the model to start from is another one than agreed."""
        if self.config.start_from is not None and round == 1 and received:
            check_received(self.answers, received, self.config.start_from)
            state = {**state, FIRST: tensors_of(received, site.device)}
        return super().train(site, state, received, round)
