"""The lay page of a report: one page in simple words, for patients, their councils and ethics boards, in two languages.

Its figures come from the report's sections, and it adds nothing to them.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from types import SimpleNamespace
from typing import Literal

from audits.escaping import NAME, bounded
from medfedvqa.report import charts
from medfedvqa.report.blocks import Badge, Block, Bullets, Document, DrawingGroup, Section, Text
from medfedvqa.report.first_page import accused_in_hundred, in_hundred
from privacy.report.figures import Report
from privacy.settings import Governance

Language = Literal["en", "de"]
SHORT = 300
"""The most characters that the page shows of a text by the site."""


Words = SimpleNamespace
"""All texts of the page in one language. Braces stand for figures and names; a pair is a title and its text."""
WORDS: Mapping[Language, Words] = {
    language: Words(**words)
    for language, words in json.loads(files(__package__).joinpath("patients.json").read_text("utf-8")).items()
}


def compose_patients(report: Report, language: Language) -> Document:
    """The lay page of one site's report."""
    words, identity, egress = WORDS[language], report.sections.identity, report.sections.egress
    lead = words.noisy if report.sections.claim.made else words.bare
    governance = report.evidence.governance or Governance()
    sections = (
        _section("why", words.why, governance.purpose, words.no_reason),
        Section("left", words.left[0], (Text((_left(report, words),)),)),
        Section("means", words.means[0], _means(report, words)),
        Section("checks", words.checks[0], (Text((_checks(report, words),)),)),
        Section("limits", words.limits[0], (Bullets("", tuple(words.limits[1])),)),
        _section("ask", words.ask, governance.contact, words.nobody),
    )
    return Document(
        kind=words.kind,
        title=bounded(identity.site, NAME),
        heading=words.question,
        lead=Badge(lead if egress.releases else words.nothing, "open"),
        created=identity.created,
        cards=(),
        front=sections,
        sections=(),
        foot=words.foot.format(job=bounded(identity.job, NAME)),
        language=language,
    )


def _left(report: Report, words: Words) -> str:
    egress = report.sections.egress
    if not egress.releases:
        return str(words.nothing)
    nbytes = f"{egress.nbytes:,}".replace(",", words.thousands)
    return str(words.left[1]).format(nbytes=nbytes, messages=f"{egress.messages:,}".replace(",", words.thousands))


def _means(report: Report, words: Words) -> tuple[Block, ...]:
    summary = report.sections.summary
    if summary is None:
        return (Text((words.unknown,)),)
    if summary.found is None:
        return (Text((words.unbounded,)),)
    found, guess = in_hundred(summary.found), accused_in_hundred(summary.wrongly)
    texts = [words.means[1].format(found=found, guess=guess)]
    if summary.found_in_all is not None:
        texts.append(words.means_all.format(found=in_hundred(summary.found_in_all)))
    drawing = charts.people(found, guess, words.labels, words.drawing)
    return (*(Text((text,)) for text in texts), DrawingGroup((drawing,)))


def _checks(report: Report, words: Words) -> str:
    states = [rule.state for rule in report.sections.verdicts.rules]
    return str(words.checks[1]).format(
        every=len(states),
        kept=states.count("shown"),
        still_open=states.count("not shown"),
        broken=states.count("broken"),
    )


def _section(anchor: str, titled: Sequence[str], text: str | None, missing: str) -> Section:
    """A section with a text that the site wrote, or with the sentence for none."""
    shown = titled[1].replace("{text}", bounded(text, SHORT)) if text else missing
    return Section(anchor, titled[0], (Text((shown,)),))
