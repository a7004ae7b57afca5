"""The appendix, to which figures link: the log's entries, the ledger's records, and digests in full."""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

from audits.excerpt import QuotedEntry
from medfedvqa.report.blocks import (
    Code,
    Digest,
    Facts,
    Inline,
    Section,
    Table,
    TableRow,
    at_most,
    count,
    digest,
    moment,
    plain,
    row,
)
from privacy.report.model_conduct import Report
from privacy.report.report_evidence import LedgerRow

MAX_ANCHOR = 256
"""The most characters of a digest or key that are part of an anchor; of a longer one its hash is."""


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


def _entry(entry: QuotedEntry) -> TableRow:
    fields: dict[str, Any] = entry.record
    return row(
        count(fields.get("seq")),
        moment(fields.get("time")),
        plain(fields.get("event")),
        plain(fields.get("task")),
        count(fields.get("round")),
        plain(fields.get("peer")),
        count(fields.get("nbytes")),
        plain(fields.get("outcome")),
        at_most(fields.get("epsilon_after")),
        digest(fields.get("leaf_hash")),
        count(len(entry.proof)),
        anchor=f"entry-{fields.get('seq')}",
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


def _record(record: LedgerRow) -> TableRow:
    fields: dict[str, Any] = record.record or {}
    return row(
        count(record.seq),
        moment(fields.get("time")),
        "withheld" if record.record is None else plain(fields.get("event")),
        plain(fields.get("job")),
        plain(fields.get("task")),
        count(fields.get("round")),
        count(fields.get("attempt")),
        at_most(fields.get("epsilon_after")),
        Digest(record.hash),
        anchor=f"record-{record.seq}",
    )


def digests(sections: Sequence[Section]) -> Section:
    """The full digests that the sections print short."""
    first = dict[str, str]()
    for section in sections:
        for part in _parts(section):
            if isinstance(part, Digest) and part.text != part.full:
                first.setdefault(part.full, section.heading)
    rows = tuple(row(Code(full), where, anchor=anchor(full)) for full, where in first.items())
    table = Table("As they stand in report.json", ("Digest", "First in"), rows, "There is none.")
    return Section("digests", "Digests in full", (table,))


def anchor(full: str) -> str:
    """The anchor of the row that has a digest in full."""
    if len(full) > MAX_ANCHOR:
        return f"digest-{sha256(full.encode()).hexdigest()}"
    return f"digest-{full.encode().hex() if not full.isalnum() else full}"


def _parts(section: Section) -> Iterator[Inline]:
    """The inline parts of the section's figures and tables."""
    for block in section.blocks:
        if isinstance(block, Facts):
            yield from (part for fact in block.facts for part in fact.value)
        elif isinstance(block, Table):
            yield from (part for line in block.rows for content in line.cells for part in content)
