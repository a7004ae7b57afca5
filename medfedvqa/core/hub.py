"""How a server loop reaches its sites."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from audits import Tensors
from privacy import Reliability


class Hub(Protocol):
    """How a server loop reaches its sites. Ask for the weakest gathering that the method can live with."""

    sites: tuple[str, ...]
    seed: int
    """The job's, for whatever the server begins with."""
    backbone: str
    """The name of the job's."""

    def rounds(self, count: int) -> Iterator[int]:
        """Rounds 1..count; ends early when the user asks to stop."""

    def collect(self, task: str, down: Mapping[str, Tensors] | None = None) -> dict[str, Tensors]:
        """Every site's own upload. `down` is per site; None sends nothing."""

    def mean(self, task: str, down: Mapping[str, Tensors] | None = None, weight: str | None = None) -> Tensors:
        """The mean of the uploads, weighted by the scalar named `weight`, which itself is not averaged.

        Empty if only the sites may know it: they find it in the place of the tensors of these names in messages."""

    def mix(
        self,
        task: str,
        reliability: Reliability,
        down: Mapping[str, Tensors] | None = None,
        targets: tuple[str, ...] | None = None,
    ) -> dict[str, Tensors]:
        """For each target site, the other sites' uploads mixed by reliability; uploads carry `accuracy`."""
