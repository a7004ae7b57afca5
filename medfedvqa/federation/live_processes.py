"""Finds a site's live processes: each holds a lock on the newest file of its byte ledger."""

import fcntl
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from audits.byte_ledger import SITE

FOLDER = "wire"
"""The folder of the byte ledger's journals, beside the audit log."""

_HEAD = 1 << 12  # bytes; the first line of a journal is shorter


@dataclass(frozen=True)
class LiveProcesses:
    """The processes of one kit that live now."""

    site: bool
    """Whether the site's own process lives."""
    jobs: frozenset[str]
    """The ids of the jobs that have a live process."""


def live_processes(audit: Path) -> LiveProcesses:
    """The processes that write into the audit log in this folder.

    A journal that is damaged, or that this account may not read, counts as one without a process.
    """
    heads = [head for path in sorted((audit / FOLDER).glob("[0-9a-f]*.*")) if (head := _locked_head(path))]
    return LiveProcesses(
        site=any(process == SITE for process, _ in heads),
        jobs=frozenset(job for _, job in heads if job is not None),
    )


def _locked_head(path: Path) -> tuple[str, str | None] | None:
    """The process and the job of a journal whose writer lives; None for any other journal."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode) or not _is_locked(file):
            return None
        process, _, _, job, _ = json.loads(os.pread(file, _HEAD, 0).split(b"\n")[0])
        return str(process), None if job is None else str(job)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    finally:
        os.close(file)


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
