"""The report's page for patients: one page, the same figures, in both languages."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader
from report_trees import REPORT, changed

from medfedvqa.report import render
from medfedvqa.report.blocks import Text, words
from medfedvqa.report.patients import WORDS, Language, compose_patients
from privacy.report import Report
from privacy.settings import Governance

in_each = pytest.mark.parametrize("language", sorted(WORDS))


def text_of(report: Report, language: Language) -> str:
    document = compose_patients(report, language)
    texts = [words(b.cell) for section in document.front for b in section.blocks if isinstance(b, Text)]
    return "\n".join([document.lead.text, *texts])


def with_parts(**parts: Any) -> Report:
    """The example with some members of its parts replaced; without a part that is None."""

    def change(tree: Any) -> None:
        for name, members in parts.items():
            part = tree.pop(name)
            tree |= {name: part | members} if members else {}

    return changed(change)


def shape(value: object) -> object:
    """The figures and names for which a text has room, and how many texts there are."""
    if isinstance(value, str):
        return sorted(re.findall(r"{\w+}", value))
    return [shape(one) for one in value] if isinstance(value, list) else None


@in_each
def test_it_is_one_page_with_the_reports_figures(tmp_path: Path, language: Language) -> None:
    """Also with long texts of the site, which are markup nowhere; tagged in its language."""
    governance = Governance(purpose="<b>study</b> \u202e" * 900, contact="privacy@example.org")
    report = replace(REPORT, evidence=REPORT.evidence.model_copy(update={"governance": governance}))
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
    unclaimed = text_of(with_parts(claim={"made": False}, summary={"found": None}), language)
    assert told.bare in unclaimed and told.unbounded in unclaimed and told.noisy not in unclaimed
    assert told.unknown in text_of(with_parts(summary=None), language)
    silent = text_of(with_parts(egress={"releases": [], "nbytes": 0, "messages": 0}), language)
    assert silent.count(told.nothing) == 2 and told.noisy not in silent
    assert told.no_reason in silent and told.nobody in silent


def test_both_languages_have_room_for_the_same_figures() -> None:
    """No sentence of one lacks a figure of the other."""
    english, german = ({name: shape(words) for name, words in vars(WORDS[one]).items()} for one in ("en", "de"))
    assert english == german
