"""Result files that are whole or absent, never half-written."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> Path:
    """Write beside `path`, then rename over it; makes the folder. A crash leaves the old file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path
