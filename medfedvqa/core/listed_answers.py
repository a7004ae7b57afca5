"""The option of methods that answer from a list which all sites share."""

from typing import Annotated

from pydantic import Field, field_validator

from medfedvqa.bounds import MOST_ANSWERS, Text
from medfedvqa.core.method import MethodConfig
from medfedvqa.data import ListName, bundled_list, public_list


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
