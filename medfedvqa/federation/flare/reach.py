"""One reach behind NVIDIA FLARE's documented interface: how code is replaced, and the digest of the source beneath."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Literal

_MARK = "_medfedvqa_replaces"


@dataclass(frozen=True)
class Reach:
    """What is reached in a server's processes, and why no public hook serves."""

    target: str
    """`module:name` or `module:Class.name`."""
    kind: Literal["replaced", "written", "read", "relied on"]
    why: str
    digests: Mapping[str, tuple[str, ...]]
    """The tested versions by the SHA-256 of the source."""
    source: str | None = None
    """The place of the source where it is not the target: for an imported name, and for a state."""

    @property
    def name(self) -> str:
        """The target without its module."""
        return self.target.partition(":")[2]

    @property
    def owner(self) -> Any:
        """The module or class that has the target."""
        return resolve_name(self.target.rpartition(".")[0] if "." in self.name else self.target.partition(":")[0])

    def current(self) -> Any:
        """The object at the target now."""
        return resolve_name(self.target)

    def replace(self, replacement: Callable[..., Any]) -> None:
        """Make FLARE call `replacement` in this process. Nothing else changes a function of FLARE."""
        current = self.current()
        if current is not replacement:
            setattr(replacement, _MARK, current)
            setattr(self.owner, self.name.rpartition(".")[2], replacement)

    def replaced(self) -> bool:
        """Whether this project's function stands at the target."""
        return hasattr(self.current(), _MARK)

    def digest(self) -> str | None:
        """The SHA-256 of FLARE's source in this process, beneath any replacement; None if there is none."""
        try:
            code = resolve_name(self.source or self.target)
            while hasattr(code, _MARK):
                code = getattr(code, _MARK)
            return sha256(inspect.getsource(code))
        except (ImportError, AttributeError, OSError, TypeError):
            return None

    def has_tested_source(self) -> bool:
        """Whether the source is the one of a tested version."""
        return self.digest() in self.digests


def sha256(source: str) -> str:
    """The digest of a source, as the table holds it."""
    return hashlib.sha256(source.encode()).hexdigest()
