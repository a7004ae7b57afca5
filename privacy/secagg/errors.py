"""Errors of secure aggregation; their texts name sites, limits and what to do, never a value."""

from privacy.errors import PrivacyError

MINIMUM = 3
"""The fewest contributing sites: of two, each could subtract its own input from the result."""


class SecureAggregationError(PrivacyError):
    """Base of every error of this package."""


class RangeError(SecureAggregationError):
    """A value is not finite or out of the range of the fixed-point ring; nothing was shared."""


class MisdealtError(SecureAggregationError):
    """The dealing does not follow from the members' seeds; no site is to blame."""


class EquivocationError(SecureAggregationError):
    """The server told two sites different things about one computation; no site is accused."""


class SiteError(SecureAggregationError):
    """A peer broke the channel or the protocol, or was silent; `site` is its name, so that it can be left out."""

    def __init__(self, site: str, sentence: str) -> None:
        super().__init__(f"site {site!r} {sentence}")
        self.site = site
