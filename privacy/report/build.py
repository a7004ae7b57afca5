"""From evidence to a report: every section follows from the evidence, and from nothing else."""

from audits import LogError, NewerFormat
from privacy.report.claim import claim, executed, identity, unit
from privacy.report.egress import egress, outside, trust
from privacy.report.facts import NewerReport, ReportError, ReportFacts
from privacy.report.mappings import mappings
from privacy.report.measured import data_handling, empirical
from privacy.report.model_conduct import FORMAT, Report, Sections, Summary
from privacy.report.report_evidence import ReportEvidence
from privacy.report.spending import accounting
from privacy.report.summary import summary
from privacy.report.verdicts import verdicts

NEVER = (
    "identifiers of patients, keyed digests of single patients included",
    "how many patients or rows a site has, and how many have which answer",
    "questions, answers, pictures, and values of tensors",
    "paths and names of files",
    "private keys, and the keys of pseudonyms and cohorts",
)


_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What sections raise where an entry that is proven to be in the log holds other values than this version writes."""


def sections_of(evidence: ReportEvidence, carried: Summary | None = None) -> Sections:
    """Sections A to M. Raises `ReportError` if the evidence does not hold or cannot be read, `AccountingError`.

    `carried`: the summary of a report whose sections are made again: its parameters hold, not those of this version.
    `NewerReport` is raised where only a newer version can read the evidence.
    """
    try:
        return _sections(ReportFacts.of(evidence), carried)
    except NewerFormat as error:
        raise NewerReport(str(error)) from None
    except (*_UNREADABLE, LogError):
        raise ReportError("the log or the ledger holds values of which no report can be made") from None


def _sections(facts: ReportFacts, carried: Summary | None) -> Sections:
    claimed = claim(facts)
    return Sections(
        identity=identity(facts),
        claim=claimed,
        unit=unit(facts),
        mechanism=executed(facts),
        accounting=accounting(facts),
        outside=outside(facts),
        trust=trust(facts),
        egress=egress(facts),
        data_handling=data_handling(facts),
        empirical=empirical(facts),
        mappings=mappings(facts),
        verdicts=verdicts(facts),
        never=NEVER,
        summary=summary(facts, claimed.made, carried),
    )


def report_of(evidence: ReportEvidence) -> Report:
    """The report: the sections with all their fields, and the evidence."""
    sections = sections_of(evidence)
    checked_sections = Sections.model_validate(sections.model_dump())
    return Report(format=FORMAT, sections=checked_sections, evidence=evidence)
