"""Methods that train a network over pictures instead of tuning a backbone: what their sites learn, and the options."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field, StringConstraints, field_validator

from medfedvqa.bounds import MOST_ANSWERS, MOST_FEATURES, MOST_PIXELS, MOST_WIDTH, Text, Weight, feature_range
from medfedvqa.core.averaging import AveragingConfig
from medfedvqa.core.task import Task
from medfedvqa.errors import ConfigError
from medfedvqa.models import AnswerModel, BackboneShape, Shapes
from medfedvqa.models.picture_networks import (
    BINARY,
    MONAI_NETWORKS,
    NetworkSpec,
    PictureNetwork,
    builder,
    check_network,
)
from medfedvqa.public_answers import fold
from medfedvqa.training import RowLoss, Rows, Site, answer_losses

NetworkName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\z", max_length=64)]
_Number = Annotated[int, Field(ge=0, le=MOST_WIDTH)]
Argument = bool | _Number | Weight | Annotated[tuple[_Number, ...], Field(max_length=8)]
ArgumentName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*\z", max_length=24)]


@dataclass(frozen=True)
class PictureClassification(Task):
    """Classifies a picture, or decides which of several findings it shows, by a network trained end to end."""

    network: NetworkSpec
    private: bool = False
    """Whether the training needs each patient's gradient."""

    def shapes(self, shape: BackboneShape, answers: int) -> Shapes:
        return self.network.shapes(answers)

    def check(self, shape: BackboneShape) -> None:
        if shape.towers:
            raise ConfigError("a job that trains a 'network' tunes no backbone: give the backbone as 'none'")

    @property
    def code(self) -> tuple[object, ...]:
        return () if self.network.name in MONAI_NETWORKS else (builder(self.network.name),)

    def under(self, private: bool) -> "PictureClassification":
        return replace(self, private=private)

    def check_answers(self, answers: tuple[str, ...] | None) -> None:
        if self.network.findings and answers != BINARY:
            raise ConfigError("each of the 'findings' is answered by no or yes: set 'answers' to no, yes")

    def model(self, site: Site, answers: int) -> PictureNetwork:
        if site.data.features != self.network.features:
            raise ConfigError(
                "the job's 'features' are not those of the site's table: give its columns with their ranges"
                if site.data.features
                else "the site has pictures and the job's network takes the features of a table: name another set"
            )

        def checked_model() -> PictureNetwork:
            model = PictureNetwork(self.network, answers, site.device)
            check_network(model, self.private)
            return model

        # One for each site: its weights are replaced in place while it computes.
        return site.derive((self.network, answers, self.private), checked_model)

    def row_loss(self, model: AnswerModel) -> RowLoss:
        """The network's own `row_loss` of logits and answers, if it has one; else the cross-entropy of the answer."""
        loss_of = getattr(model.body, "row_loss", None) if isinstance(model, PictureNetwork) else None
        if loss_of is None:
            return answer_losses(model)

        def loss(values: dict[str, torch.Tensor], rows: Rows) -> torch.Tensor:
            losses: torch.Tensor = loss_of(model.logits(values, rows.batch, rows.chance), rows.answers)
            if losses.shape != rows.answers.shape:
                raise ConfigError("a network's 'row_loss' gives one number for each row, such as reduction='none'")
            return losses

        return loss


class NetworkOptions(AveragingConfig, frozen=True):
    """Options of a network. With `network`, the options of tuning and of the answer head have no effect."""

    network: NetworkName | None = Field(
        None,
        description="a network over pictures, trained from random values: DenseNet121 to DenseNet264 or ResNet10 to "
        "ResNet50 of MONAI, its FullyConnectedNet over 'features', or one of an allowed distribution; it goes with the "
        "backbone 'none'; null is none",
    )
    network_arguments: Annotated[dict[ArgumentName, Argument], Field(max_length=16)] = Field(
        default_factory=dict, description="the network's arguments by name, such as init_features, or groups to norm by"
    )
    pixels: int = Field(128, ge=16, le=MOST_PIXELS, description="side of the pictures that a network takes")
    channels: int = Field(1, ge=1, le=3, description="1: a network takes grey pictures; 3: in colour")
    findings: Annotated[tuple[Text, ...], Field(max_length=MOST_ANSWERS)] = Field(
        (), description="findings that a network tells apart, each by yes or no; none: it gives a picture one class"
    )

    features: Annotated[tuple[Text, ...], Field(max_length=MOST_FEATURES)] = Field(
        (), description="in place of pictures, the features of a table's rows with their ranges, such as 'age 18..95'"
    )

    @field_validator("features")
    @classmethod
    def _have_ranges(cls, features: tuple[str, ...]) -> tuple[str, ...]:
        if len({*features}) < len(features) or not all(map(feature_range, features)):
            raise ValueError("a feature is named twice, or lacks its range: write it as 'age 18..95'")
        return tuple(sorted(features))

    @field_validator("channels")
    @classmethod
    def _are_grey_or_coloured(cls, channels: int) -> int:
        if channels == 2:
            raise ValueError("a picture must have 1 or 3 channels")
        return channels

    @field_validator("findings")
    @classmethod
    def _are_distinct_findings(cls, findings: tuple[str, ...]) -> tuple[str, ...]:
        folded = tuple(fold(finding) for finding in findings)
        if len({*folded}) < len(folded):
            raise ValueError("a finding is named twice")
        return folded

    @property
    def task(self) -> Task:
        """See `AveragingConfig.task`."""
        return super().task if self.network is None else PictureClassification(self.spec(self.network))

    def spec(self, name: str) -> NetworkSpec:
        """The network of this name with the other options."""
        arguments = tuple(sorted(self.network_arguments.items()))
        pixels, channels = (1, len(self.features)) if self.features else (self.pixels, self.channels)
        return NetworkSpec(name, arguments, pixels, channels, self.findings, self.features)
