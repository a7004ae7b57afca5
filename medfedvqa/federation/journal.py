"""The server's journal of a run: the answers of each call, with which a new server continues after the old one died.

A method's loop at the server is a function of what the sites answer, so its state needs no format of its own: the loop
runs again from the beginning with the recorded answers, until it makes the first call without one. Sites answer a task
that they are sent again from what they saved.
"""

import hashlib
import io
import json
import secrets
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from audits import Tensors, canonical
from medfedvqa.atomic_files import PRIVATE, write_whole
from medfedvqa.errors import FederationError

FORMAT = 1
"""The format number of the entries that this version writes."""

JOURNAL = "journal"
"""The name of the journal's folder."""

_HEADER, _RUN = "header", "run"


@dataclass(frozen=True)
class RecordedCall:
    """One finished call: the answers as the hub accepted them, and how long it took."""

    answers: dict[str, tuple[Tensors, float]] = field(repr=False)
    """Each site's tensors, and its seconds, in order of arrival."""
    seconds: float
    refusals: dict[str, str] = field(default_factory=dict)
    """The refusal's sentence of each site without which the job continued."""


class Journal:
    """Numbered files, one for each recorded call, that are read back in the order in which they were written."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: the journal's folder; if None, nothing is recorded or recalled."""
        self._folder, self._number = folder, 0
        self.continues = folder is not None and folder.exists()
        """Whether an earlier process of the run died."""
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @cached_property
    def run(self) -> str:
        """Random hex digits, the same for all processes of the run."""
        if self._folder is None:
            return secrets.token_hex(8)
        path = self._folder / _RUN
        if not path.exists():
            write_whole(path, secrets.token_hex(8).encode(), PRIVATE)
        return path.read_text(encoding="ascii")

    @property
    def recalls(self) -> bool:
        """Whether the next call is one that an earlier process finished."""
        return self._folder is not None and self._path.exists()

    def recall(self, task: str, round: int, messages: Mapping[str, Tensors]) -> RecordedCall | None:
        """The next call if it is recorded, else None.

        Raises `FederationError` if the record is damaged or of a newer version, or if it is of another call: then the
        server no longer computes as before.
        """
        if not self.recalls:
            return None
        with self._reading() as (header, arrays):
            _check(header, {"task": task, "round": round, "messages": _digest(messages)})
            answers: dict[str, tuple[Tensors, float]] = {
                site: ({name: arrays[f"{place}/{name}"] for name in names}, seconds)
                for place, (site, names, seconds) in enumerate(header["answers"])
            }
            return RecordedCall(answers, float(header["seconds"]), header.get("refusals", {}))

    def record(self, task: str, round: int, messages: Mapping[str, Tensors], call: RecordedCall) -> None:
        """Write a finished call durably before returning."""
        described = [(site, list(tensors), seconds) for site, (tensors, seconds) in call.answers.items()]
        arrays = {
            f"{place}/{name}": array
            for place, (tensors, _) in enumerate(call.answers.values())
            for name, array in tensors.items()
        }
        header = {"task": task, "round": round, "messages": _digest(messages), "seconds": call.seconds}
        self._write({**header, "answers": described, "refusals": call.refusals}, arrays)

    def forget(self) -> None:
        """Remove all entries, once the run has its results: they hold the sites' uploads."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _path(self) -> Path:
        assert self._folder is not None
        return self._folder / f"{self._number:08d}.npz"

    def _write(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        if self._folder is None:
            return
        content = io.BytesIO()
        text = json.dumps({"format": FORMAT, **header}).encode()
        np.savez(content, allow_pickle=False, **{_HEADER: np.frombuffer(text, np.uint8), **arrays})
        write_whole(self._path, content.getvalue(), PRIVATE)
        self._number += 1

    @contextmanager
    def _reading(self) -> Iterator[tuple[dict[str, Any], Mapping[str, np.ndarray]]]:
        """Header and arrays of the next entry; afterwards the journal moves on to the one that follows."""
        try:
            # From a path, numpy (2) leaves the file open if it is damaged.
            with np.load(io.BytesIO(self._path.read_bytes()), allow_pickle=False) as arrays:
                yield json.loads(arrays[_HEADER].tobytes()), arrays
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
            raise FederationError("the server's journal of the run is damaged: start a new run") from None
        self._number += 1


def _check(header: dict[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises `FederationError` unless the entry is of this version or an older one, and of the expected call."""
    if int(header["format"]) > FORMAT:
        raise FederationError("the server's journal was written by a newer version of this software: use that version")
    if any(header[name] != value for name, value in expected.items()):
        raise FederationError(
            "the run cannot continue: this version or its libraries compute other values than those with which it "
            "began; use the earlier ones, or start a new run"
        )


def _digest(messages: Mapping[str, Tensors]) -> str:
    """SHA-256, in hex, of everything that a call sends to the sites."""
    digest = hashlib.sha256()
    for site in sorted(messages):
        for name, array in sorted(messages[site].items()):
            array = np.ascontiguousarray(array)
            digest.update(canonical([site, name, array.dtype.str, list(array.shape)]))
            digest.update(array.tobytes())
        digest.update(canonical([site]))
    return digest.hexdigest()
