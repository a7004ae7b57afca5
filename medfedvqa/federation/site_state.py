"""A site's saved state of one job between tasks: the last task's state and answer, and the site's own figures."""

import dataclasses
import json
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from audits.log_files import sync_folder
from medfedvqa.core import Tensors
from medfedvqa.errors import FederationError
from privacy.secagg.committee import Beacon

FORMAT = 1
"""The format number of the state that this version writes."""
SECRET_BYTES = 32


@dataclass(frozen=True)
class Contribution:
    """A site's record of its upload in an attempt at a mean, kept until the next attempt or round."""

    attempt: str
    sites: tuple[str, ...]
    members: tuple[str, ...]
    shares: dict[str, bytes] = field(default_factory=dict)
    """A member's shares of each site's key, which open the sum; empty once another attempt has begun."""
    group_key: bytes | None = None
    opening_keys: dict[str, bytes] = field(default_factory=dict)
    """A key for each other member, with which the members compare the server's announcement before they open a sum."""
    answered: tuple[str, ...] = ()
    """The sites in the one sum for which this member has answered. With CrypTen: in the sum that it opens."""
    total: bytes | None = None
    """With CrypTen, the sum that this member has opened."""


@dataclass(frozen=True)
class LastingMasks:
    """The keys that a site keeps for the masks of all its later uploads in a job."""

    attempt: str
    """The attempt at a mean in which the sites agreed on the keys."""
    sites: tuple[str, ...]
    keys: dict[str, bytes]
    """By site, the key in common with it: with every member, and at a member with every site."""


@dataclass(frozen=True)
class Draw:
    """A site's record of the job's one draw of a committee."""

    nonce: bytes
    """The site's nonce, which never changes."""
    commitments: dict[str, bytes] = field(default_factory=dict)
    """The commitments of all sites, as they were when this site opened its own; empty before."""
    beacon: bytes | None = None
    """The value that follows from all nonces."""

    @property
    def opened(self) -> Beacon | None:
        """The beacon with its sites; None before all nonces are open."""
        return Beacon(tuple(sorted(self.commitments)), self.beacon) if self.beacon else None


@dataclass(frozen=True)
class Dealt:
    """A site's record of a dealing for a mixture, from sending its seed until it shares its input."""

    seed: bytes
    coin: bytes
    attempt: bytes | None = None
    """The label of the attempt that the seed is for; None until there is one."""
    round: int = 0
    number: int = 0
    committed: bytes | None = None
    """The dealer's commitments when this member opened its coin; None before."""


@dataclass(frozen=True)
class Saved:
    """The record that survives a killed process: the state after a task, and the task's answer."""

    task: str
    round: int
    state: dict[str, Any]
    reply: Tensors
    attempt: str = ""
    """The last attempt of this site to aggregate the reply on shares."""
    mixture: Tensors = field(default_factory=dict)
    """The site's last results on shares, by name."""
    mixed: int = 0
    """The round of the site's last mixture."""
    contributions: tuple[Contribution, ...] = ()
    """The attempts at a mean of the reply, in order."""
    number: int = 0
    """The number of the last attempt at the reply."""
    group: tuple[str, ...] = ()
    """The sites of the job's last attempt. A later attempt may add no site; empty before the first attempt."""
    draw: Draw | None = None
    dealt: Dealt | None = None
    lasting: LastingMasks | None = None
    sent: str = ""
    """A digest of all that the server sent for the task, if its answer goes into a mean."""
    summand: Tensors = field(default_factory=dict)
    """What leaves of the reply under the lasting masks, before they are added, by name. It is empty if nothing does;
    otherwise no attempt at a mean takes the reply again."""

    @property
    def beacon(self) -> Beacon | None:
        """The beacon of the job's draw, once this site has verified it."""
        return self.draw.opened if self.draw else None


_ARRAYS = ("reply", "mixture", "summand")
_PARTS: dict[str, type[Any]] = {"draw": Draw, "dealt": Dealt, "lasting": LastingMasks}
_DAMAGED = "what this site saved of the job is damaged: remove the job's state, and start the job anew"


class StateFile:
    """One job's state at one site, replaced atomically."""

    def __init__(self, folder: Path, job_id: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{job_id}.pt"

    def load(self) -> Saved | None:
        """The last saved task, or None before the first. Raises `FederationError`."""
        if not self._path.exists():
            return None
        try:
            return self._read(torch.load(self._path, weights_only=True))
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, EOFError, pickle.UnpicklingError):
            raise FederationError(_DAMAGED) from None

    def _read(self, fields: dict[str, Any]) -> Saved:
        """The saved task in the file's dictionary. Raises `FederationError` if it is of another format."""
        if "format" not in fields:
            raise FederationError(
                "what this site saved of the job is of a development state before 0.2.0, which is no longer read: "
                "version 0.2.0 reads it"
            )
        parts = [(Saved, fields), *((kind, fields.get(name)) for name, kind in _PARTS.items())]
        parts += [(Contribution, contribution) for contribution in fields["contributions"]]
        if fields.pop("format") > FORMAT or any(_is_more(kind, part or {}) for kind, part in parts):
            raise FederationError(
                "this site's saved state of the job was written by a newer version of this software: use that version"
            )
        arrays = {part: {name: tensor.numpy() for name, tensor in fields.pop(part, {}).items()} for part in _ARRAYS}
        contributions = tuple(Contribution(**contribution) for contribution in fields.pop("contributions"))
        read: dict[str, Any] = {name: fields.pop(name, None) for name in _PARTS}
        read = {name: part and _PARTS[name](**part) for name, part in read.items()}
        return Saved(**fields | arrays | read, contributions=contributions)

    def save(self, saved: Saved) -> None:
        """Write durably before returning: the task must not run twice once its answer may have left."""
        fields = {"format": FORMAT, **vars(saved)} | {"contributions": [vars(part) for part in saved.contributions]}
        fields |= {name: fields[name] and vars(fields[name]) for name in _PARTS}
        for part in _ARRAYS:
            fields[part] = {name: torch.from_numpy(np.array(array)) for name, array in fields[part].items()}
        with _replaced(self._path) as file:
            torch.save(fields, file)

    def secret(self) -> bytes:
        """32 random bytes for this job, the same after a restart, which the site keeps. Raises `FederationError`."""
        path = self._path.with_suffix(".secret")
        if not path.exists():
            with _replaced(path) as file:
                file.write(os.urandom(SECRET_BYTES))
        secret = path.read_bytes()
        if len(secret) != SECRET_BYTES:
            raise FederationError(_DAMAGED)
        return secret

    def forget(self) -> None:
        """Remove everything that the job left."""
        for path in self._path.parent.glob(f"{self._path.stem}.*"):
            path.unlink()

    def keep(self, task: str, reply: Tensors) -> None:
        """Write a task's figures, by name, to `JOB.TASK.json` for the hospital itself; they do not leave the site."""
        figures = {name: array.tolist() for name, array in reply.items()}
        with _replaced(self._path.with_suffix(f".{task}.json")) as file:
            file.write(json.dumps(figures, indent=2).encode() + b"\n")


def _is_more(kind: type, part: dict[str, Any]) -> bool:
    """Whether a part of the state has fields that this version does not know."""
    return bool(part.keys() - {entry.name for entry in dataclasses.fields(kind)})


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """A new file for the site's account only; when the context ends, it replaces `path` whole and durably."""
    partial = path.with_suffix(".partial")
    with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)
