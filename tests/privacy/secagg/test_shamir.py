"""Secrets divided among members."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.secagg import SecureAggregationError, shamir

secrets = st.integers(0, shamir.PRIME - 1)


@given(secrets, st.integers(1, 9), st.data())
def test_any_threshold_of_shares_rebuilds_the_secret(secret: int, members: int, data: st.DataObject) -> None:
    """Whichever members they are, and however many more there are."""
    threshold = data.draw(st.integers(1, members))
    shares = dict(enumerate(shamir.split(secret, members, threshold)))
    seats = data.draw(st.sets(st.sampled_from(range(members)), min_size=threshold))
    assert shamir.rebuild({seat: shares[seat] for seat in seats}, threshold) == secret
    assert shamir.from_bytes(shamir.to_bytes(secret)) == secret
    with pytest.raises(SecureAggregationError, match="nothing is opened"):
        shamir.rebuild({seat: shares[seat] for seat in range(threshold - 1)}, threshold)


@given(secrets, secrets, st.integers(2, 9), st.data())
def test_one_share_fewer_agrees_with_every_secret(secret: int, other: int, members: int, data: st.DataObject) -> None:
    """Exactly one value of a missing share goes with any other secret, so what is held tells nothing about it."""
    threshold = data.draw(st.integers(2, members))
    shares = dict(enumerate(shamir.split(secret, members, threshold)))
    held = sorted(data.draw(st.sets(st.sampled_from(range(members)), min_size=threshold - 1, max_size=threshold - 1)))
    missing = next(seat for seat in range(members) if seat not in held)
    points = {seat: shares[seat] for seat in held}
    # The secret is linear in the missing share: find the share under which it is the other one.
    at_zero, at_one = (shamir.rebuild({**points, missing: share}, threshold) for share in (0, 1))
    share = (other - at_zero) * pow(at_one - at_zero, -1, shamir.PRIME) % shamir.PRIME
    assert shamir.rebuild({**points, missing: share}, threshold) == other
