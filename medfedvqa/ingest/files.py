"""Files that are whole or absent, and for the site's own account only."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write beside `path` with mode 0600, then rename over it: a crash leaves the old file or none."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
