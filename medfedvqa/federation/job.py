"""A job as it is submitted: configuration only, no code, no path."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from medfedvqa.data import Split
from medfedvqa.methods import checked, create

ANY_DATA = "any"


class JobSpec(BaseModel, frozen=True, extra="forbid"):
    """What to train, on which kind of data, from which backbone. The sites decide whether they take part."""

    method: str
    options: dict[str, Any] = Field(default_factory=dict)
    data: str = Field(ANY_DATA, description="reader that every site must hold, or 'any'")
    split: Split = Field(default_factory=Split)
    backbone: str = Field("medclip-slake", description="name of the frozen backbone, never a path")
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, job: Mapping[str, Any]) -> "JobSpec":
        """Strict; also checks the method's options. Raises `ConfigError`."""
        spec = checked(cls, job, "job")
        create(spec.method, spec.options)
        return spec
