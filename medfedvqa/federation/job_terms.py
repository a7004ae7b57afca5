"""The terms that make a signed job fresh: a nonce, an expiry, the federation, and the sites that it is for.

A signature alone binds only what is trained. A server could run the job again, years later, for other sites, and each
run would spend budget in the name of the person who signed it once.
"""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from pydantic import AwareDatetime, BaseModel, Field

from medfedvqa.bounds import FINGERPRINT, MOST_SITES, NONCE, SiteName

LONGEST = timedelta(days=31)
"""No signature stays fresh for longer than this."""


class Terms(BaseModel, frozen=True, extra="forbid"):
    """The part of a job's configuration, and so of what its submitter signs, that makes the job fresh."""

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
