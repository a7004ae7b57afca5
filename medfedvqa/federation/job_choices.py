"""The fields of a job that a person chooses for any method: each is an option of the command line and, under the same
name, a keyword of `medfedvqa.Job`. This module is fast to import.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from medfedvqa.bounds import MOST_SECONDS, MOST_SEED, MOST_SITES, MOST_WEIGHT, SiteName
from privacy.secagg.errors import MINIMUM

_Count = Annotated[int, Field(ge=0, le=MOST_SITES)]
_Names = Annotated[tuple[SiteName, ...], Field(max_length=MOST_SITES)]


class JobChoices(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """The fields of a job that have an option; the option's help is made from the field's description."""

    seed: int = Field(
        0,
        ge=0,
        le=MOST_SEED,
        description="seed of the training, and in a run on this machine of the split and the drawn set",
    )
    secagg: bool | Literal["masks", "crypten"] = Field(
        False,
        description="aggregate on shares: neither server nor other sites see a single site's upload; needs 3 sites; "
        "means under masks, as with --secagg alone, or by a committee with CrypTen",
    )
    committee: _Count | _Names | None = Field(
        None, description="on shares: how many sites compute (drawn if there are more), or which; by default at most 8"
    )
    gather: Literal["mean", "trimmed", "median"] = Field(
        "mean",
        description="how the server combines uploads; trimmed and median bear some lying sites, and ignore weights",
    )
    most_norm: float | None = Field(
        None,
        gt=0,
        le=MOST_WEIGHT,
        description="largest L2 norm of an upload's parameters: sites scale longer ones down to it",
    )
    min_sites: int = Field(1, ge=1, le=MOST_SITES, description="the job neither begins nor continues with fewer sites")
    wait_for: int | None = Field(
        None, ge=1, le=MOST_SITES, description="a round ends with the answers of this many sites; by default with all"
    )
    round_timeout: float | None = Field(
        600.0,
        ge=1,
        le=MOST_SECONDS,
        description="seconds after which a round continues without sites that are late, and which the evaluation has "
        "for each round; without them there is no limit",
    )

    @field_validator("secagg", mode="before")
    @classmethod
    def _as_written(cls, secagg: Any) -> Any:
        # Earlier versions know true and false only, and a job that they run keeps its definition.
        return True if secagg == "masks" else secagg

    @field_validator("committee")
    @classmethod
    def _check_committee(
        cls, committee: int | tuple[str, ...] | None, others: ValidationInfo
    ) -> int | tuple[str, ...] | None:
        if committee is None:
            return None
        if not others.data.get("secagg"):
            raise ValueError("a committee computes on shares: ask for secure aggregation as well, or for no committee")
        if not isinstance(committee, int):
            committee = tuple(sorted(set(committee)))
        if (committee if isinstance(committee, int) else len(committee)) < MINIMUM:
            raise ValueError(f"a committee has at least {MINIMUM} sites: fewer could reveal the others")
        return committee
