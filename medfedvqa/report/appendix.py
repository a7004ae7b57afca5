"""What figures point at: the log's entries, the ledger's records, and digests in full."""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

from audits.excerpt import QuotedEntry
from medfedvqa.report.blocks import (
    Code,
    Digest,
    Facts,
    Inline,
    Row,
    Section,
    Table,
    at_most,
    count,
    digest,
    moment,
    plain,
    row,
)
from privacy.report.model_conduct import Report
from privacy.report.report_evidence import LedgerRow

LONGEST = 256
"""Characters of a digest or key that an anchor names as it is."""


def log(report: Report) -> Section:
    """The quoted entries of the audit log."""
    titles = ("Entry", "Time", "Event", "Task", "Round", "Peer", "#Bytes", "Outcome", "#Epsilon after")
    rows = tuple(_entry(entry) for entry in report.evidence.log.entries)
    table = Table(
        "Entries of the audit log that belong to the job; report.json has each of them whole, with its proof",
        (*titles, "Leaf", "#Hashes of the proof"),
        rows,
        "No entry is quoted.",
    )
    return Section("log", "Log entries", (table,))


def _entry(entry: QuotedEntry) -> Row:
    it: dict[str, Any] = entry.record
    return row(
        count(it.get("seq")),
        moment(it.get("time")),
        plain(it.get("event")),
        plain(it.get("task")),
        count(it.get("round")),
        plain(it.get("peer")),
        count(it.get("nbytes")),
        plain(it.get("outcome")),
        at_most(it.get("epsilon_after")),
        digest(it.get("leaf_hash")),
        count(len(entry.proof)),
        anchor=f"entry-{it.get('seq')}",
    )


def ledger(report: Report) -> Section:
    """The records of the budget ledger."""
    table = Table(
        "Records of the budget ledger; one that lists patients' digests is here by its hash only",
        ("Record", "Time", "Event", "Job", "Task", "Round", "Attempt", "#All jobs, after", "Hash"),
        tuple(_record(record) for record in report.evidence.ledger),
        "The site has no ledger.",
    )
    return Section("ledger", "Ledger records", (table,))


def _record(record: LedgerRow) -> Row:
    it: dict[str, Any] = record.record or {}
    return row(
        count(record.seq),
        moment(it.get("time")),
        "withheld" if record.record is None else plain(it.get("event")),
        plain(it.get("job")),
        plain(it.get("task")),
        count(it.get("round")),
        count(it.get("attempt")),
        at_most(it.get("epsilon_after")),
        Digest(record.hash),
        anchor=f"record-{record.seq}",
    )


def digests(sections: Sequence[Section]) -> Section:
    """All digests that the sections print short, in full."""
    first = dict[str, str]()
    for section in sections:
        for part in _parts(section):
            if isinstance(part, Digest) and part.text != part.full:
                first.setdefault(part.full, section.heading)
    rows = tuple(row(Code(full), where, anchor=anchor(full)) for full, where in first.items())
    table = Table("As they stand in report.json", ("Digest", "First in"), rows, "There is none.")
    return Section("digests", "Digests in full", (table,))


def anchor(full: str) -> str:
    """Where a digest stands in full."""
    if len(full) > LONGEST:
        return f"digest-{sha256(full.encode()).hexdigest()}"
    return f"digest-{full.encode().hex() if not full.isalnum() else full}"


def _parts(section: Section) -> Iterator[Inline]:
    for block in section.blocks:
        if isinstance(block, Facts):
            yield from (part for one in block.facts for part in one.value)
        elif isinstance(block, Table):
            yield from (part for line in block.rows for content in line.cells for part in content)
