"""Blocks of the pages other than lists and tables of figures, such as plots; `figures.txt` names these functions."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from audits.entry import Event
from audits.escaping import NAME, bounded
from medfedvqa.report import charts, governance
from medfedvqa.report.blocks import (
    NONE,
    Block,
    Break,
    Cell,
    Code,
    Drawing,
    DrawingGroup,
    Facts,
    Inline,
    Link,
    Table,
    Text,
    at_most,
    count,
    digest,
    fact,
    figure,
    links_to,
    percent,
    plain,
    row,
    table,
)
from privacy.report.figures import FIGURES, SUPPORT, Report
from privacy.report.join import JoinedReport


def source_cell(report: Report, source: str) -> Cell:
    """The cell that a page shows for the source of a figure."""
    charges, job = report.sections.accounting.charges, report.evidence.job
    match source:
        case "this version":
            return ()
        case "log":
            return links_to("entry", _seqs(report))
        case "releases":
            return links_to("entry", [release.entry for release in report.sections.egress.releases])
        case "ledger":
            return (Link("ledger", "ledger"),)
        case "charges of the job":
            return links_to("record", [charge.record for charge in charges if charge.job == job])
        case "charges of the ledger":
            return links_to("record", [charge.record for charge in charges])
        case "results.json":
            return (Link("D", "D"),)
        case _:
            return (source,)


def _seqs(report: Report) -> Sequence[int]:
    seqs = [entry.record.get("seq") for entry in report.evidence.log.entries]
    return [seq for seq in seqs if isinstance(seq, int)]


BREAK = Break()
Blocks = Iterator[Block]


def approvals(report: Report) -> Blocks:
    """A figure for each entry that admits the job with a permit by a person of the hospital.

    The log holds the person's name, the permit, and its end where this version or a later one wrote it.
    """
    facts = []
    for record in (entry.record for entry in report.evidence.log.entries):
        admission = record.get("admission")
        if (record.get("event"), record.get("job")) != (Event.ADMITTED, report.evidence.job):
            continue
        if isinstance(admission, dict) and admission.get("permit"):
            person, permit, until = (
                bounded(str(admission.get(name) or NONE), NAME) for name in ("approver", "permit", "until")
            )
            end = "" if until == NONE else f", until {until}"
            entry = Link(f"entry {record.get('seq')}", f"entry-{record.get('seq')}")
            facts.append(fact("Approved by", (f"{person}, permit ", Code(permit), end), entry))
    yield from (Facts("Who approved it", tuple(facts)),) if facts else ()


def deployments(report: Report) -> Blocks:
    yield governance.deployments()


def provisional(report: Report) -> Blocks:
    if report.sections.claim.provisional:
        yield Text(("The job may still be charged: these figures are provisional.",), warning=True)


def void(report: Report) -> Blocks:
    if report.sections.mechanism.void:
        yield Text(("Void: the noise of this job could be repeated, so that it protects nobody.",), warning=True)


def settings(report: Report) -> Blocks:
    """The settings of the run, if its results were given."""
    if run := report.evidence.run:
        named = {**run.options, **{f"dp.{name}": value for name, value in (run.dp or {}).items()}}
        values = tuple(fact(name, Code(str(value))) for name, value in sorted(named.items()))
        yield Facts("Settings", values, small=True)


def totals(report: Report) -> Blocks:
    """Epsilon of this job and of all, by both accountants."""
    rows = []
    for name in ("job", "outside", "projected", "spent", "authorised"):
        sums, line = getattr(report.sections.accounting, name), FIGURES[f"accounting.{name}.epsilon"]
        cells: Sequence[Inline] = (NONE,) * 4
        if sums:
            cells = (at_most(sums.epsilon), at_most(sums.rdp), at_most(sums.prv), figure(sums.mu))
        if sums or name != "outside":
            rows.append(row(line.label, *cells, source_cell(report, line.source)))
    titles = ("Of", "#Epsilon", "#RDP", "#PRV", "#GDP mu", "Source")
    caption = "Epsilon, replayed by both accountants; the smaller binds"
    yield Table(caption, titles, tuple(rows), "Nothing was charged.")


def budgets(report: Report) -> Blocks:
    section, job = report.sections.accounting, report.evidence.job
    yield from _group(charts.budget_course(section, job), charts.budget_by_job(section, job))


def rounds_drawn(report: Report) -> Blocks:
    yield from _group(charts.egress_by_round(report.sections.egress))


def tests(report: Report) -> Blocks:
    yield from _group(charts.attacks(report.sections.empirical), charts.accuracy(report.sections.empirical))


def _group(*drawings: Drawing | None) -> Blocks:
    if drawn := tuple(drawing for drawing in drawings if drawing):
        yield DrawingGroup(drawn)


def rounds(report: Report) -> Blocks:
    """A table with a row for each round and a column for each kind."""
    shares = report.sections.egress.by_round
    kinds = sorted({share.kind for share in shares})
    nbytes = {(share.round, share.kind): share.nbytes for share in shares}
    numbers = dict.fromkeys(share.round for share in shares)
    rows = tuple(row(count(r), *(count(nbytes.get((r, kind))) for kind in kinds)) for r in numbers)
    yield Table("Bytes by round and kind", ("Round", *(f"#{kind}" for kind in kinds)), rows, "Nothing left.")


def accuracies(report: Report) -> Blocks:
    section = report.sections.empirical
    if section.accuracy_private is None and section.accuracy_without is None:
        return
    prior, cost = (FIGURES[f"empirical.{name}"].label for name in ("accuracy_prior", "cost_of_privacy"))
    lines = (
        *(model[1:] for model in charts.accuracies(section)),
        (prior, section.accuracy_prior, None, None),
        (cost, section.cost_of_privacy, None, None),
    )
    rows = tuple(
        row(name, percent(value), NONE if low is None else (percent(low), " to ", percent(high)))
        for name, value, low, high in lines
    )
    yield Table("Accuracy on the site's test rows", ("Model", "#Accuracy", "#95 % interval"), rows, "Not given.")


def support(report: Report) -> Blocks:
    """The number of lines of each framework, by support."""
    lines, kinds = report.sections.mappings, SUPPORT.split("/")
    counts = Counter((line.framework, line.support) for line in lines)
    rows = tuple(
        row(framework, *(count(counts[framework, kind] or None) for kind in kinds))
        for framework in dict.fromkeys(line.framework for line in lines)
    )
    titles = ("Framework", *(f"#{kind}" for kind in kinds))
    yield Table("Lines by framework", titles, rows, "There is no mapping.")


def frameworks(report: Report) -> Blocks:
    """The versions of the frameworks, and the date of each one's last check."""
    lines = report.sections.mappings
    dated = dict.fromkeys((line.framework, line.source, line.checked) for line in lines if line.source)
    rows = tuple(row(framework, plain(source), plain(checked)) for framework, source, checked in dated)
    titles = ("Framework", "Version of the source", "Checked")
    empty = "The version that made this report did not say."
    yield Table("What the lines were checked against, and when", titles, rows, empty)


def signed(report: Report) -> Blocks:
    yield Text(("Signatures are on the ", Link("first page", "signatures"), "."))


def silent(joined: JoinedReport) -> Blocks:
    if joined.missing:
        yield Text((f"Without a report: {', '.join(joined.missing)}.",), warning=True)


def parts(report: Report) -> Blocks:
    """The parts of the job's code. Code that a site added comes first, since nobody else may have looked at it."""
    groups = (
        ("Code from outside of this project that took part", ("plug-in", "module"), True),
        ("The project and what it depends on", ("project", "dependency"), False),
    )
    named = report.sections.identity.code_parts
    for caption, kinds, on_paper in groups if named else ():
        yield table(
            caption,
            [part for part in named if part.kind in kinds],
            {
                "Part": lambda part: part.name or "a module of no distribution",
                "Version": lambda part: part.version or NONE,
                "SHA-256": lambda part: digest(part.sha256),
            },
            "No code from outside of the project took part.",
            on_paper=on_paper,
        )


def events(charged: Any) -> Cell:
    """The mechanisms of a charge, each on a line."""
    lines = list[Inline]()
    for event in charged or ():
        name = f"{event['mechanism']}, {event['use']}" if event["use"] else event["mechanism"]
        lines += (BREAK, count(event["steps"]), f" × {name}: ", *parameters(event.get("parameters")))
    return tuple(lines[1:])


def parameters(named: Any) -> Cell:
    """The parameters of a mechanism."""
    pieces = [piece for one in named or () for piece in (", ", f"{one['name']} ", figure(one["value"]))]
    return tuple(pieces[1:])


def by_kind(totals: Any) -> Cell:
    """The totals of a site's released tensors, one line for each kind and protection."""
    lines = list[Inline]()
    for total in totals or ():
        lines += (BREAK, f"{total['kind']}, {total['protection']}: ", count(total["tensors"]), " tensors, ")
        lines += (count(total["nbytes"]), " bytes")
    return tuple(lines[1:])
