"""The version and digest of the running code, which every log entry and every result names."""

import hashlib
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

VERSION = "0.3.0"
"""The version's only source: pyproject.toml reads it here. An editable installation may have older metadata."""
PACKAGES = ("medfedvqa", "privacy", "audits")


def code_version() -> str:
    """The version of the code that runs."""
    return VERSION


@lru_cache
def project_files() -> tuple[tuple[str, Path], ...]:
    """The Python files of the three packages, each with its name as `package/module.py`."""
    found = list[tuple[str, Path]]()
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None
        folder = Path(spec.origin).parent
        paths = sorted(folder.rglob("*.py"))
        found += ((f"{package}/{path.relative_to(folder).as_posix()}", path) for path in paths)
    return tuple(found)


@lru_cache
def _snapshot() -> tuple[set[str], dict[Path, bytes]]:
    """The modules that this process has loaded, and the digest of each of the project's files, as of the first call."""
    return set(sys.modules), {path: hashlib.sha256(path.read_bytes()).digest() for _, path in project_files()}


@lru_cache
def code_digest() -> str:
    """SHA-256 over the Python files of the three packages, by name and content, hex.

    `medfedvqa.code_identity.running_code` has the other code that takes part in a job.
    """
    digest, (_, files) = hashlib.sha256(), _snapshot()
    for name, path in project_files():
        digest.update(f"{name}\0".encode())
        digest.update(files[path])
    return digest.hexdigest()


def runs_other_code() -> bool:
    """Whether this process has imported a file of the project that changed after `code_digest` read it."""
    loaded, files = _snapshot()
    late = [name for name in sys.modules if name not in loaded and name.partition(".")[0] in PACKAGES]
    paths = [Path(file) for name in late if (file := getattr(sys.modules[name], "__file__", None))]
    if any(files.get(path) != hashlib.sha256(path.read_bytes()).digest() for path in paths):
        return True
    loaded.update(late)
    return False
