"""Sums and mixtures of what sites hold, computed on shares: no party sees another's part.

Importing this package imports CrypTen and changes it for the whole process; see `privacy.secagg.crypten_runtime`.
"""

from privacy.secagg.channel import Handshake, Identity, InProcessRelay, Link, Relay, Session, connect
from privacy.secagg.crypten_runtime import Party
from privacy.secagg.errors import RangeError, SecureAggregationError, SiteError
from privacy.secagg.layout import Layout
from privacy.secagg.protocol import combine, deal_mix, join, masked, secure_mean, secure_mix

__all__ = [
    "Handshake",
    "Identity",
    "InProcessRelay",
    "Layout",
    "Link",
    "Party",
    "RangeError",
    "Relay",
    "SecureAggregationError",
    "Session",
    "SiteError",
    "combine",
    "connect",
    "deal_mix",
    "join",
    "masked",
    "secure_mean",
    "secure_mix",
]
