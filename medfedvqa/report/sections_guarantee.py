"""Sections A to F: what the report is of, what is claimed, and what the claim rests on."""

import re
from collections.abc import Iterator, Mapping, Sequence

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
    Fact,
    Facts,
    Inline,
    Link,
    Pictures,
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
    moment,
    numbered,
    plain,
    row,
    spread,
    yes,
)
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
"""How verdicts are coloured; any other is open."""
NAMED_PLACE = re.compile(r"(record|entry) (\d+)")


def identity(report: Report) -> Section:
    """A."""
    it = report.sections.identity
    logged = numbered("entry", _seqs(report))
    ledger = Link("ledger", "ledger")
    run = Link("D", "D") if report.evidence.run else NONE
    known = (it.backbone, it.backbone_digest and Digest(it.backbone_digest))
    backbone = [part for part in known if part]
    about = [
        fact("Report", Digest(it.report), "SHA-256 of the evidence in report.json"),
        fact("Made, UTC", moment(it.created), "the site's clock"),
        fact("Job", f"{it.job} ({it.method}), {it.state}", logged),
        fact("Site", it.site, logged),
        fact("Sites of the job", ", ".join(it.sites) or NONE, "as far as the site knows them"),
        fact("Signer", Code(it.signer), "the site's verifier key"),
        fact("Log", (it.log_origin, ", ", count(it.log_entries), " entries"), Link("H", "H")),
        fact("Log root", digest(it.log_root), ("signed checkpoint, ", Link("H", "H"))),
        fact("Ledger", (count(it.ledger_records), " records"), ledger),
        fact("Ledger head", digest(it.ledger_head), ledger),
    ]
    code = [
        fact("Report's tool", (it.tool, ", code ", Digest(it.tool_code)), "this installation"),
        fact("Code of the job", _both(it.code_versions, it.code_digests), logged),
        fact("Backbone", spread(backbone), logged),
        fact("Exchange", digest(it.exchange_digest), logged),
        fact("Site's policy", digest(it.policy_digest), logged),
        fact("Job's settings", digest(it.config_digest), run),
    ]
    adapter = Table(
        "Adapter: the tensors that were released last",
        ("Tensor", "Round", "SHA-256 of the bytes sent"),
        tuple(row(one.tensor, count(one.round), _sent(one.sha256)) for one in it.adapter),
        "No tensor was released.",
    )
    parts = _parts(it.code_parts) if it.code_parts else ()
    blocks = (Facts("What it is of", tuple(about)), Facts("Code and settings", tuple(code)), *parts, adapter)
    return Section("A", "Identity", blocks)


def _parts(parts: Sequence[CodeShare]) -> Iterator[Table]:
    """What the job's code consists of: what a site added first, since nobody else may have looked at it."""
    titles = ("Part", "Version", "SHA-256")
    groups = {
        "Code from outside of this project that took part": ("plug-in", "module"),
        "The project and what it depends on": ("project", "dependency"),
    }
    for caption, kinds in groups.items():
        rows = tuple(
            row(one.name or "a module of no distribution", one.version or NONE, digest(one.sha256))
            for one in parts
            if one.kind in kinds
        )
        yield Table(caption, titles, rows, "No code from outside of the project took part.")


def claim(report: Report) -> Section:
    """B."""
    it, job = report.sections.claim, [c for c in report.sections.accounting.charges if c.job == report.evidence.job]
    charged: Cell = numbered("record", [charge.record for charge in job])
    exact = {True: " (exact)", False: " (an approximation, no bound)", None: ""}[it.mu_is_exact if it.mu else None]
    blocks: list[Block] = [Text((it.sentence,), warning=not it.made)]
    if it.provisional:
        blocks.append(Text(("The job may still be charged: these figures are provisional.",), warning=True))
    facts = (
        fact("Claim", "made" if it.made else "not made", Link("L", "L")),
        fact("Epsilon", at_most(it.epsilon), charged),
        fact("Delta", figure(it.delta), charged),
        fact("GDP mu", (figure(it.mu), exact), Link("E", "E")),
        fact("Mechanism", plain(it.mechanism), Link("D", "D")),
        fact("Unit", plain(it.unit), Link("C", "C")),
        fact("Neighbours", plain(it.neighbours), Link("C", "C")),
        fact("Observer", plain(it.observer), Link("G", "G")),
    )
    return Section("B", "Claim", (*blocks, Facts("In its parts", facts), Bullets("Not covered", it.not_covered)))


def unit(report: Report) -> Section:
    """C."""
    it = report.sections.unit
    facts = (fact("Unit", it.unit), fact("Record", it.record), fact("Neighbours", it.neighbours))
    bounds = Table(
        "Bounds on one patient",
        ("Bound", "#Value", "Unit", "Meaning", "Source"),
        tuple(row(b.name, figure(b.value), b.unit, b.meaning, placed(b.source)) for b in it.bounds),
        "No bound is known.",
    )
    return Section("C", "Unit and bounds", (Facts("Who is protected", facts), bounds))


def mechanism(report: Report) -> Section:
    """D."""
    it, run = report.sections.mechanism, report.evidence.run
    mechanisms = Table(
        "Mechanisms, over all charges of the job",
        ("Applied to", "Mechanism", "Sampler", "Parameters", "Noise", "#Steps", "Sensitivity"),
        tuple(
            row(
                m.applied_to,
                _named(m.event),
                m.sampler,
                tuple(_parameters(m.event)),
                m.noise,
                count(m.event.steps),
                m.sensitivity,
            )
            for m in it.mechanisms
        ),
        "No mechanism was charged.",
    )
    blocks: list[Block] = []
    if it.void:
        void = "Void: the noise of this job could be repeated, so that it protects nobody."
        blocks.append(Text((void,), warning=True))
    blocks += [mechanisms, Facts("As executed", _executed(it))]
    if run:
        settings = {**run.options, **{f"dp.{name}": value for name, value in (run.dp or {}).items()}}
        versions = ", ".join(f"{name} {version or NONE}" for name, version in run.versions.items())
        ran = (
            fact("Status", f"{run.status}, {run.rounds_done} of {run.rounds_planned} rounds"),
            fact("Engine", run.engine),
            fact("Data", plain(run.data)),
            fact("Backbone", run.backbone),
            fact("Seed", count(run.seed)),
            fact("On shares", yes(run.secagg)),
            fact("Sites", ", ".join(run.sites)),
            fact("Versions", versions),
            fact("File", Digest(run.sha256)),
        )
        told = tuple(fact(name, Code(str(value))) for name, value in sorted(settings.items()))
        blocks += [Facts("Run, as its results.json tells", ran), Facts("Settings", told, small=True)]
    return Section("D", "Mechanism as executed", tuple(blocks))


def _executed(it: ExecutedMechanism) -> tuple[Fact, ...]:
    return (
        fact("Clip", figure(it.clip)),
        fact("Noise deviation", figure(it.noise_deviation), "multiplier times clip"),
        fact("Expected patients", count(it.expected_patients)),
        fact("Batch sizes", it.batch_sizes),
        fact("Randomness", it.randomness),
        fact("Noise could be repeated", yes(it.void)),
        fact("Source of these", placed(it.source)),
    )


def accounting(report: Report) -> Section:
    """E."""
    it, job = report.sections.accounting, report.evidence.job
    own = numbered("record", [charge.record for charge in it.charges if charge.job == job])
    every = numbered("record", [charge.record for charge in it.charges])
    policy: Cell = ("the site's policy, ", Link("G", "G"))
    figures = (
        fact("Delta", figure(it.delta), policy),
        fact("Limit of all jobs", figure(it.limit) if it.limit is not None else "none is set", policy),
        fact("Limit of a job", figure(it.limit_per_job) if it.limit_per_job is not None else "none is set", policy),
        fact("Remaining", at_least(it.remaining), "limit less authorised"),
        fact("Tasks reserved, not begun", count(it.reserved_tasks), Link("ledger", "ledger")),
    )
    totals = (
        ("This job, charged", it.job, own),
        ("This job, with what is reserved", it.projected, own),
        ("All jobs, spent", it.spent, every),
        ("All jobs, authorised", it.authorised, every),
    )
    replayed = Table(
        "Epsilon, replayed by both accountants; the smaller binds",
        ("Of", "#Epsilon", "#RDP", "#PRV", "#GDP mu", "Source"),
        tuple(row(name, *_figures(found), source) for name, found, source in totals),
        "Nothing was charged.",
    )
    drawn = (charts.budget_course(it, job), charts.budget_by_job(it, job))
    blocks: list[Block] = [
        Facts("Budget of the site", figures),
        replayed,
        Pictures(tuple(drawing for drawing in drawn if drawing)),
        _jobs(it),
        _charges(it.charges),
        refusals("Refusals", it.refusals, "The site refused nothing."),
        _restarts(it),
        _accountants(it),
    ]
    return Section("E", "Accounting", tuple(blocks))


def _figures(found: Figures | None) -> tuple[Inline, ...]:
    if found is None:
        return (NONE,) * 4
    return (at_most(found.epsilon), at_most(found.rdp), at_most(found.prv), figure(found.mu))


def _jobs(it: Accounting) -> Table:
    return Table(
        "Jobs in the ledger",
        ("Job", "Method", "#Epsilon", "#Charges", "#Reserved", "Void", "Records"),
        tuple(
            row(
                one.job,
                one.method,
                at_most(one.epsilon),
                count(one.charges),
                count(one.reserved),
                yes(one.void),
                numbered("record", [charge.record for charge in it.charges if charge.job == one.job]),
            )
            for one in it.jobs
        ),
        "The ledger has no job.",
    )


def _charges(charges: Sequence[ReportCharge]) -> Table:
    charge_titles = ("Record", "Time", "Job, method", "Task", "Round", "Attempt", "Events", "#Delta")
    epsilon_titles = ("#Job, recorded", "#Job, replayed", "#All jobs, recorded", "State", "Log")
    return Table(
        "Charges, in the ledger's order, with epsilon after each",
        (*charge_titles, *epsilon_titles),
        tuple(
            row(
                Link(str(c.record), f"record-{c.record}"),
                moment(c.time),
                (c.job, Break(), c.method),
                c.task,
                count(c.round),
                count(c.attempt),
                tuple(_events(c)) or (NONE,),
                figure(c.delta),
                at_most(c.job_epsilon_after),
                at_most(c.replayed),
                at_most(c.site_epsilon_after),
                ", ".join(_states(c)),
                numbered("entry", c.entries),
            )
            for c in charges
        ),
        "Nothing was charged.",
    )


def _events(charge: ReportCharge) -> Iterator[Inline]:
    for place, event in enumerate(charge.events):
        yield from (Break(),) if place else ()
        yield from (count(event.steps), f" × {_named(event)}: ", *_parameters(event))


def _named(event: EventFigures) -> str:
    return f"{event.mechanism}, {event.use}" if event.use else event.mechanism


def _parameters(event: EventFigures) -> Iterator[Inline]:
    for place, one in enumerate(event.parameters):
        yield from (", " if place else "", f"{one.name} ", figure(one.value))


def _states(charge: ReportCharge) -> Iterator[str]:
    yield "settled" if charge.settled else "begun"
    if charge.void:
        yield "void"
    if charge.imported:
        yield "imported"


def refusals(caption: str, refused: Sequence[ReportRefusal], empty: str) -> Table:
    """What the site did not do."""
    return Table(
        caption,
        ("Entry", "Time", "Job", "Round", "Task", "Direction", "Reason"),
        tuple(
            row(
                Link(str(r.entry), f"entry-{r.entry}"),
                moment(r.time),
                plain(r.job),
                count(r.round),
                plain(r.task),
                plain(r.direction),
                r.reason,
            )
            for r in refused
        ),
        empty,
    )


def _restarts(it: Accounting) -> Table:
    rows = tuple(row(one.task, count(one.round), count(one.attempts)) for one in it.restarts)
    return Table("Tasks that began more than once", ("Task", "Round", "#Attempts"), rows, "Every task began once.")


def _accountants(it: Accounting) -> Table:
    rows = tuple(row(one.name, one.implementation, one.source) for one in it.accountants)
    return Table("Accountants", ("Name", "Implementation", "Source"), rows, "Nothing was replayed.")


def outside(report: Report) -> Section:
    """F."""
    rows = tuple(row(one.what, one.why, one.treatment) for one in report.sections.outside)
    table = Table("Not covered by the theorem", ("What", "Why", "Treatment"), rows, "Nothing is outside the theorem.")
    return Section("F", "Outside the theorem", (table,))


def placed(source: str) -> Cell:
    """A source in words, in which records and entries are links."""
    parts, end = list[Inline](), 0
    for found in NAMED_PLACE.finditer(source):
        parts += [source[end : found.start()], Link(found[0], f"{found[1]}-{found[2]}")]
        end = found.end()
    return tuple(part for part in [*parts, source[end:]] if part) or (NONE,)


def state(found: str) -> Badge:
    """A verdict."""
    return Badge(found, TONES.get(found, "open"))


def _both(versions: Sequence[str], digests: Sequence[str]) -> Content:
    return (*spread(list(versions)), ", code ", *spread([Digest(one) for one in digests]))


def _sent(sha256: str | None) -> Inline:
    return "shared: no message held it" if sha256 is None else Digest(sha256)


def _seqs(report: Report) -> list[int]:
    seqs = [entry.record.get("seq") for entry in report.evidence.log.entries]
    return [seq for seq in seqs if isinstance(seq, int)]
