"""Section K: the parts of frameworks that the report supports, and those that the project does not provide.

`mappings.txt` has the lines, in the project's own words: under each framework with its version and the day of the last
check, `reference | topic | support | sentence | sections`. docs/compliance.md names the sources.
No legal conclusion follows from it. It is a dated statement of the version that writes it: later versions have other
lines, and a report keeps those that it was signed with.
"""

from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

from privacy.report.facts import ReportFacts
from privacy.withdrawn import identities, withdrawal_of, withdrawals

Support = Literal["supports", "partly supports", "not provided"]
YES: Support = "supports"
PARTLY: Support = "partly supports"
NO: Support = "not provided"
NIST = "NIST SP 800-226"
_ELSEWHERE = "Not provided by the project: an organisation's own document."


class Mapping(NamedTuple):
    """One line of a framework."""

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
def lines() -> tuple[Mapping, ...]:
    """The lines of the list."""
    found: list[Mapping] = []
    for line in filter(None, files(__package__).joinpath("mappings.txt").read_text("utf-8").splitlines()):
        if line.startswith("# "):
            framework, source, checked = line[2:].split(" | ")
            continue
        reference, topic, support, said, where = line.split(" | ")
        said = _ELSEWHERE if said == "-" else said
        found.append(Mapping(framework, reference, topic, support, said, tuple(where), source, checked))
    return tuple(found)


def mappings(facts: ReportFacts) -> tuple[Mapping, ...]:
    """Section K: the support that the report gives to each line of each framework."""
    return tuple(_judged(line, _conditions(facts), facts) for line in lines())


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


def _judged(line: Mapping, conditions: dict[str, Support], facts: ReportFacts) -> Mapping:
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
