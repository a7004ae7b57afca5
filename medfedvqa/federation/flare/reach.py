"""One reach behind NVIDIA FLARE's documented interface: how it is replaced, and the digest of the source beneath."""

import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

_MARK = "_medfedvqa_replaces"


@dataclass(frozen=True)
class Reach:
    """What is reached, in whose processes, and why no public hook serves."""

    target: str
    """`module:name` or `module:Class.name`."""
    kind: Literal["replaced", "written", "read", "relied on"]
    parties: frozenset[str]
    """Of `site` and `server`, those in whose processes it is."""
    why: str
    digests: Mapping[str, tuple[str, ...]]
    """The tested versions by the SHA-256 of the source."""
    source: str | None = None
    """Where the source is, if not at the target: of a name that is imported, and of a state."""

    @property
    def name(self) -> str:
        """The target without its module."""
        return self.target.partition(":")[2]

    @property
    def owner(self) -> Any:
        """The module or class that has the target."""
        return resolve(self.target.rpartition(".")[0] if "." in self.name else self.target.partition(":")[0])

    def current(self) -> Any:
        """What stands at the target now."""
        return resolve(self.target)

    def replace(self, replacement: Callable[..., Any]) -> None:
        """From now on FLARE calls `replacement` in this process. Nothing else changes a function of FLARE."""
        current = self.current()
        if current is not replacement:
            setattr(replacement, _MARK, current)
            setattr(self.owner, self.name.rpartition(".")[2], replacement)

    def replaced(self) -> bool:
        """Whether this project's function stands at the target."""
        return hasattr(self.current(), _MARK)

    def digest(self) -> str | None:
        """The SHA-256 of the source that FLARE has in this process, beneath what replaces it; None if there is none."""
        try:
            code = resolve(self.source or self.target)
            while hasattr(code, _MARK):
                code = getattr(code, _MARK)
            return sha256(inspect.getsource(code))
        except (ImportError, AttributeError, OSError, TypeError):
            return None

    def has_tested_source(self) -> bool:
        """Whether the source is the one of a tested version."""
        return self.digest() in self.digests


def resolve(place: str) -> Any:
    """What `module`, `module:name` or `module:Class.name` names. Raises `ImportError`, `AttributeError`."""
    module, _, name = place.partition(":")
    target: Any = importlib.import_module(module)
    for part in name.split(".") if name else []:
        target = getattr(target, part)
    return target


def sha256(source: str) -> str:
    """As the table holds it."""
    return hashlib.sha256(source.encode()).hexdigest()
