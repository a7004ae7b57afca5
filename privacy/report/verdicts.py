"""Section K: the parts of frameworks that the report supports. Section L: for each rule, whether the report shows that
it was kept; then the people who sign off.

`mappings.txt` has the lines, in the project's own words: under each framework with its version and the day of the last
check, `reference | topic | support | sentence | sections`. docs/compliance.md names the sources.
No legal conclusion follows from it. It is a dated statement of the version that writes it: later versions have other
lines, and a report keeps those that it was signed with.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple, cast

from audits import CodeKind, Entry, Event, Isolation, Kind, SitePolicy, TensorRecord
from audits.errors import PolicyError
from audits.escaping import quantity
from audits.policy import UNCOUNTED
from privacy.errors import AccountingError
from privacy.ledger_journal import Record
from privacy.ledger_replay import decode_events
from privacy.mechanisms import DPEvent
from privacy.report.claim import charge_of
from privacy.report.egress_and_costs import ISOLATION, empirical, isolation_sentence
from privacy.report.facts import Part, ReportFacts
from privacy.report.report_evidence import Policy, State
from privacy.withdrawn import identities, withdrawal_of, withdrawals

Support = Literal["supports", "partly supports", "not provided"]
YES: Support = "supports"
PARTLY: Support = "partly supports"
NO: Support = "not provided"
NIST = "NIST SP 800-226"
_ELSEWHERE = "Not provided by the project: an organisation's own document."


class FrameworkLine(NamedTuple):
    """One requirement of a framework, and the support that the report gives to it."""

    framework: str
    reference: str
    topic: str
    support: str
    """In the list, the name of a condition, or of texts that the site has to give."""
    said: str
    evidence: tuple[str, ...]
    """Sections of this report, such as `E` or `H`."""
    source: str
    """The version of the framework that the line is about."""
    checked: str
    """The day, as YYYY-MM-DD, on which the line was last compared with its source."""


@cache
def lines() -> tuple[FrameworkLine, ...]:
    """All lines of `mappings.txt`."""
    found: list[FrameworkLine] = []
    for line in filter(None, files(__package__).joinpath("mappings.txt").read_text("utf-8").splitlines()):
        if line.startswith("# "):
            framework, source, checked = line[2:].split(" | ")
            continue
        reference, topic, support, said, where = line.split(" | ")
        said = _ELSEWHERE if said == "-" else said
        found.append(FrameworkLine(framework, reference, topic, support, said, tuple(where), source, checked))
    return tuple(found)


def mappings(facts: ReportFacts) -> tuple[FrameworkLine, ...]:
    """Section K: the support that the report gives to each line of each framework."""
    return tuple(_supported(line, _conditions(facts), facts) for line in lines())


def _conditions(facts: ReportFacts) -> dict[str, Support]:
    """The support that each named condition gives in this report."""
    private, evidence = facts.is_private and not facts.void and not facts.unprotected, facts.evidence
    return {
        "yes": YES,
        "partly": PARTLY,
        "no": NO,
        "claim": YES if private else NO,
        "clip": YES if private and evidence.run else PARTLY if private else NO,
        "store": PARTLY if evidence.ingested else NO,
        "measured": PARTLY if evidence.measured else NO,
        "groups": PARTLY if evidence.measured and evidence.measured.groups else NO,
        "accuracies": YES if evidence.measured is not None else NO,
    }


def _supported(line: FrameworkLine, conditions: dict[str, Support], facts: ReportFacts) -> FrameworkLine:
    if line.support == "grid":
        support, said = _floating_point(facts, conditions["claim"], line.said)
        return line._replace(support=support, said=said)
    return line._replace(support=conditions.get(line.support) or _in_words(facts, line.support.split(" ")))


def _floating_point(facts: ReportFacts, claim: Support, said: str) -> tuple[Support, str]:
    """Support and sentence of the claim; not provided if the job's version is withdrawn or is not named in the log."""
    entries = facts.job_entries
    ran = [code for entry in entries for code in identities(entry.code_version, entry.code_digest, entry.code)]
    if withdrawal := withdrawal_of(ran, withdrawals()):
        return NO, f"{withdrawal.sentence[0].upper()}{withdrawal.sentence[1:]}"
    if not any(code.version for code in ran):
        return NO, "No entry names the version that added the noise."
    return claim, said


def _in_words(facts: ReportFacts, names: list[str]) -> Support:
    """Partly provided if the site gave all these texts, else not provided. Their content is not checked."""
    governance = facts.evidence.governance
    return PARTLY if governance and all(getattr(governance, name) for name in names) else NO


SHOWN: State = "shown"
NOT_SHOWN: State = "not shown"
BROKEN: State = "broken"
_ORDER: tuple[State, ...] = (SHOWN, NOT_SHOWN, BROKEN)

SIGN_OFF = (
    dict(role="Data protection officer", confirms="has read what is claimed (B), what is not (F), and K"),
    dict(role="Head of the site", confirms="accepts what is open (L), what left (H) and the epsilon spent (E)"),
    dict(role="Auditor", confirms="has run `medfedvqa privacy verify-report` with a key from the site itself"),
)

RuleVerdict = tuple[State, str]


class Rule(NamedTuple):
    """A line of `rules.txt`: the rule's name, the sections that show it, its statement, and a remedy if not shown."""

    name: str
    sections: str
    statement: str
    closing: str


@cache
def listed() -> tuple[Rule, ...]:
    """All rules of `rules.txt`."""
    lines = files(__package__).joinpath("rules.txt").read_text("utf-8").splitlines()
    return tuple(Rule(*line.split(" | ")) for line in lines)


def verdicts(facts: ReportFacts) -> Part:
    """Section L: for each rule, whether the report shows that it was kept."""
    earlier = {
        "one budget": "binding" not in facts.evidence.model_fields_set,
        "code": not facts.codes,  # as entries name it from their format 1 on
        "no network": not any(facts.isolations),  # as entries name it from then on
    }
    rules = tuple(_judged(rule, facts) for rule in listed() if not earlier.get(rule.name))
    return dict(state=max((rule["state"] for rule in rules), key=_ORDER.index), rules=rules, sign_off=SIGN_OFF)


def _judged(rule: Rule, facts: ReportFacts) -> Part:
    state, sentence = _CHECKS[rule.name](facts)
    closing = None if state == SHOWN else rule.closing
    named = {"rule": rule.name, "statement": rule.statement, "evidence": tuple(rule.sections)}
    return {**named, "state": state, "said": sentence, "closing": closing}


def _proven(facts: ReportFacts) -> RuleVerdict:
    size = facts.excerpt.checkpoint.size
    return (
        SHOWN,
        f"{quantity(len(facts.entries), 'entry is', 'entries are')} proven to be under the site's checkpoint of {size}",
    )


def _complete(facts: ReportFacts) -> RuleVerdict:
    log, size = facts.evidence.log, facts.excerpt.checkpoint.size
    if log.first:
        return (
            NOT_SHOWN,
            f"{quantity(log.first, 'entry has', 'entries have')} expired: releases of this job may be among them",
        )
    if rest := size - len(log.entries):
        return (
            NOT_SHOWN,
            f"{quantity(rest, 'entry is', 'entries are')} of other jobs: compare with the log (`verify-report --log`)",
        )
    return SHOWN, f"all of the log is quoted, {quantity(size, 'entry', 'entries')}"


def _witnessed(facts: ReportFacts) -> RuleVerdict:
    last = max((entry.seq for entry in facts.releases if entry.tensors), default=-1)
    excerpt = facts.excerpt
    if excerpt.cosigned > last:
        who = ", ".join(excerpt.cosigners)
        return SHOWN, f"the log up to entry {excerpt.cosigned - 1}, with every released tensor, is cosigned by {who}"
    return NOT_SHOWN, f"others cosigned {quantity(excerpt.cosigned, 'entry', 'entries')}; a release is in entry {last}"


def _whole(facts: ReportFacts) -> RuleVerdict:
    checks = [check for check in facts.evidence.examined if check.verdict in ("integrity", "completeness")]
    if failures := [check for check in checks if check.state == BROKEN]:
        return BROKEN, f"{failures[0].part}: {failures[0].said}"
    if open_checks := [check for check in checks if check.state != SHOWN]:
        return NOT_SHOWN, f"{open_checks[0].part}: {open_checks[0].said}"
    if not checks:
        return NOT_SHOWN, "the whole log was not verified when the report was made"
    return SHOWN, f"verified when the report was made: {', '.join(check.part for check in checks)}"


def _agreed(facts: ReportFacts) -> RuleVerdict:
    checks = [item for item in facts.evidence.examined if item.verdict == "consistency"]
    if failures := [item for item in checks if item.state == BROKEN]:
        return BROKEN, f"{failures[0].part}: {failures[0].said}"
    if [item for item in facts.entries if item.event is Event.FINDING]:
        return NOT_SHOWN, "the site itself logged findings: see 'audit show'"
    if [item for item in checks if item.state != SHOWN] or not checks:
        return NOT_SHOWN, "nobody else's copy was compared over all releases"
    return SHOWN, "nobody who was asked holds a checkpoint or key that contradicts the log"


def _anchored(facts: ReportFacts) -> RuleVerdict:
    named = [charge for item in facts.entries if (charge := charge_of(item))]
    records = {(item.seq, item.hash) for item in facts.evidence.ledger}
    if missing := [seq for seq, head in named if (seq, head) not in records]:
        return BROKEN, f"the log names record {missing[0]} of a ledger that is not this one"
    if not facts.evidence.ledger:
        return NOT_SHOWN, "the site has no ledger"
    if not named:
        return NOT_SHOWN, "no quoted entry names a record of the ledger"
    return SHOWN, f"the chain of {quantity(len(records), 'record')} holds; log entries that name one: {len(named)}"


_SECOND = "a second ledger would grant the same patients a second budget"


def _bound(facts: ReportFacts) -> RuleVerdict:
    binding = facts.evidence.binding
    if binding is None or not binding.from_store:
        return NOT_SHOWN, f"nothing ties the data to this site's ledger: {_SECOND}"
    if not binding.bound:
        return NOT_SHOWN, f"nothing ties the store to this site's ledger: {_SECOND}"
    if not binding.compared:
        sentence = "whether the same patients were ingested before, under another key, was not looked at"
        return NOT_SHOWN, f"ledger and store name each other; {sentence}"
    sentence = "a store that was made out of their sight would not be noticed"
    return SHOWN, f"ledger and store name each other, and no ledger beside it has these patients; {sentence}"


def _replayed(facts: ReportFacts) -> RuleVerdict:
    if wrong := list(facts.replay.recorded_wrongly(facts.job)):
        return BROKEN, f"record {wrong[0]} of the ledger has another epsilon than its charges come to"
    if not facts.charges:
        return NOT_SHOWN, "the job was charged nothing"
    return SHOWN, f"after each charge the recorded epsilon is what both accountants give ({len(facts.charges)})"


def _charged(facts: ReportFacts) -> RuleVerdict:
    private = [item for item in facts.releases if any(tensor.protection.private for tensor in item.tensors)]
    debits = {(item.seq, item.hash): item.debit for item in facts.charges}
    for entry in private:
        record = charge_of(entry)
        debit = debits.get(record) if record else None
        if debit is None or _events(entry) != debit.events:
            return BROKEN, f"entry {entry.seq} left without the charge that it should name"
    if not private:
        return NOT_SHOWN, "nothing left under differential privacy"
    return SHOWN, f"each release under differential privacy names a charge made before it ({len(private)})"


def _events(entry: Entry) -> tuple[DPEvent, ...]:
    """The charge's events as the log holds them; none if this version cannot read them."""
    try:
        return decode_events((entry.dp_event or {})["events"])
    except (AccountingError, KeyError, TypeError, ValueError):
        return ()


def _protected(facts: ReportFacts) -> RuleVerdict:
    if not facts.is_private:
        return NOT_SHOWN, "the job trained without differential privacy"
    if facts.unprotected:
        return (
            BROKEN,
            f"{quantity(len(facts.unprotected), 'tensor')} that may depend on data left without differential privacy",
        )
    return SHOWN, "all that may depend on data left under differential privacy"


def _within(facts: ReportFacts) -> RuleVerdict:
    policy = facts.evidence.policy
    charges = [charge.charge for charge in facts.charges if charge.charge]
    if not charges:
        return NOT_SHOWN, "the job was charged nothing"
    worst, alone = max(charge.epsilon_after for charge in charges), max(charge.job_epsilon_after for charge in charges)
    limits = ((worst, policy.limit), (alone, policy.max_epsilon_per_job))
    if any(limit is not None and epsilon > limit for epsilon, limit in limits):
        return BROKEN, "a charge went over a limit of the site's policy as it is now"
    if policy.limit is None and policy.max_epsilon_per_job is None:
        return NOT_SHOWN, "the site sets no limit"
    return SHOWN, "every charge stayed within the site's limits"


def _sound(facts: ReportFacts) -> RuleVerdict:
    if not facts.is_private:
        return NOT_SHOWN, "the job adds no noise"
    return (BROKEN, "charges are void: their noise could be repeated") if facts.void else (SHOWN, "no charge is void")


def _allowed(facts: ReportFacts) -> RuleVerdict:
    policy = facts.evidence.policy
    for entry in facts.releases:
        kinds = {tensor.kind.value for tensor in entry.tensors} - set(policy.kinds)
        if kinds or entry.method not in policy.methods or entry.peer not in policy.recipients:
            return BROKEN, f"entry {entry.seq} left against the policy as it is now"
    digests = facts.every("policy")
    if set(digests) - {_digest(policy)}:
        return NOT_SHOWN, "the policy has changed since the job ran; what left is allowed by the one of now"
    return SHOWN, "all that left is allowed by the policy whose digest its entries have"


def _digest(policy: Policy) -> str:
    # A site could not set what an earlier report lacks, so today's defaults take no part in the digest.
    settings = policy.model_dump(mode="json", exclude={"epsilon_limit"}, exclude_unset=True)
    try:
        return SitePolicy.from_mapping(UNCOUNTED | settings).digest()
    except PolicyError:
        return ""


def _in_settings(facts: ReportFacts) -> RuleVerdict:
    run = facts.evidence.run
    if run is None:
        return NOT_SHOWN, "the run's results.json was not given"
    if run.method != facts.method or (run.dp is not None) != facts.is_private:
        return BROKEN, "the settings that were given are of another job"
    if run.dp is None:
        return SHOWN, "the method of the settings is that of the log, and neither adds noise"
    try:
        plan = {event.times(1) for event in decode_events(cast(list[Record], run.dp["mechanisms"]))}
    except (AccountingError, KeyError, TypeError, ValueError):
        return NOT_SHOWN, "the settings that were given do not name the job's mechanisms"
    # Sites' policies differ in whom they trust, so shared noise is compared by the noise of all sites together.
    charged = facts.replay.events(facts.job)
    if not {event.against(0) for event in plan}.issuperset(event.against(0).times(1) for event in charged):
        return BROKEN, "the settings that were given have another noise than the ledger charged"
    return SHOWN, "method and mechanisms of the settings are those of log and ledger"


def _identified(facts: ReportFacts) -> RuleVerdict:
    digests = {code.digest for code in facts.codes}
    if set(facts.every("code_digest")) - digests:
        return BROKEN, "an entry of the job has the digest of other code than the log names"
    if len(facts.codes) > 1:
        return NOT_SHOWN, "the job was continued with other code"
    if any(part.sha256 is None for part in facts.codes[0].parts):
        return NOT_SHOWN, "code that is in no file took part, such as that of a notebook"
    outside = [part for part in facts.codes[0].parts if part.kind in (CodeKind.PLUG_IN, CodeKind.MODULE)]
    return SHOWN, f"the log names all code that took part; {len(outside)} parts are from outside of this project"


def _hidden(facts: ReportFacts) -> RuleVerdict:
    if not facts.shared:
        return NOT_SHOWN, "the job aggregates in clear"
    if not facts.evidence.run and not any(facts.sharings.values()):
        return NOT_SHOWN, "no entry and no settings name the sites that computed on shares"
    if len(facts.sites) < 3:
        return BROKEN, f"{quantity(len(facts.sites), 'site')} computed on shares: fewer than three reveal each other"
    unshared = [entry.seq for entry in facts.releases if any(_is_bare(tensor) for tensor in entry.tensors)]
    if unshared:
        return NOT_SHOWN, f"entry {unshared[0]} has tensors of this site's own that were not shared"
    return SHOWN, f"{len(facts.sites)} sites; of this site's contributions only shares and masked values left"


def _is_bare(tensor: TensorRecord) -> bool:
    """Whether the server sees this site's own tensor."""
    return tensor.kind is not Kind.PUBLIC and not tensor.protection.masked


def _isolated(facts: ReportFacts) -> RuleVerdict:
    for gap in (Isolation.NONE, None):
        if gap in facts.isolations:
            return NOT_SHOWN, ISOLATION[gap]
    return SHOWN, isolation_sentence(facts)


def _attacked(facts: ReportFacts) -> RuleVerdict:
    figures = empirical(facts)
    if not figures["attacked"]:
        return NOT_SHOWN, "no attack was given"
    if figures["refuted"]:
        return BROKEN, "an attack refutes the claimed epsilon"
    if figures["refuted"] is None or not figures["same_settings"]:
        return NOT_SHOWN, "the attacked job is not shown to have this job's settings, or claimed no epsilon"
    return SHOWN, f"attacks on a job of these settings that do not refute its epsilon: {len(figures['attacks'])}"


def _de_identified(facts: ReportFacts) -> RuleVerdict:
    if facts.evidence.ingested is None:
        return NOT_SHOWN, "the data are not shown to have been ingested with this tool"
    return SHOWN, "the data come from a store that was de-identified as section I says"


_CHECKS: Mapping[str, Callable[[ReportFacts], RuleVerdict]] = {
    "log": _proven,
    "all of it": _complete,
    "witnessed": _witnessed,
    "whole log": _whole,
    "agreement": _agreed,
    "no network": _isolated,
    "ledger": _anchored,
    "one budget": _bound,
    "replay": _replayed,
    "charged first": _charged,
    "nothing unprotected": _protected,
    "within limits": _within,
    "sound noise": _sound,
    "allowed": _allowed,
    "settings": _in_settings,
    "code": _identified,
    "on shares": _hidden,
    "attacked": _attacked,
    "de-identified": _de_identified,
}
