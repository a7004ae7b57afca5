"""What the server makes of the sites' answers to an attempt at a mean that members compute with CrypTen."""

from collections.abc import Collection, Mapping

from medfedvqa.core import FAULT, SHARED_BYTES
from medfedvqa.core.on_shares import OPENED
from medfedvqa.federation.aggregation_attempt import Attempt
from medfedvqa.federation.hub import Reply
from privacy.secagg import SecureAggregationError
from privacy.secagg.committee import threshold
from privacy.secagg.ring import Ring


def agreed_sum(sums: Mapping[str, Ring]) -> Ring:
    """The sum that all members who have one have opened. Raises `SecureAggregationError` if they differ."""
    if len({total.tobytes() for total in sums.values()}) > 1:
        raise SecureAggregationError("members opened different sums: one of them sent another share, or another sum")
    return next(iter(sums.values()))


def without_key(replies: Mapping[str, Reply]) -> set[str]:
    """The sites that broke off before they had the key under which only sites read the sum."""
    return {site for site, reply in replies.items() if FAULT.name in reply.tensors and not _has_opened(reply)}


def check_repeatable(attempt: Attempt, replies: Mapping[str, Reply], left: Collection[str]) -> None:
    """Raises `SecureAggregationError` unless the sites that are left may take part in another attempt.

    They refuse one once a member has sent its part of the opening, or if so few of the members come along that the
    others could still open the first attempt.
    """
    if any(_has_opened(reply) for reply in replies.values()):
        raise SecureAggregationError("a member broke off while the sum was being opened, and no member has all of it")
    shared = any(int(reply.tensors.get(SHARED_BYTES.name, 0)) for reply in replies.values())
    if shared and len(set(attempt.members) & set(left)) < threshold(len(attempt.members)):
        raise SecureAggregationError("too few members are left, and some sites have shared their values")


def _has_opened(reply: Reply) -> bool:
    return bool(int(reply.tensors.get(OPENED.name, 0)))
