"""Which sites compute on shares for all that take part: all of them, a named committee, or a drawn one."""

from dataclasses import dataclass
from typing import Literal

from medfedvqa.errors import FederationError
from privacy.secagg.committee import Beacon, colluding
from privacy.secagg.pairwise_masks import threshold

Protocol = Literal["mix", "mean"]


@dataclass(frozen=True)
class MembersRule:
    """What server and sites both follow, so that the server cannot choose: all of at most `size` sites, or so many
    drawn by the `beacon`, anew for each round; or those that are `named`, all of them."""

    size: int
    named: tuple[str, ...] = ()
    beacon: Beacon | None = None

    def needs_draw(self, sites: tuple[str, ...]) -> bool:
        """Whether the members among so many sites cannot be told without a draw that has not been made."""
        return not self.named and len(sites) > self.size and self.beacon is None

    def members(self, sites: tuple[str, ...], round: int) -> tuple[str, ...]:
        """Those of an attempt of these sites, in order of names; the same in all attempts of a round but for those that
        fell out, whose places the next in the draw take.

        Raises `FederationError` without a draw where it needs one, or without one of the named.
        """
        if missing := sorted(set(self.named) - set(sites)):
            raise FederationError(f"{', '.join(missing)} of the named committee is not there: the job cannot go on")
        if self.named:
            return self.named
        if len(sites) <= self.size:
            return sites
        if self.beacon is None or not set(sites) <= set(self.beacon.sites):
            raise FederationError(f"no committee was drawn from these sites, and only {self.size} of them may compute")
        return self.beacon.committee(round, self.size, set(self.beacon.sites) - set(sites))

    def sentence(self, sites: tuple[str, ...], members: tuple[str, ...], protocol: Protocol) -> str:
        """For the log: who computes, how they were chosen, and who together could open what, in numbers."""
        if protocol == "mix":
            enough, could = len(members), f"all {len(members)} of them together could open every input"
        else:
            enough = 2 * threshold(len(members)) - len(members)
            could = f"{enough} of them together with the server could open single uploads"
        if self.named:
            return f"computed by {', '.join(members)}, named by the sites' policies: {could}"
        if self.beacon is None or len(sites) <= self.size:
            return f"computed by all of them: {could}"
        participants, dropouts = len(self.beacon.sites), len(self.beacon.sites) - len(sites)
        chances = (
            f"{100 * colluding(participants, colluders, len(members), enough, dropouts):.2g} % if {colluders}"
            for colluders in (max(1, participants // 10), participants // 3)
        )
        return (
            f"computed by {', '.join(members)}, drawn for this round: {could}; so many collude in "
            f"{', '.join(chances)} of the {participants} sites that drew do"
        )
