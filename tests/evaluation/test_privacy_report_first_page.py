"""The first page of a report: its answer by verdict, and jobs of which there is little to say."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader
from report_trees import REPORT, changed

from medfedvqa.report import render
from medfedvqa.report.blocks import Bullets, DrawingGroup, Facts, Section, Table, Text, words
from medfedvqa.report.document import compose
from medfedvqa.report.first_page import in_hundred
from medfedvqa.report.patients import compose_patients
from privacy.report import Report
from privacy.settings import Governance

RULES = REPORT.sections.verdicts.rules


def text_of(section: Section) -> str:
    """All words of a section, but those of plots."""
    texts = list[str]()
    for block in section.blocks:
        match block:
            case Text():
                texts.append(words(block.cell))
            case Bullets():
                texts += block.items
            case Facts():
                texts += [f"{fact.label}: {words(fact.value)}" for fact in block.facts]
            case Table():
                texts += [words(cell) for row in block.rows for cell in row.cells] or [block.empty]
            case DrawingGroup():
                pass
    return "\n".join(texts)


def page_of(report: Report) -> str:
    return "\n".join(text_of(section) for section in compose(report).front)


def set_states(*states: str) -> Callable[[Any], None]:
    def change(sections: Any) -> None:
        for rule, state in zip(sections["verdicts"]["rules"], states, strict=False):
            rule["state"] = state

    return change


def test_the_answer_names_what_is_broken_before_what_is_open() -> None:
    """Yes only if every rule is shown; no as soon as one is broken; else the names of those that are open."""
    every = len(RULES)
    answers = [
        compose(changed(set_states(*states))).lead
        for states in (["shown"] * every, ["shown"] * (every - 1) + ["not shown"], ["broken"] + ["not shown"] * every)
    ]
    assert [answer.tone for answer in answers] == ["good", "open", "bad"]
    assert answers[0].text.startswith("Yes, as far as") and "open: de-identified" in answers[1].text
    assert answers[2].text == "No. 1 rule is broken: log."


def test_every_open_rule_has_what_closes_it() -> None:
    """Eight rules at most on the first page, the broken ones first; the others are counted."""
    document = compose(changed(set_states("not shown", *["shown"] * 2, *["not shown"] * 12, "broken")))
    table = next(block for block in document.front[0].blocks if isinstance(block, Table))
    assert len(table.rows) == 8 and words(table.rows[0].cells[0]) == "de-identified\nbroken"
    assert "6 more are in section L" in text_of(document.front[0])
    closings = {rule.closing for rule in RULES} - {None}
    assert closings and all(closing in page_of(REPORT) for closing in closings)


def test_a_job_that_released_nothing_and_claims_nothing_says_so() -> None:
    """No bound, no people, and no word of a kind of value that left."""

    def nothing(sections: Any) -> None:
        sections["egress"] |= {"releases": [], "by_kind": [], "by_tensor": [], "messages": 0, "nbytes": 0}
        sections["claim"] |= {"made": False, "sentence": "No differential privacy is claimed: nothing ran."}
        sections["summary"] |= {"found": None, "found_in_all": None, "jobs_that_fit": None}

    page = page_of(changed(nothing))
    assert "Nothing left the site for this job." in page and "claimed: nothing ran" in page
    assert "of 100" not in page and "More jobs" not in page and "bytes of" not in page


def test_a_report_of_an_earlier_version_has_a_first_page_without_the_bound() -> None:
    """It lacks the figures, and is drawn without them."""
    page = page_of(changed(lambda sections: sections.pop("summary")))
    assert "This version wrote no such figure." in page and "of 100" not in page and "32,840 bytes" in page


def test_what_the_site_adds_is_bounded_escaped_and_its_gaps_are_named(tmp_path: Path) -> None:
    """Ten thousand characters of markup and marks of direction: shortened on the first page, never markup anywhere."""
    purpose = "<script>alert(1)</script> #set page(width: 1pt) \u202ereversed " * 160
    governance = Governance(purpose=purpose, contact="privacy@example.org")
    report = replace(REPORT, evidence=REPORT.evidence.model_copy(update={"governance": governance}))
    first = next(section for section in compose(report).front if section.anchor == "who")
    assert len(purpose) > 9_000 and len(text_of(first)) < 600
    assert "Contact: privacy@example.org" in text_of(first) and "Not given by the site: controller" in text_of(first)
    render(report, tmp_path)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "<script" not in page and "\u202e" not in page and "&lt;script&gt;" in page
    text = "".join("".join(sheet.extract_text().split()) for sheet in PdfReader(tmp_path / "report.pdf").pages)
    assert "#setpage(width:1pt)\\u202ereversed" in text


def test_a_site_that_adds_nothing_has_every_text_listed_as_missing() -> None:
    """On the first page and in section A."""
    document = compose(REPORT)
    first = next(section for section in document.front if section.anchor == "who")
    assert text_of(first).startswith("Not given by the site: purpose, controller, contact, legal basis, retention")
    assert text_of(document.sections[0]).count("not given by the site") == 9


@pytest.mark.parametrize("wrongly, people", [(0.05, "5"), (0.06, "6"), (0.29, "29"), (0.059, "5")])
def test_the_pages_name_the_share_of_accused_people_that_the_report_carries(wrongly: float, people: str) -> None:
    """In the card, in the sentence and for patients; rounded down, since who accuses fewer finds no more."""
    report = changed(lambda sections: sections["summary"].update(wrongly=wrongly))
    cards = [words(card.remark) for card in compose(report).cards]
    assert cards[0].startswith(f"patients; guessing finds {people} ")
    page = page_of(report)
    assert f"wrong about {people} of 100 who did not" in page and f"by guessing, {people}." in page
    lay = "\n".join(text_of(section) for section in compose_patients(report, "en").front)
    assert f"Of 100 others, {people} are suspected" in lay and f"By guessing, {people} are." in lay


def test_section_k_says_what_it_was_checked_against_and_when() -> None:
    """One row for each framework; a report of a version that wrote no dates says that it did not."""

    def dated(sections: Any) -> None:
        for line in sections["mappings"]:
            line.update(source=f"edition of {line['framework']}", checked="2026-11-27")

    frameworks = {line.framework for line in REPORT.sections.mappings}
    [new] = [section for section in compose(changed(dated)).sections if section.anchor == "K"]
    table = new.blocks[-1]
    assert isinstance(table, Table) and len(table.rows) == len(frameworks) > 5
    assert all(words(row.cells[1]).startswith("edition of ") for row in table.rows)
    assert {words(row.cells[2]) for row in table.rows} == {"2026-11-27"}
    [old] = [section for section in compose(REPORT).sections if section.anchor == "K"]
    assert "did not say" in text_of(old)


@pytest.mark.parametrize("share, people", [(0.05, 5), (0.1431, 15), (0.14, 14), (0.0, 0), (0.9999, 100), (1.0, 100)])
def test_people_are_never_fewer_than_the_bound(share: float, people: int) -> None:
    assert in_hundred(share) == people
