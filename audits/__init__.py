"""What may leave a site, the gate through which it leaves, and the log that shows afterwards what did."""

from audits.errors import AuditError, JobRefused, LogError, PolicyError, Reason, ReceiptRefused, ReleaseRefused
from audits.exchange import Exchange, Kind, Protection, TaskSpec, Tensors, TensorSpec, canonical
from audits.gate import Charged, Gate, JobContext, Sharing
from audits.log import AuditLog, Entry, Event, Outcome, TensorRecord, leaf_hash
from audits.policy import Offer, SitePolicy
from audits.verifier import Row, TensorTotal, Totals, Verdict, describe, find_logs, read, totals, verify
from audits.wire import (
    FrameCount,
    Reconciler,
    Reconciliation,
    Submitted,
    Traffic,
    WireFinding,
    WireWindow,
    reconcile,
)

__all__ = [
    "AuditError",
    "AuditLog",
    "Charged",
    "Entry",
    "Event",
    "Exchange",
    "FrameCount",
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
    "Reconciler",
    "Reconciliation",
    "ReleaseRefused",
    "Row",
    "Sharing",
    "SitePolicy",
    "Submitted",
    "TaskSpec",
    "TensorRecord",
    "TensorSpec",
    "TensorTotal",
    "Tensors",
    "Totals",
    "Traffic",
    "Verdict",
    "WireFinding",
    "WireWindow",
    "canonical",
    "describe",
    "find_logs",
    "leaf_hash",
    "read",
    "reconcile",
    "totals",
    "verify",
]
