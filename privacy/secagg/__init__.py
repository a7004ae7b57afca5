"""Sums and mixtures of sites' inputs, computed on shares: no party sees another's input.

The computations with CrypTen are in `privacy.secagg.protocol`. Importing that module takes seconds and patches CrypTen
for the whole process, see `privacy.secagg.crypten_runtime`. The names in this module need no CrypTen.
"""

from typing import TYPE_CHECKING

from audits.lazy_imports import at_first_use

if TYPE_CHECKING:
    from privacy.secagg.channel import Handshake, Identity, InProcessRelay, Relay, SecureLink, Session, connect
    from privacy.secagg.committee import Group
    from privacy.secagg.errors import (
        MINIMUM,
        EquivocationError,
        MisdealtError,
        RangeError,
        SecureAggregationError,
        SiteError,
    )
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
