"""The appendix, to which figures link: the log's entries, the ledger's records, and digests in full."""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

from medfedvqa.report.blocks import (
    Code,
    Digest,
    Facts,
    Inline,
    Section,
    Table,
    at_most,
    count,
    digest,
    moment,
    plain,
    row,
    stack,
    table,
)
from privacy.report.model_conduct import Report
from privacy.report.report_evidence import LedgerRow

MAX_ANCHOR = 256
"""The most characters of a digest or key that are part of an anchor; of a longer one its hash is."""


def log(report: Report) -> Section:
    """The quoted entries of the audit log."""
    entries = table(
        "Entries of the audit log that belong to the job; report.json has each of them whole, with its proof",
        report.evidence.log.entries,
        {
            "Entry": lambda entry: count(entry.record.get("seq")),
            "Time": lambda entry: moment(entry.record.get("time")),
            "Event, outcome": lambda entry: stack(plain(entry.record.get("event")), plain(entry.record.get("outcome"))),
            "Task, round, peer": lambda entry: stack(
                plain(entry.record.get("task")), count(entry.record.get("round")), plain(entry.record.get("peer"))
            ),
            "#Bytes, epsilon after": lambda entry: stack(
                count(entry.record.get("nbytes")), at_most(entry.record.get("epsilon_after"))
            ),
            "Leaf, hashes of its proof": lambda entry: stack(
                digest(entry.record.get("leaf_hash")), count(len(entry.proof))
            ),
        },
        "No entry is quoted.",
        lambda entry: f"entry-{entry.record.get('seq')}",
        on_paper=False,
    )
    return Section("log", "Log entries", (entries,))


def ledger(report: Report) -> Section:
    """The records of the budget ledger."""

    def fields(line: LedgerRow) -> dict[str, Any]:
        return line.record or {}

    records = table(
        "Records of the budget ledger; one that lists patients' digests appears by its hash only",
        report.evidence.ledger,
        {
            "Record": lambda line: count(line.seq),
            "Time": lambda line: moment(fields(line).get("time")),
            "Event": lambda line: "withheld" if line.record is None else plain(fields(line).get("event")),
            "Job": lambda line: plain(fields(line).get("job")),
            "Task, round, attempt": lambda line: stack(
                plain(fields(line).get("task")), count(fields(line).get("round")), count(fields(line).get("attempt"))
            ),
            "#All jobs, after": lambda line: at_most(fields(line).get("epsilon_after")),
            "Hash": lambda line: Digest(line.hash),
        },
        "The site has no ledger.",
        lambda line: f"record-{line.seq}",
        on_paper=False,
    )
    return Section("ledger", "Ledger records", (records,))


def digests(sections: Sequence[Section]) -> Section:
    """The full digests that the sections print short: those of the PDF, then those of tables that it leaves out."""
    first = dict[str, tuple[str, bool]]()
    for on_paper in (True, False):
        for section in sections:
            for part in _parts(section, on_paper):
                if isinstance(part, Digest) and part.text != part.full:
                    first.setdefault(part.full, (section.heading, on_paper))
    captions = {True: "As they stand in report.json", False: "Digests of the tables that the PDF leaves out"}
    tables = [
        Table(
            caption,
            ("Digest", "First in"),
            tuple(row(Code(full), where, anchor=anchor(full)) for full, (where, on) in first.items() if on is on_paper),
            "There is none.",
            on_paper,
        )
        for on_paper, caption in captions.items()
    ]
    return Section("digests", "Digests in full", tuple(table for table in tables if table.on_paper or table.rows))


def anchor(full: str) -> str:
    """The anchor of the row that has a digest in full."""
    if len(full) > MAX_ANCHOR:
        return f"digest-{sha256(full.encode()).hexdigest()}"
    return f"digest-{full.encode().hex() if not full.isalnum() else full}"


def _parts(section: Section, on_paper: bool) -> Iterator[Inline]:
    """The inline parts of the section's figures and tables that are, or are not, for paper."""
    for block in section.blocks:
        if isinstance(block, Facts) and on_paper:
            yield from (part for fact in block.facts for part in fact.value)
        elif isinstance(block, Table) and block.on_paper is on_paper:
            yield from (part for line in block.rows for content in line.cells for part in content)
