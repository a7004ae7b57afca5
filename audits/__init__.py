"""A site's policy of what may leave, the gate it leaves through, the audit log of what left, and attacks on it.

This module exports the names that other packages use; everything else is imported from its own module.
"""

from typing import TYPE_CHECKING

from audits.lazy_imports import at_first_use

if TYPE_CHECKING:
    from audits.checkpoint import Checkpoint, origin_of
    from audits.code import CodeKind, JobCode
    from audits.entry import Entry, Event, Isolation, Outcome, TensorRecord
    from audits.errors import (
        AuditError,
        JobRefused,
        LogError,
        MessageRefused,
        NewerFormat,
        NoteError,
        ReceiptRefused,
        Refusal,
        ReleaseRefused,
        refuses_job,
    )
    from audits.examination import Examination, check_site, examine
    from audits.exchange import Exchange, Kind, Protection, TaskSpec, Tensors, TensorSpec, canonical
    from audits.gate import Gate, JobContext
    from audits.judgement import EXIT_CODES, Judgement, VerdictPart, VerdictState
    from audits.log import AuditLog
    from audits.policy import SitePolicy
    from audits.secrets import SecretError, make_secret, read_secret
    from audits.sharing import Sharing, Stage
    from audits.signed_note import AuditKey, Note, VerifierKey
    from audits.verifier import find_logs, read, verify
    from audits.witness import Witness

__getattr__, __dir__ = at_first_use(__name__, __file__)

__all__ = [
    "AuditError",
    "AuditKey",
    "AuditLog",
    "Checkpoint",
    "CodeKind",
    "EXIT_CODES",
    "Entry",
    "Event",
    "Examination",
    "Exchange",
    "Gate",
    "Isolation",
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
    "Outcome",
    "Protection",
    "ReceiptRefused",
    "Refusal",
    "ReleaseRefused",
    "SecretError",
    "Sharing",
    "SitePolicy",
    "Stage",
    "TaskSpec",
    "TensorRecord",
    "TensorSpec",
    "Tensors",
    "VerdictPart",
    "VerdictState",
    "VerifierKey",
    "Witness",
    "canonical",
    "check_site",
    "examine",
    "find_logs",
    "make_secret",
    "origin_of",
    "read",
    "read_secret",
    "refuses_job",
    "verify",
]
