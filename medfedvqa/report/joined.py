"""Composes the sites' reports on one job into one document."""

from audits.escaping import NAME, bounded
from medfedvqa.report import appendix
from medfedvqa.report.blocks import (
    NONE,
    Badge,
    Bullets,
    Card,
    Code,
    Document,
    Facts,
    Section,
    Table,
    Text,
    at_least,
    at_most,
    count,
    digest,
    fact,
    figure,
    moment,
    row,
    stack,
    table,
    words,
)
from medfedvqa.report.sections_guarantee import state
from privacy.report.join import JoinedReport


def compose_joined(joined: JoinedReport) -> Document:
    """The document of a federation's reports on one job."""
    sections = [_claims(joined), _agreements(joined), _egress(joined), _reports(joined)]
    omitted = Section("left-out", "Left out", (Bullets("Not in a joined report", joined.left_out),))
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
        sections=(*sections, omitted, appendix.digests(sections)),
        foot=f"Format {joined.format}, newest report of {words([moment(joined.created)])} UTC. "
        "A joined report is not signed: "
        "whoever has the reports, which are, can make it again. Upper bounds are rounded up, lower bounds down.",
    )


def _claims(joined: JoinedReport) -> Section:
    claims = table(
        "Claims, site by site",
        joined.sites,
        {
            "Site": lambda site: site.site,
            "Claim, job": lambda site: stack("made" if site.claimed else "not made", site.state),
            "#Epsilon, delta": lambda site: stack(at_most(site.epsilon), figure(site.delta)),
            "#GDP mu": lambda site: figure(site.mu),
            "Aggregation": lambda site: site.aggregation,
            "#Attacks prove": lambda site: at_least(site.lower_bound),
            "State": lambda site: state("broken" if site.broken else "not shown" if site.not_shown else "shown"),
        },
        "No site reports.",
    )
    rules = Table(
        "Rules not shown to be kept",
        ("Site", "Broken", "Not shown"),
        tuple(
            row(site.site, ", ".join(site.broken) or NONE, ", ".join(site.not_shown) or NONE)
            for site in joined.sites
            if site.broken or site.not_shown
        ),
        "All rules are shown to be kept at all of these sites.",
    )
    sentences = Facts("In their own words", tuple(fact(site.site, site.sentence) for site in joined.sites))
    silent = Text((f"Without a report: {', '.join(joined.missing)}.",), warning=True)
    return Section("claims", "Claims", (*((silent,) if joined.missing else ()), claims, rules, sentences))


def _agreements(joined: JoinedReport) -> Section:
    rows = tuple(row(agreement.what, state(agreement.state), agreement.said) for agreement in joined.agreements)
    comparison = Table("Whether the reports are of the same job", ("What", "State", "What was found"), rows, NONE)
    return Section("agreements", "What they have in common", (comparison,))


def _egress(joined: JoinedReport) -> Section:
    sites = tuple(
        row(site.site, count(site.messages), count(site.nbytes), count(site.cosigners)) for site in joined.sites
    )
    kinds = tuple(row(k.kind, k.protection, count(k.tensors), count(k.nbytes)) for k in joined.by_kind)
    by_site = tuple(
        row(site.site, k.kind, k.protection, count(k.tensors), count(k.nbytes))
        for site in joined.sites
        for k in site.by_kind
    )
    tables = (
        Table("By site", ("Site", "#Messages", "#Bytes", "#Cosigners"), sites, "Nothing left."),
        Table("By kind, of all sites", ("Kind", "Protection", "#Tensors", "#Bytes"), kinds, "Nothing left."),
        Table("By site and kind", ("Site", "Kind", "Protection", "#Tensors", "#Bytes"), by_site, "Nothing left."),
    )
    return Section("egress", "What left the sites", tables)


def _reports(joined: JoinedReport) -> Section:
    rows = tuple(
        row(site.site, moment(site.created), digest(site.report), digest(site.sha256), Code(site.signer))
        for site in joined.sites
    )
    titles = ("Site", "Made", "Evidence", "report.json", "Signer")
    return Section("reports", "Reports", (Table("The reports that were joined", titles, rows, NONE),))
