"""The code by which a site reports an error to the server, which learns nothing else of it."""

from audits import AuditError, JobRefused, LogError, ReceiptRefused, Refusal, ReleaseRefused
from medfedvqa.errors import BackboneError, ConfigError, DataError, FederationError, MedfedvqaError
from medfedvqa.plugins import PlugInRefused
from privacy.errors import PrivacyError
from privacy.ledger_journal import BudgetRefused, LedgerError

ACTIONABLE = (MedfedvqaError, AuditError, PrivacyError)
"""Errors whose sentence may be shown to the user of this machine. Of any other error, only the class name is shown."""

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
    """The code that the server gets for an error at a site."""
    if isinstance(error, JobRefused):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), Refusal.FAILED)
