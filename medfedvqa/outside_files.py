"""Reads untrusted files."""

from pathlib import Path

from audits.bounded_files import MAX_DOCUMENT, read_bounded
from medfedvqa.errors import ConfigError


def bytes_of(path: Path) -> bytes:
    """The content of an untrusted file. Raises `ConfigError` if it is unreadable or above `MAX_DOCUMENT` bytes."""
    try:
        return read_bounded(path, MAX_DOCUMENT)
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror}") from None
