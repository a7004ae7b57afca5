"""Composes a report into a document: its first screen, sections A to M, and the appendix."""

from audits.escaping import NAME, bounded
from medfedvqa.report import appendix, sections_conduct, sections_guarantee
from medfedvqa.report.blocks import (
    Card,
    Cell,
    Document,
    Link,
    at_least,
    at_most,
    figure,
    moment,
    words,
)
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
    sections = [section(report) for section in LETTERED] + [appendix.log(report), appendix.ledger(report)]
    return Document(
        kind="Privacy-budget report",
        title=f"Job {bounded(section.job, NAME)} at site {bounded(section.site, NAME)}",
        claim=report.sections.claim.sentence,
        claimed=report.sections.claim.made,
        created=section.created,
        cards=(_epsilon(report), _budget(report), _verdict(report), _attack(report)),
        sections=(*sections, appendix.digests(sections)),
        foot=f"Format {report.format}, made {words([moment(section.created)])} with medfedvqa {section.tool}. {FOOT}",
    )


def _epsilon(report: Report) -> Card:
    section = report.sections.claim
    provisional = ", provisional" if section.provisional else ""
    remark: Cell = ("no claim is made",)
    if section.made:
        remark = ("at delta ", figure(section.delta), f", by {section.unit}{provisional}")
    return Card("Epsilon of the job", (at_most(section.epsilon),), (*remark, " · ", Link("B", "B")))


def _budget(report: Report) -> Card:
    section = report.sections.accounting
    spent, limit = section.spent.epsilon if section.spent else None, section.limit
    of: Cell = (" of ", figure(limit)) if limit is not None else ()
    remaining: Cell = (at_least(section.remaining), " remaining") if limit is not None else ("no limit is set",)
    share = min(spent / limit, 1.0) if spent is not None and limit else None
    return Card("Spent by all jobs", (at_most(spent), *of), (*remaining, " · ", Link("E", "E")), share)


def _verdict(report: Report) -> Card:
    section = report.sections.verdicts
    kept = sum(rule.state == "shown" for rule in section.rules)
    remark = f"{kept} of {len(section.rules)} rules shown to be kept · "
    return Card("Verdict", (sections_guarantee.state(section.state),), (remark, Link("L", "L")))


def _attack(report: Report) -> Card:
    section = report.sections.empirical
    if not section.attacked:
        return Card("Attacks", ("none",), ("no audit was given · ", Link("J", "J")))
    effect = {True: "refutes the claim", False: "does not refute the claim", None: "beside no claim"}[section.refuted]
    return Card("Attacks prove at least", (at_least(section.lower_bound),), (f"{effect} · ", Link("J", "J")))
