"""The participants of a computation on shares: sites that own data, and the members among them that compute."""

from dataclasses import dataclass

from privacy.secagg.errors import MINIMUM, SecureAggregationError


@dataclass(frozen=True)
class Group:
    """A group as one of its sites, `me`, sees it; every name list is in order of names.

    Each of the `sites` owns an input; the `members`, all sites or a committee of them, compute on shares.
    Raises `SecureAggregationError` with fewer than 3 members, or if the names do not describe a group.
    """

    me: str
    sites: tuple[str, ...]
    members: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.members) < MINIMUM:
            raise SecureAggregationError(f"fewer than {MINIMUM} sites would reveal each other: wait for more sites")
        for names in (self.sites, self.members):
            if list(names) != sorted(set(names)):
                raise SecureAggregationError("a group names each site once, in order of names: sort them")
        if not {self.me, *self.members} <= set(self.sites):
            raise SecureAggregationError("this site and all members must be among the sites: choose them from these")

    @property
    def rank(self) -> int:
        """This site's place among the sites."""
        return self.sites.index(self.me)

    @property
    def is_member(self) -> bool:
        """Whether this site computes."""
        return self.me in self.members

    @property
    def seat(self) -> int:
        """This site's place among the members. Raises `ValueError` if it is none."""
        return self.members.index(self.me)
