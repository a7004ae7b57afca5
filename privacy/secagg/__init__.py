"""Sums and mixtures of what sites hold, computed on shares: no party sees another's part.

What is computed is in `privacy.secagg.protocol`; importing that module imports CrypTen, which takes seconds, and
changes it for the whole process, see `privacy.secagg.crypten_runtime`. The rest, here, costs nothing.
"""

from typing import TYPE_CHECKING

from audits.lazy_imports import at_first_use

if TYPE_CHECKING:
    from privacy.secagg.channel import Handshake, Identity, InProcessRelay, Relay, SecureLink, Session, connect
    from privacy.secagg.errors import (
        MINIMUM,
        EquivocationError,
        MisdealtError,
        RangeError,
        SecureAggregationError,
        SiteError,
    )
    from privacy.secagg.group import Group
    from privacy.secagg.layout import TensorLayout

__getattr__, __dir__ = at_first_use(__name__, __file__)

__all__ = [
    "MINIMUM",
    "EquivocationError",
    "Group",
    "Handshake",
    "Identity",
    "InProcessRelay",
    "TensorLayout",
    "SecureLink",
    "MisdealtError",
    "RangeError",
    "Relay",
    "SecureAggregationError",
    "Session",
    "SiteError",
    "connect",
]
