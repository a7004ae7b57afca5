"""Chooses the sites that compute on shares for all: all that take part, a named committee, or a drawn one."""

from dataclasses import dataclass
from typing import Literal

from medfedvqa.errors import FederationError
from privacy.secagg.committee import Beacon, colluding, threshold

Protocol = Literal["mix", "mean", "sum"]
"""A mixture by CrypTen, a mean under masks, or a sum by CrypTen from which the mean follows."""


@dataclass(frozen=True)
class MembersRule:
    """The rule that server and sites both follow, so that the server cannot choose the members.

    The members are all of the `named` sites; without these, all sites if there are at most `size`, else `size` sites
    that the `beacon` draws anew for each round.
    """

    size: int
    named: tuple[str, ...] = ()
    beacon: Beacon | None = None

    def needs_draw(self, sites: tuple[str, ...]) -> bool:
        """Whether the members among these sites depend on a draw that has not been made."""
        return not self.named and len(sites) > self.size and self.beacon is None

    def members(self, sites: tuple[str, ...], round: int) -> tuple[str, ...]:
        """The members of an attempt of these sites, in order of names.

        All attempts of a round have the same members; the next sites in the draw replace those that fell out. Raises
        `FederationError` if a necessary draw is missing, or one of the named sites.
        """
        if missing := sorted(set(self.named) - set(sites)):
            raise FederationError(f"{', '.join(missing)} of the named committee is missing: the job cannot continue")
        if self.named:
            return self.named
        if len(sites) <= self.size:
            return sites
        if self.beacon is None or not set(sites) <= set(self.beacon.sites):
            raise FederationError(f"no committee was drawn from these sites, and only {self.size} of them may compute")
        return self.beacon.committee(round, self.size, set(self.beacon.sites) - set(sites))

    def sentence(self, sites: tuple[str, ...], members: tuple[str, ...], protocol: Protocol) -> str:
        """A sentence for the log: who computes, how they were chosen, and how many colluding sites could open what."""
        if protocol != "mean":
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
            f"computed by {', '.join(members)}, drawn for this round: {could}; this many collude in "
            f"{', '.join(chances)} of the {participants} sites that drew do"
        )
