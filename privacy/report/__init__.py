"""The privacy-budget report: a site's releases for a job, their cost to its patients, and the evidence for both."""

from privacy.report.build import report_of, sections_of
from privacy.report.facts import NewerReport, ReportError
from privacy.report.figures import Report, Sections
from privacy.report.join import JoinedReport, SourceReport, join, verify_joined
from privacy.report.registry import registry_entry
from privacy.report.replay import quote_ledger
from privacy.report.report_evidence import (
    Accuracy,
    AccuracyMeasurement,
    Attack,
    AttackEstimate,
    CohortAttestation,
    DicomCode,
    GroupAccuracy,
    IngestionManifest,
    LedgerRow,
    LogVerdict,
    Policy,
    ReportEvidence,
    Run,
    StoreBinding,
    Tool,
)
from privacy.report.report_files import indented_json, read_report, report_bytes, report_schema, sign_report
from privacy.report.verify import verify_report

__all__ = [
    "Accuracy",
    "AccuracyMeasurement",
    "Attack",
    "AttackEstimate",
    "CohortAttestation",
    "DicomCode",
    "GroupAccuracy",
    "IngestionManifest",
    "JoinedReport",
    "LedgerRow",
    "LogVerdict",
    "NewerReport",
    "Policy",
    "Report",
    "ReportError",
    "ReportEvidence",
    "Run",
    "Sections",
    "SourceReport",
    "StoreBinding",
    "Tool",
    "indented_json",
    "join",
    "quote_ledger",
    "read_report",
    "registry_entry",
    "report_bytes",
    "report_of",
    "report_schema",
    "sections_of",
    "sign_report",
    "verify_joined",
    "verify_report",
]
