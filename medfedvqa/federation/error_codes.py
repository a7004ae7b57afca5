"""Which errors may be told, and as which code: nobody but the site itself is told more than that."""

from audits import AuditError, JobRefused, LogError, ReceiptRefused, Refusal, ReleaseRefused
from medfedvqa.errors import BackboneError, ConfigError, DataError, FederationError, MedfedvqaError
from medfedvqa.plugins import PlugInRefused
from privacy.errors import PrivacyError
from privacy.ledger_journal import BudgetRefused, LedgerError

ACTIONABLE = (MedfedvqaError, AuditError, PrivacyError)
"""Errors whose sentence may be shown to the user of this machine; of any other one only the name."""

_CODES: tuple[tuple[type[Exception], Refusal], ...] = (
    (ReleaseRefused, Refusal.MESSAGE),
    (ReceiptRefused, Refusal.MESSAGE),
    (LogError, Refusal.RECORDS),
    (LedgerError, Refusal.RECORDS),
    (BudgetRefused, Refusal.BUDGET),
    (BackboneError, Refusal.BACKBONE),
    (FederationError, Refusal.ATTEMPT),
    (PlugInRefused, Refusal.PLUG_IN),
    (ConfigError, Refusal.DATA),
    (DataError, Refusal.DATA),
)


def code_of(error: Exception) -> Refusal:
    """What the server is told of an error at a site."""
    if isinstance(error, JobRefused):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), Refusal.FAILED)
