"""A job as it is submitted: configuration only, no code, no path.

`JobSpec` is the only declaration of a job's fields: the command line has an option and `medfedvqa.Job` a keyword for
each, and sites and server check a submitted job's text by it before FLARE reads the job. Those processes import this
module, which is why it loads no torch before a method is asked for.

A signature alone binds only what is trained. A server could run the job again, years later, for other sites, and each
run would spend budget in the name of the person who signed it once.
"""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, ValidationInfo, field_validator

from audits import Exchange, canonical
from audits.policy import Offer
from medfedvqa.backbone_names import parse
from medfedvqa.bounds import (
    FINGERPRINT,
    MOST_ANSWERS,
    MOST_SITES,
    NONCE,
    BackboneName,
    DataName,
    Identifier,
    SiteName,
)
from medfedvqa.checking import checked
from medfedvqa.data import Split
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job_choices import JobChoices
from medfedvqa.federation.quorum import MembersRule, QuorumRule
from medfedvqa.public_answers import CLOSED_ANSWERS
from medfedvqa.shape_cards import ShapeCard
from privacy import DPSettings, Gathering
from privacy.secagg.committee import Beacon, threshold

if TYPE_CHECKING:
    from medfedvqa.core import Method
    from medfedvqa.models import BackboneShape

LONGEST = timedelta(days=31)
"""No signature stays fresh for longer than this."""


class Terms(BaseModel, frozen=True, extra="forbid"):
    """The signed part of a job's configuration that says where and until when it may run; with its nonce it
    runs once.
    """

    nonce: str = Field(pattern=NONCE, max_length=36, description="random; a site runs no second job with it")
    expires: AwareDatetime = Field(description="no site begins the job later; at most 31 days ahead")
    federation: str = Field(pattern=FINGERPRINT, max_length=102, description="fingerprint of its root certificate")
    sites: tuple[SiteName, ...] = Field(
        min_length=1, max_length=MOST_SITES, description="the sites that may take part, by name"
    )

    @classmethod
    def fresh(cls, federation: str, sites: tuple[str, ...], days: float = 7.0) -> "Terms":
        """Terms with a new nonce."""
        expires = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
        return cls(nonce=str(uuid4()), expires=expires, federation=federation, sites=tuple(sorted(set(sites))))


STATUS_JOB = {"method": "site_status"}
"""The job of `medfedvqa.federation.site_status`, complete: it has none of the fields of `JobSpec`."""
ANY_DATA = "any"
SHARING = ("sharers", "colluders")
"""The settings of noise that sites share."""

MOST_MEMBERS = 8
"""With more sites than this, a committee of this size computes, unless the job sets another. Costs then stay those of a
small federation. The larger a committee, the less likely all of its members collude: if a third of 200 sites colludes,
this happens in 3.5 % of draws with three members and in 0.01 % with eight."""


def _option_name(name: str) -> str:
    if not (name.isidentifier() and name.islower()):
        raise ValueError("the name of an option must be a lower-case identifier, such as 'learning_rate'")
    return name


_Scalar = bool | int | float | str | None
_OptionName = Annotated[str, Field(max_length=24), AfterValidator(_option_name)]
_Group = Annotated[list[_Scalar], Field(max_length=MOST_SITES)]
_List = Annotated[list[_Scalar | _Group], Field(max_length=MOST_ANSWERS)]
_BySite = Annotated[dict[str, dict[_OptionName, _Scalar]], Field(max_length=MOST_SITES)]
_Table = Annotated[dict[_OptionName, _Scalar | _Group], Field(max_length=16)]
Options = Annotated[dict[_OptionName, _Scalar | _List | _Table | _BySite], Field(max_length=128)]
"""A method's options by name: scalars, lists of scalars and of groups of these, tables of these, or for each site a
table of names and scalars. Here they are only bounded; the method checks them."""


class JobSpec(JobChoices, frozen=True):
    """What a job trains, on which kind of data, from which backbone. Each site decides whether it takes part."""

    method: Identifier
    options: Options = Field(default_factory=dict)
    data: DataName = Field(ANY_DATA, description="reader that every site must hold, or 'any'")
    split: Split = Field(default_factory=Split)
    backbone: BackboneName = Field("medclip2-slake", description="name of the frozen backbone, never a path")
    dp: DPSettings | None = Field(None, description="differential privacy by patient; null trains without")
    card: ShapeCard | None = Field(
        None, description="shape of a backbone that only sites have, by `medfedvqa backbone card`"
    )
    terms: Terms | None = Field(None, description="what makes the signed job fresh; `jobs export --kit` writes it")

    @field_validator("card")
    @classmethod
    def _check_card(cls, card: ShapeCard | None, others: ValidationInfo) -> ShapeCard | None:
        name = others.data.get("backbone", "")
        if card is not None and (card.name != name or not parse(name).is_folder):
            raise ValueError("a shape card is for a backbone in a local folder, and has its name: leave it out")
        return card

    def exchange(self) -> Exchange:
        """The declaration of every message between a site and its peers. Raises `ConfigError`."""
        return self.build().final_exchange(self.shape)

    @property
    def shape(self) -> "BackboneShape":
        """The shape of the backbone, from its card or its name. Raises `BackboneError`."""
        from medfedvqa.models import shape_of, shape_on

        return shape_of(self.backbone) if self.card is None else shape_on(self.card)

    def build(self) -> "Method[Any]":
        """The configured method. Raises `ConfigError`."""
        from medfedvqa.core import create

        return create(self.method, self.options, self.dp, self.secagg, Gathering(self.gather, self.most_norm))

    @property
    def least_sites(self) -> int:
        """The fewest sites that this job begins with."""
        method = self.build()
        robust = method.gathering.least_sites + method.bystanders if method.gathering.robust else 1
        return max(self.min_sites, method.least_sites, robust)

    def quorum_rule(self) -> QuorumRule:
        """The job's rule for sites that do not answer."""
        method = self.build()
        return QuorumRule(
            least=self.least_sites,
            wait_for=self.wait_for,
            round_timeout=self.round_timeout,
            rounds=method.rounds,
            rejoins=method.rejoins and not self.secagg,
            # By default `min_sites` is 1, which says nothing of sites that the job could do without.
            outlives_refusals=self.min_sites > 1 or self.wait_for is not None,
        )

    def members_rule(self, beacon: Beacon | None = None) -> MembersRule:
        """The rule for the sites that compute on shares. `beacon` is the result of the draw, if there was one."""
        if isinstance(self.committee, tuple):
            return MembersRule(len(self.committee), self.committee)
        return MembersRule(self.committee or MOST_MEMBERS, beacon=beacon)

    @property
    def keeps_scores(self) -> bool:
        """Whether test results stay at the sites."""
        return bool(self.secagg) or self.dp is not None

    def offer(self) -> Offer:
        """What the job promises its sites; each site compares it with its policy."""
        sites = self.least_sites if self.secagg else self.min_sites
        rule = self.members_rule()
        members = rule.size if rule.named else min(rule.size, sites)
        delta, unit = (self.dp.delta, self.dp.unit) if self.dp else (None, None)
        from medfedvqa.core import CommitteeMean, MeanOnShares

        method = self.build()
        means = [isinstance(how, CommitteeMean) for how in method.aggregated.values() if isinstance(how, MeanOnShares)]
        colluders = self.dp.colluders if self.dp and self.dp.is_shared else None
        offered = (sites, bool(self.secagg), delta, unit, members, rule.named, any(means))
        return Offer(*offered, method.mixture_share, colluders, masked_means=not all(means))

    @property
    def definition(self) -> str:
        """The SHA-256, in hex, of everything that the job trains, without its terms."""
        return hashlib.sha256(canonical(self._content({"terms"}))).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The job as plain JSON."""
        return self._content(set())

    def _content(self, exclude: set[str]) -> dict[str, Any]:
        """The fields as plain JSON. Unused fields that earlier versions do not know are left out."""
        content = self.model_dump(mode="json", exclude=exclude | ({"card"} if self.card is None else set()))
        if self.dp is not None:
            unused = (*(() if self.dp.is_shared else SHARING), *(() if self.dp.engine != "own" else ("engine",)))
            content["dp"] = {name: value for name, value in content["dp"].items() if name not in unused}
        return content

    def _check_committee_bears_colluders(self) -> None:
        """Raises `ConfigError` if, for a possible number of computing sites, `colluders` could open single uploads."""
        if self.dp is None or not self.dp.is_shared:
            return
        rule = self.members_rule()
        sizes = range(rule.size if rule.named else min(rule.size, self.least_sites), rule.size + 1)
        bears = min(2 * threshold(members) - members for members in sizes) - 1
        if self.dp.colluders > bears:
            raise ConfigError(
                f"with the server, {bears + 1} of the sites that compute could open single uploads: give 'colluders' "
                f"as {bears} at most, or let more sites compute ('committee', 'min_sites')"
            )

    @classmethod
    def from_dict(cls, job: Mapping[str, Any]) -> "JobSpec":
        """Read a job strictly, the method's options included. Raises `ConfigError`."""
        spec = checked(cls, job, "job")
        method = spec.build()
        spec._check_committee_bears_colluders()
        if spec.wait_for is not None:
            if not spec.quorum_rule().rejoins:
                raise ConfigError(
                    f"a site that misses a round of this job of '{method.name}' takes no further part, so that "
                    "'wait_for' would lose sites round by round: give 'round_timeout' alone"
                )
            if spec.wait_for < spec.least_sites:
                raise ConfigError(f"the job needs {spec.least_sites} sites: give 'wait_for' at least this number")
        if method.public_answers == CLOSED_ANSWERS and spec.split.questions != "closed":
            raise ConfigError(
                "the bundled list 'closed' holds few answers to open questions: give the option 'answers' as 'public', "
                "or a list; methods whose answer head stays at its site also take the site's own"
            )
        return spec
