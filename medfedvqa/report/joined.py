"""Sites' reports on one job, side by side, as a document."""

from audits.escaping import NAME, bounded
from medfedvqa.report import appendix
from medfedvqa.report.blocks import (
    NONE,
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
    words,
)
from medfedvqa.report.sections_guarantee import state
from privacy.report.join import JoinedReport


def compose_joined(it: JoinedReport) -> Document:
    """The document of a federation's reports on one job."""
    sections = [_claims(it), _agreements(it), _egress(it), _reports(it)]
    left_out = Section("left-out", "Left out", (Bullets("Not in a joined report", it.left_out),))
    missing = len(it.missing)
    sites = f"{missing} more gave none" if missing else "all sites of the job"
    cards = (
        Card("Largest epsilon of a site", (at_most(it.epsilon),), ("at delta ", figure(it.delta))),
        Card("Sites that report", (count(len(it.sites)),), (sites,)),
        Card("Reports agree", (state(it.state),), ("see what they have in common",)),
        Card("Left the sites", (count(it.nbytes),), ("bytes in ", count(it.messages), " messages")),
    )
    return Document(
        kind="Joined privacy-budget reports",
        title=f"Job {bounded(it.job, NAME)} ({bounded(it.method, NAME)}) at {len(it.sites)} sites",
        claim=it.sentence,
        claimed=it.epsilon is not None,
        created=it.created,
        cards=cards,
        sections=(*sections, left_out, appendix.digests(sections)),
        foot=f"Format {it.format}, newest report of {words([moment(it.created)])} UTC. A joined report is not signed: "
        "whoever has the reports, which are, can make it again. Upper bounds are rounded up, lower bounds down.",
    )


def _claims(it: JoinedReport) -> Section:
    claims = Table(
        "Claims, site by site",
        ("Site", "Claim", "#Epsilon", "#Delta", "#GDP mu", "Aggregation", "#Attacks prove", "State", "Job"),
        tuple(
            row(
                one.site,
                "made" if one.claimed else "not made",
                at_most(one.epsilon),
                figure(one.delta),
                figure(one.mu),
                one.aggregation,
                at_least(one.lower_bound),
                state("broken" if one.broken else "not shown" if one.not_shown else "shown"),
                one.state,
            )
            for one in it.sites
        ),
        "No site reports.",
    )
    rules = Table(
        "Rules not shown to be kept",
        ("Site", "Broken", "Not shown"),
        tuple(
            row(one.site, ", ".join(one.broken) or NONE, ", ".join(one.not_shown) or NONE)
            for one in it.sites
            if one.broken or one.not_shown
        ),
        "All rules are shown to be kept at all of these sites.",
    )
    said = Facts("In their own words", tuple(fact(one.site, one.sentence) for one in it.sites))
    silent = Text((f"Without a report: {', '.join(it.missing)}.",), warning=True)
    return Section("claims", "Claims", (*((silent,) if it.missing else ()), claims, rules, said))


def _agreements(it: JoinedReport) -> Section:
    rows = tuple(row(one.what, state(one.state), one.said) for one in it.agreements)
    table = Table("Whether the reports are of the same job", ("What", "State", "What was found"), rows, NONE)
    return Section("agreements", "What they have in common", (table,))


def _egress(it: JoinedReport) -> Section:
    sites = tuple(row(one.site, count(one.messages), count(one.nbytes), count(one.cosigners)) for one in it.sites)
    kinds = tuple(row(k.kind, k.protection, count(k.tensors), count(k.nbytes)) for k in it.by_kind)
    by_site = tuple(
        row(one.site, k.kind, k.protection, count(k.tensors), count(k.nbytes)) for one in it.sites for k in one.by_kind
    )
    tables = (
        Table("By site", ("Site", "#Messages", "#Bytes", "#Cosigners"), sites, "Nothing left."),
        Table("By kind, of all sites", ("Kind", "Protection", "#Tensors", "#Bytes"), kinds, "Nothing left."),
        Table("By site and kind", ("Site", "Kind", "Protection", "#Tensors", "#Bytes"), by_site, "Nothing left."),
    )
    return Section("egress", "What left the sites", tables)


def _reports(it: JoinedReport) -> Section:
    rows = tuple(
        row(one.site, moment(one.created), digest(one.report), digest(one.sha256), Code(one.signer)) for one in it.sites
    )
    table = Table("The reports that were joined", ("Site", "Made", "Evidence", "report.json", "Signer"), rows, NONE)
    return Section("reports", "Reports", (table,))
