"""A job as it is submitted: configuration only, no code, no path."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from audits import Offer
from medfedvqa.data import Split
from medfedvqa.methods import Method, checked, create
from privacy import DPSettings

ANY_DATA = "any"


class JobSpec(BaseModel, frozen=True, extra="forbid"):
    """What to train, on which kind of data, from which backbone. The sites decide whether they take part."""

    method: str
    options: dict[str, Any] = Field(default_factory=dict)
    data: str = Field(ANY_DATA, description="reader that every site must hold, or 'any'")
    split: Split = Field(default_factory=Split)
    backbone: str = Field("medclip-slake", description="name of the frozen backbone, never a path")
    seed: int = 0
    dp: DPSettings | None = Field(None, description="differential privacy by patient; null trains without")
    secagg: bool = Field(False, description="aggregate on shares: neither server nor other sites see an upload")
    min_sites: int = Field(1, ge=1, description="the job does not begin with fewer sites")

    def build(self) -> Method[Any]:
        """The configured method. Raises `ConfigError`."""
        return create(self.method, self.options, self.dp, self.secagg)

    @property
    def least_sites(self) -> int:
        """The fewest sites that this job begins with."""
        return max(self.min_sites, self.build().least_sites)

    @property
    def keeps_scores(self) -> bool:
        """Whether test results stay at the sites."""
        return self.secagg or self.dp is not None

    def offer(self) -> Offer:
        """What the job promises its sites, to hold against their policies."""
        sites = self.least_sites if self.secagg else self.min_sites
        return Offer(sites, self.secagg, self.dp and self.dp.delta, self.dp and self.dp.unit)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, job: Mapping[str, Any]) -> "JobSpec":
        """Strict; also checks the method's options. Raises `ConfigError`."""
        spec = checked(cls, job, "job")
        spec.build()
        return spec
