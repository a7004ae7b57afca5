"""Files that are whole or absent, never half-written."""

import os
from collections.abc import Iterable
from pathlib import Path

PRIVATE = 0o600
"""The mode of a file for the site's own account only."""


def write_whole(path: Path, content: bytes | Iterable[bytes], mode: int = 0o666) -> Path:
    """Write beside `path`, then rename over it; makes the folder. A crash leaves the old file or none.

    `content` may be pieces, which are written as they come and need no memory together.

    `mode` is lessened by the process's umask, as that of any new file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path
