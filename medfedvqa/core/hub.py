"""How a server loop reaches its sites."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, Protocol

from audits import Tensors
from medfedvqa.evaluation import ServerScore
from privacy import Reliability


class GroupMean(NamedTuple):
    """The mean of the uploads of a group of sites, and the sum of their weights."""

    tensors: Tensors
    weight: float
    lost: bool = False
    """Whether this mean could not be opened; then the fields hold the group's previous mean."""


class Hub(Protocol):
    """A server loop's interface to its sites. A method gathers with the function that reveals least."""

    sites: tuple[str, ...]
    """The job's sites, except those left out for the rest of it. Messages to the latter are dropped."""
    seed: int
    """The job's seed, for the server's initial values."""
    backbone: str
    """The name of the job's backbone."""
    model: Tensors
    """The earlier job's model if hospitals of this job join one; else the last shared model of this job's sites, which
    the server keeps. It is empty if only the sites know it."""

    def rounds(self, count: int) -> Iterator[int]:
        """Rounds 1..count; ends early when the user asks to stop."""

    def collect(self, task: str, down: Mapping[str, Tensors] | None = None) -> dict[str, Tensors]:
        """The uploads of the sites that answered, by site, in the order of the sites' names.

        `down` holds the message to each; None sends nothing.
        """

    def mean(self, task: str, down: Mapping[str, Tensors] | None = None, weight: str | None = None) -> Tensors:
        """The mean of the uploads, weighted by the scalar named `weight`, which is not averaged.

        It is empty if only the sites may know the mean. Their later messages then hold it under the tensors' names.
        """

    def means(
        self,
        task: str,
        groups: Mapping[str, Collection[str]],
        down: Mapping[str, Tensors] | None = None,
        weight: str | None = None,
    ) -> dict[str, GroupMean]:
        """A `mean` for each group of sites in which a site answered. Groups have no site in common."""

    def weighed(self, weights: Mapping[str, Mapping[str, float]]) -> None:
        """Records, for the results of this round, the weight of each site's upload for each receiving site."""

    def mix(
        self,
        task: str,
        reliability: Reliability,
        down: Mapping[str, Tensors] | None = None,
        targets: tuple[str, ...] | None = None,
    ) -> dict[str, Tensors]:
        """For each target site, the mixture of the other sites' uploads by reliability. Uploads carry `accuracy`."""

    def tested(self, score: ServerScore) -> None:
        """Records the test of the server's own model on public rows, for the results. It calls no site."""

    def counted(self, statistics: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
        """Records counts by site (or for all together), table and category, for the results. It calls no site."""
