"""A site's side of training: its data, backbone, device and randomness."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from medfedvqa.data import SiteData
from medfedvqa.models import Backbone, PictureSpace
from privacy import Randomness, SecureRandomness

Derived = TypeVar("Derived")


@dataclass(frozen=True)
class Site:
    """The site's data, backbone and randomness, for handlers of tasks."""

    name: str
    data: SiteData
    backbone: Backbone
    device: str
    seed: int
    randomness: Randomness = field(default_factory=SecureRandomness, repr=False)
    """The source of the noise of differential privacy. No seed of a job reaches it."""
    secret: bytes = field(default=b"", repr=False)
    """A secret that seeds of tasks depend on besides the job's seed. In a job on shares without differential privacy it
    is the site's own, so that no other job repeats an upload. In all other jobs it is empty: they can be repeated."""
    space: PictureSpace = field(default_factory=PictureSpace, repr=False)
    """The store of pictures and of the backbone's outputs for them; without bounds by default."""
    _derived: dict[object, Any] = field(default_factory=dict, repr=False)

    def derive(self, key: object, make: Callable[[], Derived]) -> Derived:
        """A cached value that depends on data and backbone alone. It is never part of the state."""
        if key not in self._derived:
            self._derived[key] = make()
        value: Derived = self._derived[key]
        return value

    def task_seed(self, task: str, round: int) -> int:
        """The seed of one task: the same at every run of the task, and on any machine if the site has no `secret`."""
        digest = hashlib.sha256(self.secret + f"{self.seed}/{self.name}/{task}/{round}".encode()).digest()
        return int.from_bytes(digest[:6], "big")
