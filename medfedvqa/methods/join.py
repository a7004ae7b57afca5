"""A hospital that joins: it receives the model with which an earlier job ended, and sends counts of its test alone.

The job's only message down is that model, whose digest the job names; a site compares it before use. A site without
labelled rows answers with the model as received. One with a few trains on from it, trains the same model alone, and
keeps the best on its validation rows. Nothing of that training leaves. `medfedvqa join` makes these jobs.

What a hospital keeps unless another model is better beyond chance (`Keeping.kept`) is the model as received where
hospitals of the same organ trained it. Of a new organ that model knows little: there it is the one trained alone, or
the one that was trained on from the received model as long as the hospital has labelled fewer than `FEW` patients.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field

from audits import Exchange, Tensors
from medfedvqa.bounds import FINGERPRINT, MOST_SITES, Text
from medfedvqa.core import EVALUATE, Hub, Site, State
from medfedvqa.core.averaging import Averaging
from medfedvqa.core.kept_model import KEPT, Keeping
from medfedvqa.core.on_shares import OnShares
from medfedvqa.core.registry import register
from medfedvqa.core.scores import scored
from medfedvqa.data import SiteData
from medfedvqa.data.site_cuts import organ_of
from medfedvqa.errors import ConfigError, DataError, FederationError
from medfedvqa.evaluation.history import KEPT_MODELS
from medfedvqa.methods.fedavg import FedAvgConfig, check_held, check_received
from medfedvqa.models import BackboneShape
from privacy import DPSettings, Secagg

FEW = 10
"""On SLAKE a model that is trained on is better than one trained alone with 2 and 5 labelled patients of a new organ,
and worse with 10."""


class JoinersKeeping(Keeping):
    """The choice of a hospital that joins."""

    @property
    def first_choice(self) -> str:
        """See `Keeping.first_choice` and the head of this file."""
        organs, data = self._method.config.organs, self._site.data
        if not organs or organ_of(data.organ) in organs:
            return "received"
        return "finished" if len(data.trained_patients) < FEW else "alone"


class JoinConfig(FedAvgConfig, frozen=True):
    """Options: those of the earlier job, also used for training alone, and the digest of its model."""

    model: str = Field(pattern=FINGERPRINT, description="the digest of the earlier job's model")
    organs: Annotated[tuple[Text, ...], Field(max_length=MOST_SITES)] = Field(
        (), description="organs whose hospitals trained the model; a site of another one needs labelled rows; "
        "empty: nobody says",
    )  # fmt: skip


@register
class Join(Averaging[JoinConfig]):
    """An evaluation of an earlier job's model, which each site may then train further for itself."""

    name = "join"
    config_type = JoinConfig
    listed: ClassVar[bool] = False
    needs_rows: ClassVar[bool] = False

    def __init__(self, config: JoinConfig, dp: DPSettings | None = None, secagg: Secagg = False) -> None:
        super().__init__(config, dp, secagg)
        if config.own != "nothing" or config.evaluated != "shared":
            raise ConfigError(
                "a hospital that joins answers with what the others share, so they must share all that is trained: "
                "give the earlier job 'own' as 'nothing'"
            )

    @property
    def on_shares(self) -> dict[str, OnShares]:
        """Nothing is aggregated."""
        return {}

    @property
    def has_personal_models(self) -> bool:
        """See `Averaging.has_personal_models`. Here a site has only the received model, and what it trains from it."""
        return False

    @property
    def rejoins(self) -> bool:
        """See `Method.rejoins`: there is no later round."""
        return False

    @property
    def rounds(self) -> int:
        """See `Method.rounds`."""
        return 1

    def exchange(self, shape: BackboneShape) -> Exchange:
        """The model comes down, and counts of test answers go up."""
        return replace(exchange := super().exchange(shape), tasks=(exchange.task(EVALUATE),))

    def tasks(self) -> Iterator[tuple[str, int]]:
        """The evaluation."""
        yield EVALUATE, self.rounds

    def serve(self, hub: Hub) -> dict[str, Tensors]:
        """Sends the model to all sites. Raises `ConfigError` if the server has another one, or none."""
        check_held(self.answers, hub.model, self.config.model)
        replies: dict[str, Tensors] = {}
        for _ in hub.rounds(self.rounds):
            replies = hub.collect(EVALUATE, dict.fromkeys(hub.sites, hub.model))
        return replies

    def check_rows(self, data: SiteData) -> None:
        """Raises `DataError` if the model has nothing for this site: an unknown organ, or only unknown answers."""
        if len(data.train):
            super().check_rows(data)
        elif self.config.organs and organ_of(data.organ) not in self.config.organs:
            raise DataError(
                "no hospital of this organ trained the model, and this site has no labelled rows to train on from it: "
                "its answers would be guesses; label the questions of some patients first"
            )

    def evaluate(self, site: Site, state: State, received: Tensors, round: int) -> tuple[State, Tensors]:
        """See `Alone.evaluate`. A site without rows to train on has no other model than the received one."""
        shapes = {name: array.shape for name, array in received.items()}
        if shapes != self.shared(site.backbone.shape):
            raise FederationError("the received model does not fit this site's backbone: use the backbone of the job")
        check_received(self.answers, received, self.config.model)
        right = self.answered(site, state, received, site.data.test)
        if not self.config.finish_epochs:
            return scored(state, site.data, right)
        if len(site.data.train.answered):
            keeping = JoinersKeeping(self, site, state, received, self.config.rounds)
            return scored({**state, KEPT: keeping.kept}, site.data, right, **keeping.counted)
        same, none = int(right.sum()), 0
        return scored(
            state,
            site.data,
            right,
            finished_correct=same,
            ensemble_correct=same,
            alone_correct=none,
            alone_equal_correct=none,
            kept_model=KEPT_MODELS.index("received"),
        )
