"""Composes the sites' reports on one job into one document."""

from audits.escaping import NAME, bounded
from medfedvqa.report import appendix
from medfedvqa.report.blocks import Badge, Card, Document, at_most, count, figure, moment, words
from medfedvqa.report.sections import sections, state
from privacy.report.figures import JOINED, tree_of_rows
from privacy.report.join import FORMAT, JoinedReport


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
        sections=(*parts, appendix.digests(parts)),
        foot=f"Format {FORMAT}, newest report of {words([moment(joined.created)])} UTC. "
        "A joined report is not signed: "
        "whoever has the reports, which are, can make it again. Upper bounds are rounded up, lower bounds down.",
    )
