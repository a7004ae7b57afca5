"""A report names the person who approved its job, as the site's log does."""

from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from pypdf import PdfReader
from report_trees import REPORT

from medfedvqa.report.blocks import Facts, words
from medfedvqa.report.document import compose
from medfedvqa.report.page import page
from medfedvqa.report.pdf import pdf_bytes
from privacy.report import Report

PERMIT = "0123456789abcdef"


def with_admission(admission: Any, event: str = "admitted", job: str = REPORT.evidence.job) -> Report:
    """The report whose first entry of the log is an admission, as `Admission` logs it."""
    log = REPORT.evidence.log
    first = log.entries[0]
    record = {**first.record, "event": event, "admission": admission, "job": job}
    entries = (replace(first, record=record), *log.entries[1:])
    evidence = REPORT.evidence.model_copy(update={"log": replace(log, entries=entries)})
    return replace(REPORT, evidence=evidence)


def approvals(report: Report) -> list[tuple[str, str]]:
    """The value and the source of each figure about an approval."""
    blocks = (block for section in compose(report).sections for block in section.blocks)
    facts = (fact for block in blocks if isinstance(block, Facts) for fact in block.facts)
    return [(words(fact.value), words(fact.source)) for fact in facts if fact.label == "Approved by"]


def test_both_pages_name_the_person_and_the_permit_and_link_the_entry() -> None:
    """The same figure is in the HTML page and in the PDF."""
    until = "2026-12-06T09:00:00+00:00"
    report = with_admission({"definition": "ab" * 32, "permit": PERMIT, "approver": "ada", "until": until})
    seq = report.evidence.log.entries[0].record["seq"]
    assert approvals(report) == [(f"ada, permit {PERMIT}, until {until}", f"entry {seq}")]
    document = compose(report)
    html = page(document)
    assert f"ada, permit <code>{PERMIT}</code>" in html and f'<a href="#entry-{seq}">entry {seq}</a>' in html
    text = "".join("".join(sheet.extract_text() for sheet in PdfReader(BytesIO(pdf_bytes(document))).pages).split())
    assert f"Approvedbyada,permit{PERMIT}" in text.replace("\u200b", "")


@pytest.mark.parametrize(
    ("admission", "event"),
    [
        (None, "admitted"),
        ({"definition": "ab" * 32, "runs": 1}, "admitted"),
        (["permit"], "admitted"),
        ({"code": "approval", "permit": PERMIT, "approver": "ada"}, "refusal"),
    ],
    ids=["nothing", "no permit", "a list", "a refusal"],
)
def test_no_person_is_named_where_the_log_names_none(admission: Any, event: str) -> None:
    """A job of a site without approvers has no such figure, and a refusal is no approval."""
    assert approvals(with_admission(admission, event)) == []
    assert approvals(with_admission({"permit": PERMIT, "approver": "ada"}, job="another")) == []


def test_a_name_cannot_be_longer_than_names_or_hide_letters() -> None:
    """A log of another site may hold any text as the name."""
    ((value, _),) = approvals(with_admission({"permit": PERMIT, "approver": "a\u202e" + "b" * 5_000}))
    assert len(value) < 200 and "\u202e" not in value
