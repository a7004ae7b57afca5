"""The privacy-budget report for people: an HTML page and a PDF, made from the report alone."""

from pathlib import Path

from medfedvqa.evaluation.privacy_report.document import compose
from medfedvqa.evaluation.privacy_report.html import page
from medfedvqa.evaluation.privacy_report.joined import compose_joined
from medfedvqa.evaluation.privacy_report.paper import paper
from medfedvqa.evaluation.privacy_report.parts import Document
from medfedvqa.files import write_whole
from privacy.report.files import HTML, PDF
from privacy.report.join import Joined
from privacy.report.model import Report

JOINED_PAGE, JOINED_PAPER = "joined.html", "joined.pdf"


def render(report: Report, folder: Path) -> None:
    """Write report.html and report.pdf into the folder: the same content twice, and the same bytes each time.

    Raises `ValueError` if the report's date is none.
    """
    _write(compose(report), folder / HTML, folder / PDF)


def render_joined(joined: Joined, folder: Path) -> None:
    """Write joined.html and joined.pdf into the folder, as `render` does."""
    _write(compose_joined(joined), folder / JOINED_PAGE, folder / JOINED_PAPER)


def _write(document: Document, page_path: Path, paper_path: Path) -> None:
    write_whole(page_path, page(document).encode())
    write_whole(paper_path, paper(document))
