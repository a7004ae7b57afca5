"""Composes a report into a document: its first page, sections A to M, and the appendix of digests; or the reports of
the sites on one job.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256

from audits.escaping import NAME, bounded
from medfedvqa.report import first_page
from medfedvqa.report.blocks import (
    Badge,
    Card,
    Code,
    Digest,
    Document,
    Facts,
    Inline,
    Section,
    Table,
    at_most,
    count,
    figure,
    moment,
    row,
    words,
)
from medfedvqa.report.sections import sections, state
from privacy.report.figures import JOINED, Report, tree_of_rows
from privacy.report.join import FORMAT, JoinedReport

MAX_ANCHOR = 256
"""The most characters of a digest or key that an anchor holds in full; a longer one is hashed."""


def digests(sections: Sequence[Section]) -> Section:
    """The full forms of shortened digests: first those in the PDF, then those in tables that it leaves out."""
    first = dict[str, tuple[str, bool]]()
    for on_paper in (True, False):
        for section in sections:
            for part in _parts(section, on_paper):
                if isinstance(part, Digest) and part.text != part.full:
                    first.setdefault(part.full, (section.heading, on_paper))
    captions = {True: "As they stand in report.json", False: "Digests of the tables that the PDF leaves out"}
    tables = [
        Table(
            caption,
            ("Digest", "First in"),
            tuple(row(Code(full), where, anchor=anchor(full)) for full, (where, on) in first.items() if on is on_paper),
            "There is none.",
            on_paper,
        )
        for on_paper, caption in captions.items()
    ]
    return Section("digests", "Digests in full", tuple(table for table in tables if table.on_paper or table.rows))


def anchor(full: str) -> str:
    """The anchor of the appendix row with the full digest."""
    if len(full) > MAX_ANCHOR:
        return f"digest-{sha256(full.encode()).hexdigest()}"
    return f"digest-{full.encode().hex() if not full.isalnum() else full}"


def _parts(section: Section, on_paper: bool) -> Iterator[Inline]:
    """The inline parts of a section's figures and tables: those in the PDF (`on_paper`), or those that it
    leaves out.
    """
    for block in section.blocks:
        if isinstance(block, Facts) and on_paper:
            yield from (part for fact in block.facts for part in fact.value)
        elif isinstance(block, Table) and block.on_paper is on_paper:
            yield from (part for line in block.rows for content in line.cells for part in content)


def compose_joined(joined: JoinedReport) -> Document:
    """The document of a federation's reports on one job."""
    parts = sections(joined, tree_of_rows(joined.rows, JOINED), JOINED)
    missing = len(joined.missing)
    sites = f"{missing} more gave none" if missing else "all sites of the job"
    cards = (
        Card("Largest epsilon of a site", (at_most(joined.epsilon),), ("at delta ", figure(joined.delta))),
        Card("Sites that report", (count(len(joined.sites)),), (sites,)),
        Card("Reports agree", (state(joined.state),), ("see what they have in common",)),
        Card("Left the sites", (count(joined.nbytes),), ("bytes in ", count(joined.messages), " messages")),
    )
    title = f"Job {bounded(joined.job, NAME)} ({bounded(joined.method, NAME)}) at {len(joined.sites)} sites"
    return Document(
        kind="Joined privacy-budget reports",
        title=title,
        heading=title,
        lead=Badge(joined.sentence, "open" if joined.epsilon is not None else "bad"),
        created=joined.created,
        cards=cards,
        front=(),
        sections=(*parts, digests(parts)),
        foot=f"Format {FORMAT}, newest report of {words([moment(joined.created)])} UTC. "
        "A joined report is not signed: "
        "whoever has the reports, which are, can make it again. Upper bounds are rounded up, lower bounds down.",
    )


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
        sections=(*parts, digests(parts)),
        foot=f"Format {report.format}, made {words([moment(identity.created)])} with medfedvqa {identity.tool}. {FOOT}",
    )
