"""The sources of figures, as links to entries of the log, records of the ledger, and sections."""

from collections.abc import Sequence

from medfedvqa.report.blocks import Cell, Link, links_to
from privacy.report.report import Report


def source_cell(report: Report, source: str) -> Cell:
    """The cell that a page shows for the source of a figure."""
    charges, job = report.sections.accounting.charges, report.evidence.job
    match source:
        case "this version":
            return ()
        case "log":
            return links_to("entry", _seqs(report))
        case "releases":
            return links_to("entry", [release.entry for release in report.sections.egress.releases])
        case "ledger":
            return (Link("ledger", "ledger"),)
        case "charges of the job":
            return links_to("record", [charge.record for charge in charges if charge.job == job])
        case "charges of the ledger":
            return links_to("record", [charge.record for charge in charges])
        case "results.json":
            return (Link("D", "D"),)
        case _:
            return (source,)


def _seqs(report: Report) -> Sequence[int]:
    seqs = [entry.record.get("seq") for entry in report.evidence.log.entries]
    return [seq for seq in seqs if isinstance(seq, int)]
