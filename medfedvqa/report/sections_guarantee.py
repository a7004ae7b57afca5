"""Sections A to F: the job, the claim, and what the claim rests on."""

import re
from collections.abc import Iterator, Mapping, Sequence

from audits.entry import Event
from audits.escaping import NAME, bounded
from medfedvqa.report import charts
from medfedvqa.report.blocks import (
    NONE,
    Badge,
    Block,
    Break,
    Bullets,
    Cell,
    Code,
    Content,
    Digest,
    DrawingGroup,
    Fact,
    Facts,
    Inline,
    Link,
    Section,
    Table,
    Text,
    Tone,
    at_least,
    at_most,
    count,
    digest,
    fact,
    figure,
    links_to,
    moment,
    plain,
    row,
    stack,
    table,
    with_commas,
    yes,
)
from medfedvqa.report.governance import deployments, words_of
from privacy.report.model_conduct import Report
from privacy.report.model_guarantee import (
    Accounting,
    CodeShare,
    EventFigures,
    ExecutedMechanism,
    Figures,
    ReportCharge,
    ReportRefusal,
)

TONES: Mapping[str, Tone] = {"shown": "good", "broken": "bad"}
"""The tones of verdicts; others are open."""
NAMED_PLACE = re.compile(r"(record|entry) (\d+)")


def identity(report: Report) -> Section:
    """Section A."""
    section = report.sections.identity
    logged = links_to("entry", _seqs(report))
    ledger = Link("ledger", "ledger")
    about = [
        fact("Made, UTC", moment(section.created), "the site's clock"),
        fact("Job", f"{section.job} ({section.method}), {section.state}", logged),
        fact("Site", section.site, logged),
        fact("Sites of the job", ", ".join(section.sites) or NONE, "as far as the site knows them"),
        fact("Log", (section.log_origin, ", ", count(section.log_entries), " entries"), Link("H", "H")),
        fact("Ledger", (count(section.ledger_records), " records"), ledger),
        *_approvals(report),
        fact("Digests, keys and code", Link("at the end", "code")),
    ]
    return Section("A", "Identity", (Facts("What it is of", tuple(about)), words_of(report)))


def _approvals(report: Report) -> Iterator[Fact]:
    """A figure for each entry that admits the job with the permit of a person of the hospital.

    The log holds the person's name, the permit, and its end where this version or a later one wrote it.
    """
    for record in (entry.record for entry in report.evidence.log.entries):
        admission = record.get("admission")
        if (record.get("event"), record.get("job")) != (Event.ADMITTED, report.evidence.job):
            continue
        if isinstance(admission, dict) and admission.get("permit"):
            person, permit, until = (
                bounded(str(admission.get(name) or NONE), NAME) for name in ("approver", "permit", "until")
            )
            end = "" if until == NONE else f", until {until}"
            approval = (f"{person}, permit ", Code(permit), end)
            yield fact("Approved by", approval, with_links(f"entry {record.get('seq')}"))


def code(report: Report) -> Section:
    """The digests of section A, which nobody reads first."""
    section = report.sections.identity
    logged, ledger = links_to("entry", _seqs(report)), Link("ledger", "ledger")
    run = Link("D", "D") if report.evidence.run else NONE
    named = (section.backbone, section.backbone_digest and Digest(section.backbone_digest))
    backbone = [part for part in named if part]
    facts = [
        fact("Report", Digest(section.report), "SHA-256 of the evidence in report.json"),
        fact("Signer", Code(section.signer), "the site's verifier key"),
        fact("Log root", digest(section.log_root), ("signed checkpoint, ", Link("H", "H"))),
        fact("Ledger head", digest(section.ledger_head), ledger),
        fact("Report's tool", (section.tool, ", code ", Digest(section.tool_code)), "this installation"),
        fact("Code of the job", _both(section.code_versions, section.code_digests), logged),
        fact("Backbone", with_commas(backbone), logged),
        fact("Exchange", digest(section.exchange_digest), logged),
        fact("Site's policy", digest(section.policy_digest), logged),
        fact("Job's settings", digest(section.config_digest), run),
    ]
    adapter = Table(
        "Adapter: the tensors that were released last",
        ("Tensor", "Round", "SHA-256 of the bytes sent"),
        tuple(row(tensor.tensor, count(tensor.round), _sent(tensor.sha256)) for tensor in section.adapter),
        "No tensor was released.",
    )
    parts = _parts(section.code_parts) if section.code_parts else ()
    blocks = (Facts("What identifies it", tuple(facts)), *parts, adapter)
    return Section("code", "Digests, keys and code", blocks)


def _parts(parts: Sequence[CodeShare]) -> Iterator[Table]:
    """The parts of the job's code. Code that a site added comes first, since nobody else may have looked at it."""
    titles = ("Part", "Version", "SHA-256")
    groups = (
        ("Code from outside of this project that took part", ("plug-in", "module"), True),
        ("The project and what it depends on", ("project", "dependency"), False),
    )
    for caption, kinds, on_paper in groups:
        rows = tuple(
            row(part.name or "a module of no distribution", part.version or NONE, digest(part.sha256))
            for part in parts
            if part.kind in kinds
        )
        yield Table(caption, titles, rows, "No code from outside of the project took part.", on_paper)


def claim(report: Report) -> Section:
    """Section B."""
    section, charges = report.sections.claim, report.sections.accounting.charges
    charged: Cell = links_to("record", [charge.record for charge in charges if charge.job == report.evidence.job])
    is_exact = section.mu_is_exact if section.mu else None
    exact = {True: " (exact)", False: " (an approximation, no bound)", None: ""}[is_exact]
    blocks: list[Block] = [Text((section.sentence,), warning=not section.made)]
    if section.provisional:
        blocks.append(Text(("The job may still be charged: these figures are provisional.",), warning=True))
    facts = (
        fact("Claim", "made" if section.made else "not made", Link("L", "L")),
        fact("Epsilon", at_most(section.epsilon), charged),
        fact("Delta", figure(section.delta), charged),
        fact("GDP mu", (figure(section.mu), exact), Link("E", "E")),
        fact("Mechanism", plain(section.mechanism), Link("D", "D")),
        fact("Unit", plain(section.unit), Link("C", "C")),
        fact("Neighbours", plain(section.neighbours), Link("C", "C")),
        fact("Observer", plain(section.observer), Link("G", "G")),
    )
    blocks += [Facts("In its parts", facts), Bullets("Not covered", section.not_covered), deployments()]
    return Section("B", "Claim", tuple(blocks))


def unit(report: Report) -> Section:
    """Section C."""
    section = report.sections.unit
    attested = {
        True: "yes",
        False: "no: a delta that large may reveal whole patients",
        None: "the site does not attest it",
    }
    facts = (
        fact("Unit", section.unit),
        fact("Record", section.record),
        fact("Neighbours", section.neighbours),
        fact("Delta below 1/n", attested[section.delta_below_cohort], "n: the largest cohort, not told"),
    )
    bounds = Table(
        "Bounds on one patient",
        ("Bound", "#Value", "Unit", "Meaning", "Source"),
        tuple(row(b.name, figure(b.value), b.unit, b.meaning, with_links(b.source)) for b in section.bounds),
        "No bound is known.",
    )
    return Section("C", "Unit and bounds", (Facts("Who is protected", facts), bounds))


def mechanism(report: Report) -> Section:
    """Section D."""
    section, run = report.sections.mechanism, report.evidence.run
    mechanisms = table(
        "Mechanisms, over all charges of the job",
        section.mechanisms,
        {
            "Mechanism, applied to": lambda m: stack(_named(m.event), m.applied_to),
            "Sampler": lambda m: m.sampler,
            "Noise, parameters": lambda m: stack(m.noise, tuple(_parameters(m.event))),
            "#Steps": lambda m: count(m.event.steps),
            "Sensitivity": lambda m: m.sensitivity,
        },
        "No mechanism was charged.",
    )
    blocks: list[Block] = []
    if section.void:
        void = "Void: the noise of this job could be repeated, so that it protects nobody."
        blocks.append(Text((void,), warning=True))
    blocks += [mechanisms, Facts("As executed", _executed(section))]
    if run:
        settings = {**run.options, **{f"dp.{name}": value for name, value in (run.dp or {}).items()}}
        versions = ", ".join(f"{name} {version or NONE}" for name, version in run.versions.items())
        facts = (
            fact("Status", f"{run.status}, {run.rounds_done} of {run.rounds_planned} rounds"),
            fact("Engine", run.engine),
            fact("Data", plain(run.data)),
            fact("Backbone", run.backbone),
            fact("Seed", count(run.seed)),
            fact("On shares", "yes, means with CrypTen" if run.secagg == "crypten" else yes(bool(run.secagg))),
            fact("Sites", ", ".join(run.sites)),
            fact("Versions", versions),
            fact("File", Digest(run.sha256)),
        )
        values = tuple(fact(name, Code(str(value))) for name, value in sorted(settings.items()))
        blocks += [Facts("Run, as its results.json tells", facts), Facts("Settings", values, small=True)]
    return Section("D", "Mechanism as executed", tuple(blocks))


def _executed(mechanism: ExecutedMechanism) -> tuple[Fact, ...]:
    return (
        fact("Clip", figure(mechanism.clip)),
        fact("Noise deviation", figure(mechanism.noise_deviation), "multiplier times clip"),
        fact("Expected patients", count(mechanism.expected_patients)),
        fact("Batch sizes", mechanism.batch_sizes),
        fact("Randomness", mechanism.randomness),
        fact("Noise could be repeated", yes(mechanism.void)),
        fact("Source of these", with_links(mechanism.source)),
    )


def accounting(report: Report) -> Section:
    """Section E."""
    section, job = report.sections.accounting, report.evidence.job
    of_job = links_to("record", [charge.record for charge in section.charges if charge.job == job])
    every = links_to("record", [charge.record for charge in section.charges])
    policy: Cell = ("the site's policy, ", Link("G", "G"))
    figures = (
        fact("Delta", figure(section.delta), policy),
        fact("Limit of all jobs", figure(section.limit, "none is set"), policy),
        fact("Limit of a job", figure(section.limit_per_job, "none is set"), policy),
        fact("Remaining", at_least(section.remaining), "limit less authorised"),
        fact("Tasks reserved, not begun", count(section.reserved_tasks), Link("ledger", "ledger")),
    )
    totals = (
        ("This job, charged", section.job, of_job),
        *((("This job, if no other site colludes", section.outside, of_job),) if section.outside else ()),
        ("This job, with what is reserved", section.projected, of_job),
        ("All jobs, spent", section.spent, every),
        ("All jobs, authorised", section.authorised, every),
    )
    replayed = Table(
        "Epsilon, replayed by both accountants; the smaller binds",
        ("Of", "#Epsilon", "#RDP", "#PRV", "#GDP mu", "Source"),
        tuple(row(name, *_figures(figures_of), source) for name, figures_of, source in totals),
        "Nothing was charged.",
    )
    drawings = (charts.budget_course(section, job), charts.budget_by_job(section, job))
    blocks: list[Block] = [
        Facts("Budget of the site", figures),
        replayed,
        DrawingGroup(tuple(drawing for drawing in drawings if drawing)),
        _jobs(section),
        _charges(section.charges),
        refusals("Refusals", section.refusals, "The site refused nothing."),
        _restarts(section),
        _accountants(section),
    ]
    return Section("E", "Accounting", tuple(blocks))


def _figures(figures: Figures | None) -> tuple[Inline, ...]:
    if figures is None:
        return (NONE,) * 4
    return (at_most(figures.epsilon), at_most(figures.rdp), at_most(figures.prv), figure(figures.mu))


def _jobs(accounting: Accounting) -> Table:
    return table(
        "Jobs in the ledger",
        accounting.jobs,
        {
            "Job": lambda job: job.job,
            "Method": lambda job: job.method,
            "#Epsilon": lambda job: at_most(job.epsilon),
            "#Charges": lambda job: count(job.charges),
            "#Reserved": lambda job: count(job.reserved),
            "Void": lambda job: yes(job.void),
            "Records": lambda job: links_to(
                "record", [charge.record for charge in accounting.charges if charge.job == job.job]
            ),
        },
        "The ledger has no job.",
    )


def _charges(charges: Sequence[ReportCharge]) -> Table:
    return table(
        "Charges, in the ledger's order, with epsilon after each",
        charges,
        {
            "Record, log": lambda c: stack(Link(str(c.record), f"record-{c.record}"), links_to("entry", c.entries)),
            "Job, method, time": lambda c: stack(c.job, c.method, moment(c.time)),
            "Task, round, attempt": lambda c: stack(c.task, count(c.round), count(c.attempt)),
            "Events, delta": lambda c: stack(tuple(_events(c)) or NONE, ("delta ", figure(c.delta))),
            "#Job: recorded, replayed": lambda c: stack(at_most(c.job_epsilon_after), at_most(c.replayed)),
            "#All jobs, recorded": lambda c: at_most(c.site_epsilon_after),
            "State": lambda c: ", ".join(_states(c)),
        },
        "Nothing was charged.",
    )


def _events(charge: ReportCharge) -> Iterator[Inline]:
    for place, event in enumerate(charge.events):
        yield from (Break(),) if place else ()
        yield from (count(event.steps), f" × {_named(event)}: ", *_parameters(event))


def _named(event: EventFigures) -> str:
    return f"{event.mechanism}, {event.use}" if event.use else event.mechanism


def _parameters(event: EventFigures) -> Iterator[Inline]:
    for place, parameter in enumerate(event.parameters):
        yield from (", " if place else "", f"{parameter.name} ", figure(parameter.value))


def _states(charge: ReportCharge) -> Iterator[str]:
    yield "settled" if charge.settled else "begun"
    if charge.void:
        yield "void"
    if charge.imported:
        yield "imported"


def refusals(caption: str, refused: Sequence[ReportRefusal], empty: str) -> Table:
    """A table of what the site refused."""
    return table(
        caption,
        refused,
        {
            "Entry": lambda r: Link(str(r.entry), f"entry-{r.entry}"),
            "Job, time": lambda r: stack(plain(r.job), moment(r.time)),
            "Task, round": lambda r: stack(plain(r.task), count(r.round)),
            "Direction": lambda r: plain(r.direction),
            "Reason": lambda r: r.reason,
        },
        empty,
    )


def _restarts(accounting: Accounting) -> Table:
    rows = tuple(row(restart.task, count(restart.round), count(restart.attempts)) for restart in accounting.restarts)
    return Table("Tasks that began more than once", ("Task", "Round", "#Attempts"), rows, "Every task began once.")


def _accountants(accounting: Accounting) -> Table:
    rows = tuple(
        row(accountant.name, accountant.implementation, accountant.source) for accountant in accounting.accountants
    )
    return Table("Accountants", ("Name", "Implementation", "Source"), rows, "Nothing was replayed.")


def outside(report: Report) -> Section:
    """Section F."""
    rows = tuple(row(item.what, item.why, item.treatment) for item in report.sections.outside)
    items = Table("Not covered by the theorem", ("What", "Why", "Treatment"), rows, "Nothing is outside the theorem.")
    return Section("F", "Outside the theorem", (items,))


def with_links(source: str) -> Cell:
    """A sentence about a source, in which records and entries are links."""
    parts, end = list[Inline](), 0
    for match in NAMED_PLACE.finditer(source):
        parts += [source[end : match.start()], Link(match[0], f"{match[1]}-{match[2]}")]
        end = match.end()
    return tuple(part for part in [*parts, source[end:]] if part) or (NONE,)


def state(verdict: str) -> Badge:
    """A verdict as a badge."""
    return Badge(verdict, TONES.get(verdict, "open"))


def _both(versions: Sequence[str], digests: Sequence[str]) -> Content:
    return (*with_commas(list(versions)), ", code ", *with_commas([Digest(digest) for digest in digests]))


def _sent(sha256: str | None) -> Inline:
    return "shared: no message held it" if sha256 is None else Digest(sha256)


def _seqs(report: Report) -> list[int]:
    seqs = [entry.record.get("seq") for entry in report.evidence.log.entries]
    return [seq for seq in seqs if isinstance(seq, int)]
