"""What may leave a site, the gate through which it leaves, and the log that shows afterwards what did."""

from audits.errors import AuditError, JobRefused, LogError, PolicyError, Reason, ReceiptRefused, ReleaseRefused
from audits.exchange import Exchange, Kind, Protection, TaskSpec, Tensors, TensorSpec, canonical
from audits.gate import Charged, Gate, JobContext, Sharing
from audits.log import AuditLog, Entry, Event, Outcome, TensorRecord, leaf_hash
from audits.policy import Offer, SitePolicy
from audits.verifier import Row, TensorTotal, Totals, Verdict, describe, find_logs, read, totals, verify

__all__ = [
    "AuditError",
    "AuditLog",
    "Charged",
    "Entry",
    "Event",
    "Exchange",
    "Gate",
    "JobContext",
    "JobRefused",
    "Kind",
    "LogError",
    "Offer",
    "Outcome",
    "PolicyError",
    "Protection",
    "Reason",
    "ReceiptRefused",
    "ReleaseRefused",
    "Row",
    "Sharing",
    "SitePolicy",
    "TaskSpec",
    "TensorRecord",
    "TensorSpec",
    "TensorTotal",
    "Tensors",
    "Totals",
    "Verdict",
    "canonical",
    "describe",
    "find_logs",
    "leaf_hash",
    "read",
    "totals",
    "verify",
]
