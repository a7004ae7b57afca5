"""What may leave a site, the gate it leaves through, the log of what did, and what attacks on it prove."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from audits.checkpoint import Checkpoint, origin_of
from audits.code import CodeKind, CodePart, JobCode
from audits.earlier_sums import EarlierSums
from audits.entry import Entry, Event, Outcome, TensorRecord, leaf_hash
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
    Reason,
    ReceiptRefused,
    ReleaseRefused,
)
from audits.evidence import RECEIPTS, Claims, Evidence, claims_on, receipts_of
from audits.examine import Examination, check_site, examine, sites_of
from audits.excerpt import Cosigned, Excerpt, Held, Quoted, held, quote, quoted_entries
from audits.exchange import Exchange, Kind, Protection, TaskSpec, Tensors, TensorSpec, canonical, clipped, joint_norm
from audits.export import ExportFormat, export_logs
from audits.gate import Charged, Gate, JobContext, round_number
from audits.judgement import EXIT_CODES, Judgement, Part, State
from audits.log import AuditLog
from audits.note import AuditKey, Note, VerifierKey
from audits.policy import Offer, SitePolicy
from audits.proofs import Proven, check, prove
from audits.refusals import Refusal, known_code, refuses_job
from audits.retention import RETENTION_DAYS, ExpiryResult, expire
from audits.secrets import SecretError, make_secret, place_new, read_secret
from audits.sharing import Sharing, Stage, sharing_of
from audits.verifier import Row, TensorTotal, Totals, Verdict, Walk, describe, find_logs, read, totals, verify
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
from audits.witness import Witness

if TYPE_CHECKING:
    from audits.empirical import (
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
"""Names of `audits.empirical`, which needs NumPy: a verifier of logs starts without."""


def __getattr__(name: str) -> Any:
    if name not in _WITH_NUMPY:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module("audits.empirical"), name)


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "AuditError",
    "AuditKey",
    "AuditLog",
    "Charged",
    "Checkpoint",
    "Claims",
    "CodeKind",
    "CodePart",
    "Cosigned",
    "EXIT_CODES",
    "EarlierSums",
    "EmpiricalError",
    "Entry",
    "Event",
    "Evidence",
    "Examination",
    "Excerpt",
    "Exchange",
    "ExpiryResult",
    "ExportFormat",
    "ForkFound",
    "FrameCount",
    "Gate",
    "Guesses",
    "Held",
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
    "Part",
    "PolicyError",
    "Protection",
    "Proven",
    "Quoted",
    "RECEIPTS",
    "RETENTION_DAYS",
    "Reason",
    "ReceiptRefused",
    "Reconciler",
    "Reconciliation",
    "Refusal",
    "ReleaseRefused",
    "Row",
    "SecretError",
    "Sharing",
    "SitePolicy",
    "Stage",
    "State",
    "Submitted",
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
