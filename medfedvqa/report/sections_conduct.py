"""Sections G to M: trust, egress, data handling, attacks and cost, mappings, and verdicts."""

from collections import Counter
from collections.abc import Sequence

from medfedvqa.report import charts
from medfedvqa.report.blocks import (
    NONE,
    Badge,
    Block,
    Bullets,
    Code,
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
    percent,
    plain,
    row,
    section_links,
    stack,
    table,
    yes,
)
from medfedvqa.report.sections_guarantee import refusals, state, with_links
from privacy.report.model_conduct import Egress, Empirical, Proofs, ReleaseFigures, Report, Support
from privacy.report.report_evidence import Policy


def trust(report: Report) -> Section:
    """Section G."""
    section = report.sections.trust
    roles = (
        fact("Server", section.server),
        fact("Other sites", section.sites),
        fact("Author of the job", section.author),
        fact("Administrators", section.administrators),
        fact("Aggregation", f"{section.aggregation}: {section.aggregation_said}"),
        *((fact("Network", section.isolation_said),) if section.isolation_said else ()),
    )
    attempts = Table(
        "Computations on shares",
        ("Entry", "Round", "As the log tells"),
        tuple(row(Link(str(a.entry), f"entry-{a.entry}"), count(a.round), a.said) for a in section.attempts),
        "There was none.",
    )
    policy = Facts("What the site allows and demands", _policy(report.evidence.policy))
    return Section("G", "Trust and aggregation", (Facts("Who is trusted with what", roles), attempts, policy))


def _policy(policy: Policy) -> tuple[Fact, ...]:
    source = "site.yml"
    return (
        fact("Methods", ", ".join(policy.methods) or NONE, source),
        fact("Kinds of tensors", ", ".join(policy.kinds) or NONE, source),
        fact("Recipients", ", ".join(policy.recipients) or NONE, source),
        fact("Differential privacy demanded", yes(policy.require_dp), source),
        fact("Most epsilon of all jobs", figure(policy.max_epsilon, "no limit"), source),
        fact("Most epsilon of a job", figure(policy.max_epsilon_per_job, "no limit"), source),
        fact("Other sites that may collude", figure(policy.colluders, "all: no noise is shared"), source),
        fact("Delta, by", (figure(policy.delta), f", {policy.unit}"), source),
        fact("Shares demanded", yes(policy.require_secagg), source),
        fact("Least sites", count(policy.min_sites), source),
        fact("Committee", (", ".join(policy.committee) or "any", ", at least ", count(policy.min_committee)), source),
    )


def egress(report: Report) -> Section:
    """Section H."""
    section = report.sections.egress
    sent = links_to("entry", [release.entry for release in section.releases])
    figures = (
        fact("Left", (count(section.nbytes), " bytes in ", count(section.messages), " messages"), sent),
        fact(
            "Came in",
            (count(section.received_nbytes), " bytes in ", count(section.received_messages), " messages"),
            "log",
        ),
    )
    kinds = Table(
        "By kind and protection",
        ("Kind", "Protection", "#Tensors", "#Bytes"),
        tuple(row(k.kind, k.protection, count(k.tensors), count(k.nbytes)) for k in section.by_kind),
        "Nothing left.",
    )
    tensors = Table(
        "By tensor",
        ("Tensor", "To", "Kind", "Protection", "#Messages", "#Bytes"),
        tuple(
            row(Code(t.tensor), plain(t.recipient), t.kind, t.protection, count(t.messages), count(t.nbytes))
            for t in section.by_tensor
        ),
        "Nothing left.",
    )
    drawing = charts.egress_by_round(section)
    blocks: list[Block] = [Facts("In all", figures), kinds]
    blocks += [DrawingGroup((drawing,))] if drawing else []
    blocks += [tensors, _rounds(section), _releases(section.releases), Text((section.digests_said,))]
    blocks += [
        refusals("Refused at the border", section.refused, "Nothing was refused at the border."),
        _proofs(section.proofs),
    ]
    return Section("H", "Egress", tuple(blocks))


def _rounds(egress: Egress) -> Table:
    """A table with a row for each round and a column for each kind."""
    kinds = sorted({share.kind for share in egress.by_round})
    nbytes = {(share.round, share.kind): share.nbytes for share in egress.by_round}
    rounds = dict.fromkeys(share.round for share in egress.by_round)
    rows = tuple(row(count(r), *(count(nbytes.get((r, kind))) for kind in kinds)) for r in rounds)
    return Table("Bytes by round and kind", ("Round", *(f"#{kind}" for kind in kinds)), rows, "Nothing left.")


def _releases(releases: Sequence[ReleaseFigures]) -> Table:
    return table(
        "Every tensor that left",
        releases,
        {
            "Entry, charge": lambda r: stack(Link(str(r.entry), f"entry-{r.entry}"), _charge(r)),
            "Time": lambda r: moment(r.time),
            "Task, round, to": lambda r: stack(plain(r.task), count(r.round), plain(r.recipient)),
            "Tensor, SHA-256": lambda r: stack(Code(r.tensor), digest(r.sha256)),
            "Shape": lambda r: stack(_shape(r.shape), r.dtype),
            "Kind, protection": lambda r: stack(r.kind, r.protection),
            "#Bytes": lambda r: count(r.nbytes),
        },
        "Nothing left.",
        on_paper=False,
    )


def _charge(release: ReleaseFigures) -> Inline:
    return NONE if release.charge is None else Link(f"record {release.charge}", f"record-{release.charge}")


def _shape(shape: Sequence[int]) -> str:
    return "\u00a0×\u00a0".join(str(size) for size in shape) or "scalar"


def _proofs(proofs: Proofs) -> Facts:
    log = Link("log entries", "log")
    facts = (
        fact(
            "Signed checkpoint",
            (count(proofs.checkpoint_entries), " entries, root ", Digest(proofs.checkpoint_root)),
            log,
        ),
        fact("Cosigned", (count(proofs.cosigned_entries), " entries"), "by others' keys"),
        fact("Cosigners", ", ".join(proofs.cosigners) or "none"),
        fact("Quoted here, with proofs", (count(proofs.quoted), " entries"), log),
        fact("Of other jobs, not quoted", (count(proofs.not_quoted), " entries"), "log"),
        fact("Past their retention", (count(proofs.expired), " entries"), "log"),
    )
    return Facts("What proves the table", facts)


def data_handling(report: Report) -> Section:
    """Section I."""
    section = report.sections.data_handling
    facts = (
        fact("Ingested by the project", yes(section.ingested)),
        fact("Made, UTC", moment(section.made), "manifest"),
        fact("Manifest", digest(section.manifest), "SHA-256"),
        fact("Burned-in text", section.burned_in),
        fact("Tools", ", ".join(section.tools) or NONE, "manifest"),
    )
    blocks: list[Block] = [Text((section.said,))]
    blocks += [Facts("How it was done", facts)] if section.ingested else []
    blocks += [Bullets("Codes of the de-identification", section.profile)] if section.profile else []
    blocks += [Bullets("Kept on purpose", section.retained)] if section.retained else []
    return Section("I", "Data handling", tuple(blocks))


def empirical(report: Report) -> Section:
    """Section J."""
    section = report.sections.empirical
    drawings = (charts.attacks(section), charts.accuracy(section))
    blocks: list[Block] = [Text((section.said,), warning=section.refuted is True)]
    if section.attacked:
        blocks += [Facts("Bound beside the claim", _bounds(section)), _attacks(section)]
    blocks += [DrawingGroup(tuple(drawing for drawing in drawings if drawing))] if any(drawings) else []
    blocks.append(Text((section.utility_said,)))
    if section.accuracy_private is not None or section.accuracy_without is not None:
        blocks.append(_utility(section))
    blocks += [Text((section.kept_said,))] if section.kept_said else []
    return Section("J", "Empirical audit and cost", tuple(blocks))


def _bounds(empirical: Empirical) -> tuple[Fact, ...]:
    attacked = "results of the audit"
    proved = ("at least ", at_least(empirical.lower_bound), ", with confidence ", figure(empirical.confidence))
    claimed = ("at most ", at_most(empirical.claimed_epsilon), " at delta ", figure(empirical.claimed_delta))
    return (
        fact("Epsilon, proved", proved, attacked),
        fact("Epsilon, claimed", claimed, attacked),
        fact("Claim refuted", yes(empirical.refuted)),
        fact("Data attacked", plain(empirical.data), attacked),
        fact("Same settings as this job", yes(empirical.same_settings)),
    )


def _attacks(empirical: Empirical) -> Table:
    return table(
        "Attacks on synthetic patients; the interval for epsilon is from its bound to infinity",
        empirical.attacks,
        {
            "Attacked": lambda a: stack(a.artefact, a.attack),
            "#Canaries": lambda a: count(a.canaries),
            "#Guesses, right": lambda a: stack(count(a.guessed), count(a.correct)),
            "#Accuracy, interval": lambda a: stack(
                percent(a.accuracy), (percent(a.accuracy_low), " to ", percent(a.accuracy_high))
            ),
            "#Epsilon at least, could prove": lambda a: stack(at_least(a.epsilon_at_least), at_least(a.provable)),
            "Refutes": lambda a: yes(a.refutes),
        },
        "No attack was run.",
    )


def _utility(empirical: Empirical) -> Table:
    lines = (
        *(model[1:] for model in charts.accuracies(empirical)),
        ("Prior: majority answer to the question", empirical.accuracy_prior, None, None),
        ("Cost of privacy", empirical.cost_of_privacy, None, None),
    )
    rows = tuple(
        row(name, percent(value), NONE if low is None else (percent(low), " to ", percent(high)))
        for name, value, low, high in lines
    )
    return Table("Accuracy on the site's test rows", ("Model", "#Accuracy", "#95 % interval"), rows, "Not given.")


def mappings(report: Report) -> Section:
    """Section K."""
    tones: dict[Support, Tone] = {"supports": "good", "partly supports": "open", "not provided": "open"}
    frameworks = table(
        "What this report has for each framework; it supports a judgement and is none",
        report.sections.mappings,
        {
            "Framework": lambda m: stack(m.framework, m.reference),
            "Topic": lambda m: m.topic,
            "Support": lambda m: Badge(m.support, tones[m.support]),
            "What there is": lambda m: m.said,
            "Evidence": lambda m: section_links(m.evidence),
        },
        "There is no mapping.",
        on_paper=False,
    )
    support = Counter((m.framework, m.support) for m in report.sections.mappings)
    overview = Table(
        "Lines by framework",
        ("Framework", *(f"#{name}" for name in tones)),
        tuple(
            row(framework, *(count(support[framework, name] or None) for name in tones))
            for framework in dict.fromkeys(m.framework for m in report.sections.mappings)
        ),
        "There is no mapping.",
    )
    dated = dict.fromkeys((m.framework, m.source, m.checked) for m in report.sections.mappings if m.source)
    sources = Table(
        "What the lines were checked against, and when",
        ("Framework", "Version of the source", "Checked"),
        tuple(row(framework, plain(source), plain(checked)) for framework, source, checked in dated),
        "The version that made this report did not say.",
    )
    return Section("K", "Mappings", (overview, frameworks, sources))


def verdicts(report: Report) -> Section:
    """Section L."""
    section = report.sections.verdicts
    rules = Table(
        "Verdict by rule",
        ("Rule", "Verdict", "Statement", "What was found", "Evidence"),
        tuple(
            row(r.rule, state(r.state), r.statement, with_links(r.said), section_links(r.evidence))
            for r in section.rules
        ),
        "There is no rule.",
    )
    examined = Table(
        "What the verifier found in the whole log",
        ("Verdict", "Part", "State", "What was found"),
        tuple(row(e.verdict, e.part, state(e.state), with_links(e.said)) for e in report.evidence.examined),
        "The log was not examined.",
    )
    first = Link("first page", "signatures")
    worst = Text(("The worst of the rules: ", state(section.state), ". Signatures are on the ", first, "."))
    return Section("L", "Verdicts and sign-off", (worst, rules, examined))


def never(report: Report) -> Section:
    """Section M."""
    return Section("M", "Never in a report", (Bullets("Left out on purpose", report.sections.never),))
