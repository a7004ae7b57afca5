"""The first page of a report, in words: the question, its answer, and the meaning of its epsilon, before any symbol."""

import math
from collections.abc import Sequence

from audits.escaping import quantity
from medfedvqa.report import charts, governance
from medfedvqa.report.blocks import (
    NONE,
    Badge,
    Block,
    Bullets,
    Card,
    Cell,
    DrawingGroup,
    Link,
    Number,
    Section,
    Table,
    Text,
    at_least,
    at_most,
    count,
    figure,
    moment,
    row,
    stack,
)
from privacy.report.figures import Report, Sections

QUESTION = "May what left be used as planned?"
MOST_OPEN = 8
"""The most open rules on the first page; section L has all of them."""
NOT_COVERED = (
    "The model that the site keeps, and the answers of any model that are shown to people.",
    "What the site published elsewhere, and releases of other hospitals that treat the same patient.",
    "Whether the model is accurate or safe enough for its use (J), and whether a law allows it (K).",
)


def in_hundred(share: float) -> int:
    """The share as a number of 100 people, rounded up."""
    return math.ceil(100 * share - 1e-9)


def accused_in_hundred(share: float) -> int:
    """People of 100 who are accused wrongly, rounded down: an attacker who accuses fewer finds no more."""
    return math.floor(100 * share + 1e-9)


def lead(report: Report) -> Badge:
    """The badge that answers the first page's question, by the verdict."""
    section = report.sections.verdicts
    still_open = [rule for rule in section.rules if rule.state != "shown"]
    broken = [rule.rule for rule in still_open if rule.state == "broken"]
    names = ", ".join(rule.rule for rule in still_open if rule.state == "not shown")
    if broken:
        return Badge(f"No. {quantity(len(broken), 'rule is', 'rules are')} broken: {', '.join(broken)}.", "bad")
    if still_open:
        open_rules = quantity(len(still_open), "rule is", "rules are")
        text = f"Not yet shown. No rule is broken, but {open_rules} open: {names}."
        return Badge(f"{text} The head of the site accepts this by signing, or does not.", "open")
    return Badge("Yes, as far as this report can show: every rule that it checks was kept.", "good")


def cards(report: Report) -> tuple[Card, ...]:
    """The four figures of the first screen."""
    sections, summary = report.sections, report.sections.summary
    egress, rules = sections.egress, sections.verdicts.rules
    spent = sections.accounting.spent.epsilon if sections.accounting.spent else None
    limit = sections.accounting.limit
    kept = sum(rule.state == "shown" for rule in rules)
    share = min(spent / limit, 1.0) if spent is not None and limit else None
    of: Cell = (" of ", figure(limit)) if limit is not None else ()
    rest: Cell = (at_least(sections.accounting.remaining), " left") if limit is not None else ("no limit is set",)
    of_hundred: Cell = (NONE,)
    guessing: Cell = ("no bound is claimed" if summary else "not in a report of this version",)
    if summary and summary.found is not None:
        of_hundred = (people(summary.found), " of 100")
        guessing = ("patients; guessing finds ", accused(summary.wrongly))
    return (
        Card(
            "Found at most",
            of_hundred,
            (*guessing, " · ", Link("B", "B")),
        ),
        Card("Left the site", (count(egress.nbytes),), (f"bytes, {egress.messages} messages", " · ", Link("H", "H"))),
        Card("Epsilon spent", (at_most(spent), *of), (*rest, " · ", Link("E", "E")), share),
        Card("Rules kept", (count(kept), " of ", count(len(rules))), (_attack(report), " · ", Link("L", "L"))),
    )


def _attack(report: Report) -> str:
    section = report.sections.empirical
    if not section.attacked:
        return "no test attack was made"
    effects = {
        True: "a test attack refutes the claim",
        False: "test attacks do not refute the claim",
        None: "test attacks, but no claim",
    }
    return effects[section.refuted]


def front(report: Report) -> tuple[Section, ...]:
    """The sections of the first page after the answer, up to the signatures."""
    about = (_open(report), _left(report), _patient(report), _budget(report), _limits(report))
    return (*about, governance.summary(report), _signatures(report))


def _open(report: Report) -> Section:
    """The rules that are not shown to be kept, the broken ones first."""
    rules = sorted((r for r in report.sections.verdicts.rules if r.state != "shown"), key=lambda r: r.state != "broken")
    rows = tuple(row(_named(rule), f"{rule.said}. {rule.closing or ''}".strip()) for rule in rules[:MOST_OPEN])
    table = Table("", ("Rule", "What was found, and what closes it"), rows, "No rule is open.")
    rest = len(rules) - MOST_OPEN
    more: Cell = (f"{rest} more are in section ", Link("L", "L"), ". ") if rest > 0 else ()
    notes = (Text((*more, _LATER)),) if rows else ()
    return Section("open", "What is open, and what closes it", (table, *notes))


_LATER = "What closes a rule counts for later jobs; about this one the head of the site decides."


def _named(rule: Sections) -> Cell:
    return stack(rule.rule, Badge(rule.state, "bad" if rule.state == "broken" else "open"))


def _left(report: Report) -> Section:
    section, identity = report.sections.egress, report.sections.identity
    left = "Nothing left the site for this job."
    if section.releases:
        kinds = [
            f"{one.nbytes:,} bytes of {_KINDS.get(one.kind, one.kind)}"
            f" ({_PROTECTIONS.get(one.protection, one.protection)})"
            for one in sorted(section.by_kind, key=lambda one: -one.nbytes)
        ]
        to = dict.fromkeys(_PEERS.get(one.recipient or "", one.recipient or NONE) for one in section.by_tensor)
        messages = quantity(section.messages, "message")
        left = f"{section.nbytes:,} bytes in {messages}, to {_listed(list(to))}: {_listed(kinds)}."
    about = f"Job {identity.job} ({identity.method}, {identity.state}) at site {identity.site}."
    trust = report.sections.trust
    network = f" As the log says, {trust.isolation_said}." if trust.isolation else ""
    return Section("left", "What left, and what did not", (Text((f"{about} {left} {_STAYED}{network}",)),))


_STAYED = (
    "Pictures, questions, answers and patients' names stay at the site: only what a job declares can leave, and no job "
    "can declare these."
)
_KINDS = {
    "parameters": "trained values",
    "statistic": "statistics",
    "public": "public values, which no patient's data enter",
}
_PEERS = {"server": "the server", "sites": "the other sites"}
_PROTECTIONS = {
    "none": "as they are",
    "dp": "with noise",
    "masked": "masked",
    "dp and masked": "with noise and masked",
}


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _patient(report: Report) -> Section:
    title = "What it means for one patient"
    summary = report.sections.summary
    if summary is None or summary.found is None:
        why = report.sections.claim.sentence if not report.sections.claim.made else "This version wrote no such figure."
        return Section("patient", title, (Text((why,), warning=not report.sections.claim.made),))
    blocks: list[Block] = [Text(accusation(summary.wrongly, summary.found))]
    if summary.found_in_all is not None:
        every = people(summary.found_in_all)
        blocks.append(Text(("By all that this site's jobs ever released with noise it is at most ", every, " of 100.")))
    blocks.append(DrawingGroup((charts.people(in_hundred(summary.found), accused_in_hundred(summary.wrongly)),)))
    return Section("patient", title, tuple(blocks))


def people(share: float) -> Number:
    """The share as people of 100."""
    return Number(str(in_hundred(share)), repr(share))


def accused(wrongly: float) -> Number:
    """The share of people accused wrongly, as people of 100."""
    return Number(str(accused_in_hundred(wrongly)), repr(wrongly))


def accusation(wrongly: float, found: float) -> Cell:
    """The bound as sentences."""
    guess = accused(wrongly)
    return (
        *("Somebody who sees all that left guesses for people whether they took part. If he is wrong about ", guess),
        *(" of 100 who did not, he finds at most ", people(found), " of 100 who did; by guessing, ", guess, "."),
    )


def _budget(report: Report) -> Section:
    section, summary = report.sections.accounting, report.sections.summary
    spent = at_most(section.spent.epsilon if section.spent else None)
    if section.limit is None:
        said: Cell = (
            "The site has set no limit, so that nothing can be said to remain. All jobs together spent epsilon ",
            spent,
            ".",
        )
    else:
        said = ("Of epsilon ", figure(section.limit), " that the site allows in all, ", spent, " is spent and ")
        said += (at_least(section.remaining), " is left. ", *_fits(summary))
    refused = len(section.refusals)
    more = f"The site refused {quantity(refused, 'job or message', 'jobs or messages')}. " if refused else ""
    return Section("budget", "What is left of the budget", (Text((*said, " ", more, _EPSILON)),))


_EPSILON = "Epsilon bounds what they tell about one patient: the smaller, the less."


def _fits(summary: Sections | None) -> Cell:
    if summary is None or summary.jobs_that_fit is None:
        return ()
    return (
        "More jobs like this that fit: ",
        count(summary.jobs_that_fit),
        " (counted to ",
        count(summary.most_counted),
        ").",
    )


def _limits(report: Report) -> Section:
    return Section("not-covered", "What is not covered", (Bullets("", NOT_COVERED),))


def _signatures(report: Report) -> Section:
    section = report.sections
    command = "`medfedvqa privacy verify-report FOLDER --key KEY`"
    check = (
        f"To check it: {command}, with this file's folder and the key that the site gave you. It checks the signature "
        "and computes the figures anew from the evidence. Capital letters name the sections that follow."
    )
    made: Cell = ("Made ", moment(section.identity.created), " UTC. ", check)
    rows = tuple(row(stack(sign.role, sign.confirms), "", "") for sign in section.verdicts.sign_off)
    titles = ("Who confirms what", "Name", "Date and signature")
    signs = Table("", titles, rows, "Nobody is asked to sign.")
    return Section("signatures", "Signatures", (Text(made), signs))
