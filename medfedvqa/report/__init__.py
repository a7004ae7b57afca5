"""The privacy-budget report for people: an HTML page and a PDF, made from the report alone."""

from pathlib import Path
from typing import Literal

from medfedvqa.atomic_files import write_whole
from medfedvqa.report.blocks import Document
from medfedvqa.report.document import compose, compose_joined
from medfedvqa.report.page import page
from medfedvqa.report.patients import Language, compose_patients
from medfedvqa.report.pdf import pdf_bytes
from privacy.report.figures import Report
from privacy.report.join import JoinedReport
from privacy.report.report_files import HTML, PDF

Audience = Literal["officers", "patients"]
JOINED_HTML, JOINED_PDF = "joined.html", "joined.pdf"


def render(report: Report, folder: Path, audience: Audience = "officers", language: Language = "en") -> None:
    """Writes report.html and report.pdf into the folder, with the same bytes each time.

    The PDF names the long tables that it leaves out. All else has the same content in both.

    For `patients` both are one page in simple words, in the given language. Raises `ValueError` if the report's date
    is malformed.
    """
    document = compose_patients(report, language) if audience == "patients" else compose(report)
    _write(document, folder / HTML, folder / PDF)


def render_joined(joined: JoinedReport, folder: Path) -> None:
    """Writes joined.html and joined.pdf into the folder, as `render` does."""
    _write(compose_joined(joined), folder / JOINED_HTML, folder / JOINED_PDF)


def _write(document: Document, html: Path, pdf: Path) -> None:
    write_whole(html, page(document).encode())
    write_whole(pdf, pdf_bytes(document))
