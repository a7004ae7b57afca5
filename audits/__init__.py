"""What may leave a site, the gate it leaves through, the log of what did, and what attacks on it prove."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from audits.byte_ledger import (
    FrameCount,
    Reconciler,
    Reconciliation,
    ResultCount,
    Traffic,
    WireFinding,
    WireWindow,
    reconcile,
)
from audits.checkpoint import Checkpoint, origin_of
from audits.code import CodeKind, CodePart, JobCode
from audits.earlier_sums import EarlierSums
from audits.entry import Entry, Event, Outcome, TensorRecord, leaf_hash
from audits.entry_proof import ProofResult, check, prove
from audits.envelope import opened, pae, sealed, statement, subjects
from audits.errors import (
    AuditError,
    ForkFound,
    JobRefused,
    LogError,
    MessageRefused,
    NewerFormat,
    NoteError,
    PolicyError,
    ReceiptRefused,
    ReleaseFault,
    ReleaseRefused,
)
from audits.examine import Examination, check_site, examine, sites_of
from audits.excerpt import CosignedCheckpoint, Excerpt, ExcerptFacts, QuotedEntry, held, quote, quoted_entries
from audits.exchange import Exchange, Kind, Protection, TaskSpec, Tensors, TensorSpec, canonical, clipped, joint_norm
from audits.export import ExportFormat, export_logs
from audits.external_evidence import RECEIPTS, Claims, ExternalEvidence, claims_on, receipts_of
from audits.gate import Gate, JobContext, LogCharge, round_number
from audits.judgement import EXIT_CODES, Judgement, VerdictPart, VerdictState
from audits.log import AuditLog
from audits.policy import Offer, SitePolicy
from audits.refusals import Refusal, known_code, refuses_job
from audits.retention import RETENTION_DAYS, ExpiryResult, expire
from audits.secrets import SecretError, make_secret, place_new, read_secret
from audits.sharing import Sharing, Stage, sharing_of
from audits.signed_note import AuditKey, Note, VerifierKey
from audits.verifier import EntryRow, TensorTotal, Totals, Verdict, Walk, describe, find_logs, read, totals, verify
from audits.witness import Witness

if TYPE_CHECKING:
    from audits.epsilon_lower_bound import (
        EmpiricalError,
        Guesses,
        binomial,
        epsilon_lower_bound,
        guess,
        log_odds,
        p_value,
        rate_interval,
        rate_p_value,
    )

_WITH_NUMPY = frozenset(
    {
        *("EmpiricalError", "Guesses", "binomial", "epsilon_lower_bound", "guess", "log_odds", "p_value"),
        *("rate_interval", "rate_p_value"),
    }
)
"""Names of `audits.epsilon_lower_bound`, which needs NumPy: a verifier of logs starts without."""


def __getattr__(name: str) -> Any:
    if name not in _WITH_NUMPY:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module("audits.epsilon_lower_bound"), name)


__all__ = [
    "AuditError",
    "AuditKey",
    "AuditLog",
    "LogCharge",
    "Checkpoint",
    "Claims",
    "CodeKind",
    "CodePart",
    "CosignedCheckpoint",
    "EXIT_CODES",
    "EarlierSums",
    "EmpiricalError",
    "Entry",
    "Event",
    "ExternalEvidence",
    "Examination",
    "Excerpt",
    "Exchange",
    "ExpiryResult",
    "ExportFormat",
    "ForkFound",
    "FrameCount",
    "Gate",
    "Guesses",
    "ExcerptFacts",
    "JobCode",
    "JobContext",
    "JobRefused",
    "Judgement",
    "Kind",
    "LogError",
    "MessageRefused",
    "NewerFormat",
    "Note",
    "NoteError",
    "Offer",
    "Outcome",
    "VerdictPart",
    "PolicyError",
    "Protection",
    "ProofResult",
    "QuotedEntry",
    "RECEIPTS",
    "RETENTION_DAYS",
    "ReleaseFault",
    "ReceiptRefused",
    "Reconciler",
    "Reconciliation",
    "Refusal",
    "ReleaseRefused",
    "EntryRow",
    "SecretError",
    "Sharing",
    "SitePolicy",
    "Stage",
    "VerdictState",
    "ResultCount",
    "TaskSpec",
    "TensorRecord",
    "TensorSpec",
    "TensorTotal",
    "Tensors",
    "Totals",
    "Traffic",
    "Verdict",
    "VerifierKey",
    "Walk",
    "WireFinding",
    "WireWindow",
    "Witness",
    "binomial",
    "canonical",
    "check",
    "check_site",
    "claims_on",
    "clipped",
    "describe",
    "epsilon_lower_bound",
    "examine",
    "expire",
    "export_logs",
    "find_logs",
    "guess",
    "held",
    "joint_norm",
    "known_code",
    "leaf_hash",
    "log_odds",
    "make_secret",
    "opened",
    "origin_of",
    "p_value",
    "pae",
    "place_new",
    "prove",
    "quote",
    "quoted_entries",
    "rate_interval",
    "rate_p_value",
    "read",
    "read_secret",
    "receipts_of",
    "reconcile",
    "refuses_job",
    "round_number",
    "sealed",
    "sharing_of",
    "sites_of",
    "statement",
    "subjects",
    "totals",
    "verify",
]
