"""What may leave a site, the gate through which it leaves, and the log that shows afterwards what did."""

from audits.checkpoint import Checkpoint, origin_of
from audits.errors import (
    AuditError,
    ForkFound,
    JobRefused,
    LogError,
    NoteError,
    PolicyError,
    Reason,
    ReceiptRefused,
    ReleaseRefused,
)
from audits.evidence import RECEIPTS, Claims, Evidence, claims_on, receipts_of
from audits.examine import (
    EXIT_CODES,
    Examination,
    Judgement,
    Part,
    State,
    WireLedger,
    check_site,
    examine,
    sites_of,
)
from audits.exchange import Exchange, Kind, Protection, TaskSpec, Tensors, TensorSpec, canonical
from audits.export import ExportFormat, export_logs
from audits.gate import Charged, Gate, JobContext, Sharing
from audits.log import AuditLog, Entry, Event, Outcome, TensorRecord, leaf_hash
from audits.note import AuditKey, Note, VerifierKey
from audits.policy import Offer, SitePolicy
from audits.proofs import Proven, check, prove
from audits.retention import RETENTION_DAYS, expire
from audits.verifier import Row, TensorTotal, Totals, Verdict, Walk, describe, find_logs, read, totals, verify
from audits.witness import Witness

__all__ = [
    "AuditError",
    "AuditKey",
    "AuditLog",
    "Charged",
    "Checkpoint",
    "Claims",
    "EXIT_CODES",
    "Entry",
    "Event",
    "Evidence",
    "Examination",
    "Exchange",
    "ExportFormat",
    "ForkFound",
    "Gate",
    "JobContext",
    "JobRefused",
    "Judgement",
    "Kind",
    "LogError",
    "Note",
    "NoteError",
    "Offer",
    "Outcome",
    "Part",
    "PolicyError",
    "Protection",
    "Proven",
    "RECEIPTS",
    "RETENTION_DAYS",
    "Reason",
    "ReceiptRefused",
    "ReleaseRefused",
    "Row",
    "Sharing",
    "SitePolicy",
    "State",
    "TaskSpec",
    "TensorRecord",
    "TensorSpec",
    "TensorTotal",
    "Tensors",
    "Totals",
    "Verdict",
    "VerifierKey",
    "Walk",
    "WireLedger",
    "Witness",
    "canonical",
    "check",
    "check_site",
    "claims_on",
    "describe",
    "examine",
    "expire",
    "export_logs",
    "find_logs",
    "leaf_hash",
    "origin_of",
    "prove",
    "read",
    "receipts_of",
    "sites_of",
    "totals",
    "verify",
]
