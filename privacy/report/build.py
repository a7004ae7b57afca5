"""Builds a report from evidence. Every row follows from the evidence alone."""

from audits import LogError, NewerFormat
from privacy.report.claim import claim, executed, identity, unit
from privacy.report.egress import egress, outside, trust
from privacy.report.facts import NewerReport, Part, ReportError, ReportFacts
from privacy.report.figures import Report, Sections, rows_of_tree
from privacy.report.measured import data_handling, empirical
from privacy.report.report_evidence import ReportEvidence
from privacy.report.spending import accounting
from privacy.report.summary import Parameters, summary
from privacy.report.verdicts import mappings, verdicts

NEVER = (
    "identifiers of patients, keyed digests of single patients included",
    "how many patients or rows a site has, and how many have which answer",
    "questions, answers, pictures, and values of tensors",
    "how often patients' gradients were clipped",
    "paths and names of files",
    "private keys, and the keys of pseudonyms and cohorts",
)


_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""The errors for an entry that is proven to be in the log but holds values that this version never writes."""


def report_of(evidence: ReportEvidence, parameters: Parameters | None = None) -> Report:
    """The report. Raises `ReportError` if the evidence does not hold or cannot be read, `AccountingError`.

    `parameters`: the parameters of an existing report, to compute its rows again; by default this version's.
    Raises `NewerReport` if only a newer version can read the evidence.
    """
    try:
        rows = rows_of_tree(_sections(ReportFacts.of(evidence), parameters or Parameters()))
    except NewerFormat as error:
        raise NewerReport(str(error)) from None
    except (*_UNREADABLE, LogError):
        raise ReportError("the log or the ledger holds values of which no report can be made") from None
    return Report(rows, evidence)


def sections_of(evidence: ReportEvidence, parameters: Parameters | None = None) -> Sections:
    """The rows of the report by their names. Raises what `report_of` raises."""
    return report_of(evidence, parameters).sections


def _sections(facts: ReportFacts, parameters: Parameters) -> Part:
    claimed = claim(facts)
    return {
        "identity": identity(facts),
        "claim": claimed,
        "unit": unit(facts),
        "mechanism": executed(facts),
        "accounting": accounting(facts),
        "outside": outside(facts),
        "trust": trust(facts),
        "egress": egress(facts),
        "data_handling": data_handling(facts),
        "empirical": empirical(facts),
        "mappings": mappings(facts),
        "verdicts": verdicts(facts),
        "never": NEVER,
        "summary": summary(facts, claimed["made"], parameters),
    }
