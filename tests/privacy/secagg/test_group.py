"""Who takes part and who computes."""

import pytest

from privacy.secagg import Group, SecureAggregationError


def test_ranks_follow_the_order_of_names() -> None:
    """Among the sites, and among the members."""
    sites = ("a", "b", "c", "d", "e")
    member, owner = Group("d", sites, ("b", "c", "d")), Group("a", sites, ("b", "c", "d"))
    assert (member.rank, member.seat, member.is_member) == (3, 2, True)
    assert (owner.rank, owner.is_member) == (0, False)


@pytest.mark.parametrize(
    ("sites", "members", "sentence"),
    [
        ("abc", "ab", "fewer than 3"),
        ("abc", "abd", "must be among the sites"),
        ("bcd", "bcd", "must be among the sites"),
        ("acb", "abc", "in alphabetical order"),
        ("abcd", "acb", "in alphabetical order"),
        ("aabc", "abc", "once"),
    ],
)
def test_what_is_no_group_is_refused(sites: str, members: str, sentence: str) -> None:
    """Too few members, strangers as members, this site left out, names out of order or twice."""
    with pytest.raises(SecureAggregationError, match=sentence):
        Group("a", tuple(sites), tuple(members))
