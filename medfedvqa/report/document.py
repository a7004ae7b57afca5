"""Composes a report into a document: its first page, sections A to M, and the appendix."""

from audits.escaping import NAME, bounded
from medfedvqa.report import appendix, first_page, sections_conduct, sections_guarantee
from medfedvqa.report.blocks import Document, moment, words
from privacy.report.model_conduct import Report

LETTERED = (
    sections_guarantee.identity,
    sections_guarantee.claim,
    sections_guarantee.unit,
    sections_guarantee.mechanism,
    sections_guarantee.accounting,
    sections_guarantee.outside,
    sections_conduct.trust,
    sections_conduct.egress,
    sections_conduct.data_handling,
    sections_conduct.empirical,
    sections_conduct.mappings,
    sections_conduct.verdicts,
    sections_conduct.never,
)
"""The functions that make sections A to M."""
FOOT = (
    "Made from report.json alone. Upper bounds are rounded up and lower bounds down at the third decimal; report.json "
    "has all digits. A dash stands where there is no figure. Times are UTC. The report supports a judgement; it draws "
    "no legal conclusion."
)


def compose(report: Report) -> Document:
    """The document of one site's report on one job."""
    section = report.sections.identity
    sections = [section(report) for section in LETTERED]
    sections += [appendix.log(report), appendix.ledger(report), sections_guarantee.code(report)]
    return Document(
        kind="Privacy-budget report",
        title=f"Job {bounded(section.job, NAME)} at site {bounded(section.site, NAME)}",
        heading=first_page.QUESTION,
        lead=first_page.lead(report),
        created=section.created,
        cards=first_page.cards(report),
        front=first_page.front(report),
        sections=(*sections, appendix.digests(sections)),
        foot=f"Format {report.format}, made {words([moment(section.created)])} with medfedvqa {section.tool}. {FOOT}",
    )
