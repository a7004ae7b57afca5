"""The privacy-budget report for people: an HTML page and a PDF, made from the report alone."""

from pathlib import Path

from medfedvqa.atomic_files import write_whole
from medfedvqa.report.blocks import Document
from medfedvqa.report.document import compose
from medfedvqa.report.joined import compose_joined
from medfedvqa.report.page import page
from medfedvqa.report.pdf import paper
from privacy.report.join import JoinedReport
from privacy.report.model_conduct import Report
from privacy.report.report_files import HTML, PDF

JOINED_PAGE, JOINED_PAPER = "joined.html", "joined.pdf"


def render(report: Report, folder: Path) -> None:
    """Write report.html and report.pdf into the folder: the same content twice, and the same bytes each time.

    Raises `ValueError` if the report's date is none.
    """
    _write(compose(report), folder / HTML, folder / PDF)


def render_joined(joined: JoinedReport, folder: Path) -> None:
    """Write joined.html and joined.pdf into the folder, as `render` does."""
    _write(compose_joined(joined), folder / JOINED_PAGE, folder / JOINED_PAPER)


def _write(document: Document, page_path: Path, paper_path: Path) -> None:
    write_whole(page_path, page(document).encode())
    write_whole(paper_path, paper(document))
