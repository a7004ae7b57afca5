"""What makes a signed job fresh: a nonce, an expiry, the federation, and the sites that it is for.

A signature alone binds what is trained. A server could run it again, years later, for other sites: each run would spend
budget in the name of whoever signed it once.
"""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from pydantic import AwareDatetime, BaseModel, Field

from medfedvqa.bounds import FINGERPRINT, MOST_SITES, NONCE, SiteName

LONGEST = timedelta(days=31)
"""No signature is fresh for longer."""


class Terms(BaseModel, frozen=True, extra="forbid"):
    """Part of a job's configuration, and so of what its submitter signs."""

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
