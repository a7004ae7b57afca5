"""Reads audit logs: whether the chain holds, and what crossed the site's border. Memory does not grow with the log."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from audits.errors import LogError
from audits.log import GENESIS, LOG_NAME, MAX_LINE, Entry, Outcome, TensorRecord, parse_line


@dataclass(frozen=True)
class Verdict:
    """Whether the chain holds, and up to where.

    `entries` counts those that hold, and `head` is the hash of the last of them; `first_bad` is the position (from 0)
    of the first that does not, `reason` why. `torn_bytes` follow the last line feed: what a crash left of an entry
    that was never acknowledged, which is no tampering. A chain that was cut at its end still holds: keep `head`
    elsewhere to notice.
    """

    entries: int
    head: str
    first_bad: int | None = None
    reason: str | None = None
    torn_bytes: int = 0

    @property
    def ok(self) -> bool:
        """True if no entry was changed, removed, added or moved."""
        return self.first_bad is None


@dataclass(frozen=True)
class Row:
    """One tensor of one entry, or an entry without tensors (then `tensor` is `None`)."""

    entry: Entry
    tensor: TensorRecord | None


@dataclass(frozen=True)
class TensorTotal:
    """One declared tensor, one direction, one peer: how often it passed, and its bytes in all."""

    direction: str
    peer: str
    name: str
    messages: int
    nbytes: int


@dataclass(frozen=True)
class Totals:
    """What a log tells in sum; bytes are those of tensors' values."""

    entries: int
    messages_out: int
    bytes_out: int
    messages_in: int
    bytes_in: int
    refused: int
    tensors: tuple[TensorTotal, ...]


def verify(folder: Path) -> Verdict:
    """Follows the chain in `folder` from its first entry. Raises `LogError` if there is no log to read."""
    entries, head = 0, GENESIS
    for line in _lines(folder):
        if not line.endswith(b"\n") and len(line) <= MAX_LINE:
            return Verdict(entries, head, torn_bytes=len(line))
        try:
            record = parse_line(line)
            if record["seq"] != entries:
                raise LogError(f"entry number {entries} is due, and number {record['seq']} stands there")
            if record["prev_hash"] != head:
                raise LogError("the entry does not follow the one before it")
        except LogError as error:
            return Verdict(entries, head, first_bad=entries, reason=str(error))
        entries, head = entries + 1, record["leaf_hash"]
    return Verdict(entries, head)


def read(folder: Path) -> Iterator[Entry]:
    """The entries in order, without what a crash left behind the last.

    Raises `LogError` with the position of the first line that is no entry, or if there is no log to read.
    """
    for position, line in enumerate(_lines(folder)):
        if line.endswith(b"\n") or len(line) > MAX_LINE:
            try:
                yield Entry.from_record(parse_line(line))
            except LogError as error:
                raise LogError(f"entry {position}: {error}; have the log verified") from None


def describe(folder: Path) -> Iterator[Row]:
    """What passed, tensor by tensor, in order. Raises `LogError` as `read` does."""
    for entry in read(folder):
        for tensor in entry.tensors or (None,):
            yield Row(entry, tensor)


def totals(folder: Path) -> Totals:
    """Messages and bytes that passed, overall and per tensor. Raises `LogError` as `read` does."""
    entries, volume = Counter[Outcome | None](), Counter[Outcome | None]()
    messages, nbytes = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for entry in read(folder):
        entries[entry.outcome] += 1
        volume[entry.outcome] += entry.nbytes
        if entry.outcome is not Outcome.REFUSED:
            for tensor in entry.tensors:
                key = (str(entry.direction), str(entry.peer), tensor.name)
                messages[key] += 1
                nbytes[key] += tensor.nbytes
    return Totals(
        entries=entries.total(),
        messages_out=entries[Outcome.SENT],
        bytes_out=volume[Outcome.SENT],
        messages_in=entries[Outcome.ACCEPTED],
        bytes_in=volume[Outcome.ACCEPTED],
        refused=entries[Outcome.REFUSED],
        tensors=tuple(TensorTotal(*key, messages[key], nbytes[key]) for key in sorted(messages)),
    )


def find_logs(folder: Path) -> dict[str, Path]:
    """The folders that hold a log, by site: `folder` itself, or `sites/*/audit` of a run's output.

    Raises `LogError` if there is none.
    """
    if (folder / LOG_NAME).is_file():
        home = folder.resolve()
        return {(home.parent if home.name == "audit" else home).name: folder}
    logs = {log.parent.parent.name: log.parent for log in sorted(folder.glob(f"sites/*/audit/{LOG_NAME}"))}
    if not logs:
        raise LogError(f"there is no audit log here: point at a run's output, or at a folder that holds {LOG_NAME}")
    return logs


def _lines(folder: Path) -> Iterator[bytes]:
    """Lines with their line feeds, none longer than one byte more than an entry may take."""
    try:
        with open(folder / LOG_NAME, "rb") as log:
            while line := log.readline(MAX_LINE + 1):
                yield line
    except OSError as error:
        raise LogError(f"the audit log cannot be read ({error.strerror})") from None
