"""Sections G to M: who is trusted, what left, how the data were handled, what attacks found, and the verdicts."""

from collections.abc import Sequence

from medfedvqa.report import charts
from medfedvqa.report.blocks import (
    NONE,
    Badge,
    Block,
    Break,
    Bullets,
    Code,
    Digest,
    Fact,
    Facts,
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
    letters,
    moment,
    numbered,
    percent,
    plain,
    row,
    yes,
)
from medfedvqa.report.sections_guarantee import placed, refusals, state
from privacy.report.model_conduct import Egress, Empirical, Proofs, ReleaseFigures, Report, Support
from privacy.report.report_evidence import Policy


def trust(report: Report) -> Section:
    """G."""
    it = report.sections.trust
    roles = (
        fact("Server", it.server),
        fact("Other sites", it.sites),
        fact("Author of the job", it.author),
        fact("Administrators", it.administrators),
        fact("Aggregation", f"{it.aggregation}: {it.aggregation_said}"),
    )
    attempts = Table(
        "Computations on shares",
        ("Entry", "Round", "As the log tells"),
        tuple(row(Link(str(a.entry), f"entry-{a.entry}"), count(a.round), a.said) for a in it.attempts),
        "There was none.",
    )
    policy = Facts("What the site allows and demands", _policy(report.evidence.policy))
    return Section("G", "Trust and aggregation", (Facts("Who is trusted with what", roles), attempts, policy))


def _policy(it: Policy) -> tuple[Fact, ...]:
    source = "site.yml"
    return (
        fact("Methods", ", ".join(it.methods) or NONE, source),
        fact("Kinds of tensors", ", ".join(it.kinds) or NONE, source),
        fact("Recipients", ", ".join(it.recipients) or NONE, source),
        fact("Differential privacy demanded", yes(it.require_dp), source),
        fact("Most epsilon of all jobs", figure(it.max_epsilon) if it.max_epsilon is not None else "no limit", source),
        fact(
            "Most epsilon of a job",
            figure(it.max_epsilon_per_job) if it.max_epsilon_per_job is not None else "no limit",
            source,
        ),
        fact("Delta, by", (figure(it.delta), f", {it.unit}"), source),
        fact("Shares demanded", yes(it.require_secagg), source),
        fact("Least sites", count(it.min_sites), source),
        fact("Committee", (", ".join(it.committee) or "any", ", at least ", count(it.min_committee)), source),
    )


def egress(report: Report) -> Section:
    """H."""
    it = report.sections.egress
    sent = numbered("entry", [release.entry for release in it.releases])
    figures = (
        fact("Left", (count(it.nbytes), " bytes in ", count(it.messages), " messages"), sent),
        fact("Came in", (count(it.received_nbytes), " bytes in ", count(it.received_messages), " messages"), "log"),
    )
    kinds = Table(
        "By kind and protection",
        ("Kind", "Protection", "#Tensors", "#Bytes"),
        tuple(row(k.kind, k.protection, count(k.tensors), count(k.nbytes)) for k in it.by_kind),
        "Nothing left.",
    )
    tensors = Table(
        "By tensor",
        ("Tensor", "To", "Kind", "Protection", "#Messages", "#Bytes"),
        tuple(
            row(Code(t.tensor), plain(t.recipient), t.kind, t.protection, count(t.messages), count(t.nbytes))
            for t in it.by_tensor
        ),
        "Nothing left.",
    )
    drawing = charts.egress_by_round(it)
    blocks: list[Block] = [Facts("In all", figures), kinds]
    blocks += [Pictures((drawing,))] if drawing else []
    blocks += [tensors, _rounds(it), _releases(it.releases), Text((it.digests_said,))]
    blocks += [refusals("Refused at the border", it.refused, "Nothing was refused at the border."), _proofs(it.proofs)]
    return Section("H", "Egress", tuple(blocks))


def _rounds(it: Egress) -> Table:
    """A row for each round, a column for each kind."""
    kinds = sorted({one.kind for one in it.by_round})
    nbytes = {(one.round, one.kind): one.nbytes for one in it.by_round}
    rounds = dict.fromkeys(one.round for one in it.by_round)
    rows = tuple(row(count(r), *(count(nbytes.get((r, kind))) for kind in kinds)) for r in rounds)
    return Table("Bytes by round and kind", ("Round", *(f"#{kind}" for kind in kinds)), rows, "Nothing left.")


def _releases(releases: Sequence[ReleaseFigures]) -> Table:
    titles = ("Entry", "Time", "Round", "Task", "To", "Tensor", "Shape", "Kind", "Protection", "#Bytes")
    return Table(
        "Every tensor that left",
        (*titles, "SHA-256", "Charge"),
        tuple(
            row(
                Link(str(r.entry), f"entry-{r.entry}"),
                moment(r.time),
                count(r.round),
                plain(r.task),
                plain(r.recipient),
                Code(r.tensor),
                (_shape(r.shape), Break(), r.dtype),
                r.kind,
                r.protection,
                count(r.nbytes),
                digest(r.sha256),
                NONE if r.charge is None else Link(str(r.charge), f"record-{r.charge}"),
            )
            for r in releases
        ),
        "Nothing left.",
    )


def _shape(shape: Sequence[int]) -> str:
    return "\u00a0×\u00a0".join(str(size) for size in shape) or "scalar"


def _proofs(it: Proofs) -> Facts:
    log = Link("log entries", "log")
    facts = (
        fact("Signed checkpoint", (count(it.checkpoint_entries), " entries, root ", Digest(it.checkpoint_root)), log),
        fact("Cosigned", (count(it.cosigned_entries), " entries"), "by others' keys"),
        fact("Cosigners", ", ".join(it.cosigners) or "none"),
        fact("Quoted here, with proofs", (count(it.quoted), " entries"), log),
        fact("Of other jobs, not quoted", (count(it.not_quoted), " entries"), "log"),
        fact("Past their retention", (count(it.expired), " entries"), "log"),
    )
    return Facts("What proves the table", facts)


def data_handling(report: Report) -> Section:
    """I."""
    it = report.sections.data_handling
    facts = (
        fact("Ingested by the project", yes(it.ingested)),
        fact("Made, UTC", moment(it.made), "manifest"),
        fact("Manifest", digest(it.manifest), "SHA-256"),
        fact("Burned-in text", it.burned_in),
        fact("Tools", ", ".join(it.tools) or NONE, "manifest"),
    )
    blocks: list[Block] = [Text((it.said,))]
    blocks += [Facts("How it was done", facts)] if it.ingested else []
    blocks += [Bullets("Codes of the de-identification", it.profile)] if it.profile else []
    blocks += [Bullets("Kept on purpose", it.retained)] if it.retained else []
    return Section("I", "Data handling", tuple(blocks))


def empirical(report: Report) -> Section:
    """J."""
    it = report.sections.empirical
    drawn = (charts.attacks(it), charts.accuracy(it))
    blocks: list[Block] = [Text((it.said,), warning=it.refuted is True)]
    if it.attacked:
        blocks += [Facts("Bound beside the claim", _bounds(it)), _attacks(it)]
    blocks += [Pictures(tuple(drawing for drawing in drawn if drawing))] if any(drawn) else []
    blocks.append(Text((it.utility_said,)))
    if it.accuracy_private is not None or it.accuracy_without is not None:
        blocks.append(_utility(it))
    blocks += [Text((it.kept_said,))] if it.kept_said else []
    return Section("J", "Empirical audit and cost", tuple(blocks))


def _bounds(it: Empirical) -> tuple[Fact, ...]:
    attacked = "results of the audit"
    proved = ("at least ", at_least(it.lower_bound), ", with confidence ", figure(it.confidence))
    claimed = ("at most ", at_most(it.claimed_epsilon), " at delta ", figure(it.claimed_delta))
    return (
        fact("Epsilon, proved", proved, attacked),
        fact("Epsilon, claimed", claimed, attacked),
        fact("Claim refuted", yes(it.refuted)),
        fact("Data attacked", plain(it.data), attacked),
        fact("Same settings as this job", yes(it.same_settings)),
    )


def _attacks(it: Empirical) -> Table:
    titles = ("Attacked", "Attack", "#Canaries", "#Guesses", "#Right", "#Accuracy", "#Interval")
    return Table(
        "Attacks on synthetic patients; the interval for epsilon is from its bound to infinity",
        (*titles, "#Epsilon at least", "#Could prove", "Refutes"),
        tuple(
            row(
                a.artefact,
                a.attack,
                count(a.canaries),
                count(a.guessed),
                count(a.correct),
                percent(a.accuracy),
                (percent(a.accuracy_low), " to ", percent(a.accuracy_high)),
                at_least(a.epsilon_at_least),
                at_least(a.provable),
                yes(a.refutes),
            )
            for a in it.attacks
        ),
        "No attack was run.",
    )


def _utility(it: Empirical) -> Table:
    trained = (
        ("The same, finished at the site without noise", it.accuracy_finished),
        ("Trained by the site alone, without noise", it.accuracy_alone),
        ("Trained alone with equal steps, without noise", it.accuracy_alone_equal),
    )
    lines = (
        ("Without differential privacy", it.accuracy_without, it.accuracy_without_low, it.accuracy_without_high),
        ("With differential privacy", it.accuracy_private, it.accuracy_private_low, it.accuracy_private_high),
        *((name, model.accuracy, model.low, model.high) for name, model in trained if model),
        ("Prior: majority answer to the question", it.accuracy_prior, None, None),
        ("Cost of privacy", it.cost_of_privacy, None, None),
    )
    rows = tuple(
        row(name, percent(value), NONE if low is None else (percent(low), " to ", percent(high)))
        for name, value, low, high in lines
    )
    return Table("Accuracy on the site's test rows", ("Model", "#Accuracy", "#95 % interval"), rows, "Not given.")


def mappings(report: Report) -> Section:
    """K."""
    tones: dict[Support, Tone] = {"supports": "good", "partly supports": "open", "not provided": "open"}
    table = Table(
        "What this report has for each framework; it supports a judgement and is none",
        ("Framework", "Reference", "Topic", "Support", "What there is", "Evidence"),
        tuple(
            row(m.framework, m.reference, m.topic, Badge(m.support, tones[m.support]), m.said, letters(m.evidence))
            for m in report.sections.mappings
        ),
        "There is no mapping.",
    )
    return Section("K", "Mappings", (table,))


def verdicts(report: Report) -> Section:
    """L."""
    it = report.sections.verdicts
    rules = Table(
        "Verdict by rule",
        ("Rule", "Verdict", "Statement", "What was found", "Evidence"),
        tuple(row(r.rule, state(r.state), r.statement, placed(r.said), letters(r.evidence)) for r in it.rules),
        "There is no rule.",
    )
    examined = Table(
        "What the verifier found in the whole log",
        ("Verdict", "Part", "State", "What was found"),
        tuple(row(e.verdict, e.part, state(e.state), placed(e.said)) for e in report.evidence.examined),
        "The log was not examined.",
    )
    signs = Table(
        "Sign-off, by hand",
        ("Role", "Confirms", "Name", "Date and signature"),
        tuple(row(s.role, s.confirms, "", "") for s in it.sign_off),
        "Nobody is asked to sign.",
    )
    worst = Text(("The worst of the rules: ", state(it.state)))
    return Section("L", "Verdicts and sign-off", (worst, rules, examined, signs))


def never(report: Report) -> Section:
    """M."""
    return Section("M", "Never in a report", (Bullets("Left out on purpose", report.sections.never),))
