"""The code that runs a job, part by part, as the `open` entry of the audit log names it.

`code_digest` of every entry of the job is the digest over these parts, so that it changes with any of them.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from audits.errors import LogError, NewerFormat
from audits.exchange import canonical


class CodeKind(StrEnum):
    """The kind of a part, which decides what its SHA-256 covers."""

    PROJECT = "project"
    """This project's packages: over the name and content of their Python files."""
    PLUG_IN = "plug-in"
    """A further distribution that the site installed: over the name and content of its files on disk."""
    DEPENDENCY = "dependency"
    """A distribution that the project or a plug-in requires: over its RECORD, the installer's list of files and their
    digests."""
    MODULE = "module"
    """A module or package of no distribution: over its content. It has no name: a path could identify the site."""


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}").fullmatch
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,127}").fullmatch
_DIGEST = re.compile(r"[0-9a-f]{64}").fullmatch


@dataclass(frozen=True)
class CodePart:
    """One part. `sha256` is hex, or None for code that is in no file, such as a notebook's.

    Raises `ValueError` for a name, version or digest that no distribution has.
    """

    kind: CodeKind
    name: str | None
    version: str | None
    sha256: str | None

    def __post_init__(self) -> None:
        forms = ((_NAME, self.name), (_VERSION, self.version), (_DIGEST, self.sha256))
        if not all(value is None or fits(value) for fits, value in forms):
            raise ValueError("this is not a valid name, version or digest of a distribution")
        is_named = self.name is not None and self.version is not None and self.sha256 is not None
        is_bare = self.name is None and self.version is None
        if not (is_bare if self.kind is CodeKind.MODULE else is_named):
            raise ValueError("every part except a module needs a name, a version and a digest")

    @property
    def order(self) -> tuple[int, str, str, str]:
        """The part's sort key."""
        return [*CodeKind].index(self.kind), (self.name or "").lower(), self.version or "", self.sha256 or ""


@dataclass(frozen=True)
class JobCode:
    """The code that runs a job: all parts, each once and in order."""

    parts: tuple[CodePart, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(sorted(set(self.parts), key=lambda part: part.order)))

    @property
    def digest(self) -> str:
        """SHA-256, as hex, over the parts: the `code_digest` of the job's entries."""
        return hashlib.sha256(canonical(self.record())).hexdigest()

    def record(self) -> dict[str, Any]:
        """The parts as plain JSON."""
        return {"parts": [vars(part) | {"kind": part.kind.value} for part in self.parts]}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "JobCode":
        """Reads an entry's `code`. Raises `LogError` unless it is what `record` writes."""
        try:
            if any(part["kind"] not in list(CodeKind) for part in record["parts"]):
                raise NewerFormat("the entry that names a job's code")
            parts = tuple(CodePart(**{**part, "kind": CodeKind(part["kind"])}) for part in record["parts"])
            code = cls(parts)
        except (KeyError, TypeError, ValueError):
            raise LogError("the entry's code parts do not have this version's format") from None
        if code.record() != record:
            raise LogError("the entry's code parts do not have this version's format")
        return code
