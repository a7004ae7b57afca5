"""Composes a report into a document: its first page, sections A to M, and the appendix."""

from audits.escaping import NAME, bounded
from medfedvqa.report import appendix, first_page
from medfedvqa.report.blocks import Document, moment, words
from medfedvqa.report.sections import sections
from privacy.report.figures import tree_of_rows
from privacy.report.report import Report

FOOT = (
    "Made from report.json alone. Upper bounds are rounded up and lower bounds down at the third decimal; report.json "
    "has all digits. A dash stands where there is no figure. Times are UTC. The report supports a judgement; it draws "
    "no legal conclusion."
)


def compose(report: Report) -> Document:
    """The document of one site's report on one job."""
    identity, evidence = report.sections.identity, report.evidence.model_dump(mode="json")
    parts = sections(report, tree_of_rows(report.rows) | {"evidence": evidence})
    return Document(
        kind="Privacy-budget report",
        title=f"Job {bounded(identity.job, NAME)} at site {bounded(identity.site, NAME)}",
        heading=first_page.QUESTION,
        lead=first_page.lead(report),
        created=identity.created,
        cards=first_page.cards(report),
        front=first_page.front(report),
        sections=(*parts, appendix.digests(parts)),
        foot=f"Format {report.format}, made {words([moment(identity.created)])} with medfedvqa {identity.tool}. {FOOT}",
    )
