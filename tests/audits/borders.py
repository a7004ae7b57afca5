"""A site's border in tests: a small exchange, a policy, and the gate with its log."""

from dataclasses import dataclass
from pathlib import Path

from audits import (
    AuditLog,
    Entry,
    Exchange,
    Gate,
    JobContext,
    Kind,
    Protection,
    SitePolicy,
    TaskSpec,
    TensorSpec,
    read,
)

PROMPT = TensorSpec("prompt", (2, 3), "float32", Kind.PARAMETERS, "A prompt.", ("server", "site-2"), Protection.MASKED)
ROWS = TensorSpec("rows", (), "int64", Kind.STATISTIC, "A count.")
EXCHANGE = Exchange(
    "prompt_pfl",
    (TaskSpec("train", up=(PROMPT, ROWS), down=(PROMPT,)), TaskSpec("ready", up=(), down=())),
)
POLICY = SitePolicy(("prompt_pfl",), (Kind.PARAMETERS, Kind.STATISTIC), ("server", "site-2"))
CONTEXT = JobContext("job-1", "prompt_pfl", "aa" * 32, "0.1.0", "bb" * 32, "cc" * 32)


@dataclass(frozen=True)
class Site:
    """A site's border: its gate and the folder of its log."""

    gate: Gate
    folder: Path

    def entries(self) -> list[Entry]:
        return list(read(self.folder))

    def log_bytes(self) -> bytes:
        return (self.folder / "log.jsonl").read_bytes()


def border(folder: Path, exchange: Exchange = EXCHANGE, policy: SitePolicy = POLICY) -> Site:
    return Site(Gate(exchange, policy, AuditLog(folder, "chest"), CONTEXT), folder)
