"""A report: its rows, and the evidence from which they follow."""

from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Final

from privacy.report.figures import Rows, Value, view
from privacy.report.report_evidence import ReportEvidence

FORMAT: Final = "medfedvqa.privacy-report/2"
FORMER: Final = "medfedvqa.privacy-report/1"
Sections = SimpleNamespace
"""Rows by their names, such as `sections.claim.epsilon`."""


@dataclass(frozen=True)
class Report:
    """One site's report on one job."""

    rows: Rows
    """Values by the ids of their rows, such as `claim.epsilon`."""
    evidence: ReportEvidence
    format: str = FORMAT
    lacks: tuple[str, ...] = ()
    """The parts that a report of an earlier format lacks, by the beginnings of their ids."""

    @cached_property
    def sections(self) -> Sections:
        """The rows by their names."""
        return view(self.rows)

    def changed(self, values: dict[str, Value]) -> "Report":
        """The report with other values in some of its rows."""
        return replace(self, rows={**self.rows, **values})
