"""The options of the answer head, and of the list that all sites answer from."""

from typing import Annotated

from pydantic import Field, field_validator

from medfedvqa.bounds import MOST_ANSWERS, Rank, Share, Text, Width
from medfedvqa.core.method import MethodConfig
from medfedvqa.data import ListName, bundled_list, public_list
from medfedvqa.models import BackboneShape, Fusion, HeadConfig, QuestionInput, TuningConfig, check_head


class HeadOptions(MethodConfig, frozen=True):
    """Options of the answer head."""

    fusion: Fusion = Field(
        "product",
        description="how the head joins picture and question: side by side, by the product of both in tanh units, the "
        "same with a look at the picture's places, the question alone, or by products of principal "
        "components, for private training: one layer of few values",
    )
    question_input: QuestionInput = Field(
        "both", description="what the head has of the question: the tower's features, hashed 1-3-grams, or both"
    )
    units: Width = Field(192, description="tanh units of picture and of question in a product")
    hidden: Width = Field(512, description="width of the answer head's hidden layer")
    picture_components: Width = Field(8, description="principal components of the picture, with 'components'")
    question_components: Width = Field(96, description="principal components of the question, with 'components'")
    head_rank: Rank | None = Field(
        None, description="rank of each layer of the answer head that so has fewer numbers; null: full weights"
    )
    dropout: Share = Field(0.2, description="dropout in the answer head")
    normed: bool = Field(False, description="a LayerNorm of the hidden layer before ReLU, as in FedP3's paper")
    heads: int = Field(
        1,
        ge=1,
        le=16,
        description="answer heads that begin at different values and answer together, by the mean of "
        "their log-probabilities",
    )

    def head_of(self, answers: int) -> HeadConfig:
        """The answer head for this number of answers."""
        names = ("hidden", "dropout", "fusion", "units", "normed")
        options = {name: getattr(self, name) for name in names}
        options |= {"question": self.question_input, "members": self.heads, "rank": self.head_rank}
        return HeadConfig(answers, **options, components=(self.picture_components, self.question_components))

    def check_head(self, tuning: TuningConfig, shape: BackboneShape, aside: int = 0) -> None:
        """Raises `ConfigError` for a head that this backbone does not allow, or that ignores a tuned part.

        `aside`: the width of features that come from neither of the backbone's towers.
        """
        check_head(self.head_of(2), tuning, shape, aside)


class ListedAnswers(MethodConfig, frozen=True):
    """The answer space, which does not depend on any site's rows."""

    answers: Annotated[tuple[Text, ...], Field(max_length=MOST_ANSWERS)] | ListName = Field(
        "closed", description="the answer space: a public list, or 'closed' or 'public' for a bundled one"
    )

    @field_validator("answers")
    @classmethod
    def _are_distinct(cls, answers: tuple[str, ...] | str) -> tuple[str, ...] | str:
        return public_list(answers) if isinstance(answers, tuple) else answers

    @property
    def listed(self) -> tuple[str, ...]:
        """The list itself."""
        return self.answers if isinstance(self.answers, tuple) else bundled_list(self.answers)
