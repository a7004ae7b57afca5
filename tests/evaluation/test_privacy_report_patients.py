"""The report's page for patients: one page, the same figures, in both languages."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader

from medfedvqa.report import render
from medfedvqa.report.blocks import Text, words
from medfedvqa.report.patients import WORDS, Language, compose_patients
from privacy.report.model_conduct import Report

RECORD = json.loads(Path(__file__).with_name("privacy_report.json").read_text("utf-8"))
in_each = pytest.mark.parametrize("language", sorted(WORDS))


def text_of(report: Report, language: Language) -> str:
    document = compose_patients(report, language)
    texts = [words(b.cell) for section in document.front for b in section.blocks if isinstance(b, Text)]
    return "\n".join([document.lead.text, *texts])


def changed(**sections: Any) -> Report:
    """The example with some members of its sections replaced."""
    record = json.loads(json.dumps(RECORD))
    for name, members in sections.items():
        record["sections"][name] = members and record["sections"][name] | members
    return Report.model_validate(record)


def shape(value: object) -> object:
    """The figures and names for which a text has room, and how many texts there are."""
    if isinstance(value, str):
        return sorted(re.findall(r"{\w+}", value))
    return [shape(one) for one in value] if isinstance(value, tuple) else None


@in_each
def test_it_is_one_page_with_the_reports_figures(tmp_path: Path, language: Language) -> None:
    """Also with long texts of the site, which are markup nowhere; tagged in its language."""
    governance = {"purpose": "<b>study</b> \u202e" * 900, "contact": "privacy@example.org"}
    report = Report.model_validate(RECORD | {"evidence": RECORD["evidence"] | {"governance": governance}})
    render(report, tmp_path, "patients", language)
    reader = PdfReader(tmp_path / "report.pdf")
    assert len(reader.pages) == 1 and reader.trailer["/Root"]["/Lang"] == language
    page = (tmp_path / "report.html").read_text("utf-8")
    assert f'<html lang="{language}">' in page and "<b>study" not in page and "privacy@example.org" in page
    text = reader.pages[0].extract_text()
    assert all(figure in text for figure in (f"32{WORDS[language].thousands}840", "15", "17", "16", "12"))


@in_each
def test_it_promises_nothing_that_the_report_does_not(language: Language) -> None:
    """No claim: no bound. Nothing released: that alone. A report of an earlier version: no bound either."""
    told = WORDS[language]
    unclaimed = text_of(changed(claim={"made": False}, summary={"found": None}), language)
    assert told.bare in unclaimed and told.unbounded in unclaimed and told.noisy not in unclaimed
    assert told.unknown in text_of(changed(summary=None), language)
    silent = text_of(changed(egress={"releases": [], "nbytes": 0, "messages": 0}), language)
    assert silent.count(told.nothing) == 2 and told.noisy not in silent
    assert told.no_reason in silent and told.nobody in silent


def test_both_languages_have_room_for_the_same_figures() -> None:
    """No sentence of one lacks a figure of the other."""
    english, german = ([shape(getattr(WORDS[one], field.name)) for field in fields(WORDS[one])] for one in ("en", "de"))
    assert english == german
