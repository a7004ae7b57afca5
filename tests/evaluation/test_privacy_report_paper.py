"""The PDF of a report is short: long tables stay in HTML and JSON, and the PDF names each table that it leaves out."""

from html import escape
from io import BytesIO
from pathlib import Path

import pytest
from pypdf import PdfReader

from medfedvqa.report.document import compose
from medfedvqa.report.page import page
from medfedvqa.report.pdf import pdf_bytes
from privacy.report import read_report

MOST_PAGES = 12
REPORTS = (
    Path(__file__).with_name("privacy_report.json"),
    Path(__file__).parents[2] / "docs/examples/report/chest/report.json",
)
ABSENT = {
    "Every tensor that left",
    "What this report has for each framework; it supports a judgement and is none",
    "The project and what it depends on",
    "Entries of the audit log that belong to the job; report.json has each of them whole, with its proof",
    "Records of the budget ledger; one that lists patients' digests appears by its hash only",
    "Digests of the tables that the PDF leaves out",
}


@pytest.mark.parametrize(
    "path", [pytest.param(REPORTS[0], marks=pytest.mark.slow), REPORTS[1]], ids=["phantom", "vqa-rad"]
)
def test_the_pdf_has_at_most_12_pages_and_names_every_table_that_it_leaves_out(path: Path) -> None:
    """The HTML page has all of their rows. Claims, charges, verdicts and key digests are never left out."""
    document = compose(read_report(path.read_bytes()))
    sheets = PdfReader(BytesIO(pdf_bytes(document))).pages
    text, html = "".join("".join(sheet.extract_text().split()) for sheet in sheets), page(document)
    absent = [table for table in document.tables() if not table.on_paper]
    assert len(sheets) <= MOST_PAGES and absent and {table.caption for table in absent} <= ABSENT
    for table in absent:
        sentence = f"{table.caption}. This file leaves out {len(table.rows)} rows, which report.html and report.json"
        assert "".join(sentence.split()) in text and escape(table.caption) in html
        assert all(f'id="{row.anchor}"' in html for row in table.rows if row.anchor)
