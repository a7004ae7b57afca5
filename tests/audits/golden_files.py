"""The golden files of all formats, and logs made of them."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from audits.exchange import canonical

GOLDEN = Path(__file__).parents[1] / "golden"
NUMBERS = sorted(int(folder.name.removeprefix("formats-")) for folder in GOLDEN.glob("formats-*"))
REPORTS = sorted(GOLDEN.glob("formats-*/report*"))
"""Of each format of reports, the former first."""


def lines_of(folder: Path) -> list[bytes]:
    return (folder / "log" / "log.jsonl").read_bytes().splitlines(keepends=True)


def rewritten(lines: list[bytes], change: Callable[[dict[str, Any]], object]) -> list[bytes]:
    """The same entries, changed, with a chain that holds."""
    head, new = "0" * 64, []
    for line in lines:
        record = {name: value for name, value in json.loads(line).items() if name != "leaf_hash"} | {"prev_hash": head}
        change(record)
        head = sha256(b"\0" + canonical(record)).hexdigest()
        new.append(canonical(record | {"leaf_hash": head}) + b"\n")
    return new


def put(folder: Path, lines: list[bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.jsonl").write_bytes(b"".join(lines))
    return folder
