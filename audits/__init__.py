"""What may leave a site, the gate it leaves through, the log of what did, and what attacks on it prove."""

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
    "EmpiricalError",
    "Entry",
    "Event",
    "Exchange",
    "Gate",
    "Guesses",
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
    "binomial",
    "canonical",
    "describe",
    "epsilon_lower_bound",
    "find_logs",
    "guess",
    "leaf_hash",
    "log_odds",
    "p_value",
    "rate_interval",
    "rate_p_value",
    "read",
    "totals",
    "verify",
]
