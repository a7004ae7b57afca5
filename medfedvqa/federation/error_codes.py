"""The code by which a site reports an error to the server, which learns nothing else about it."""

import errno
from collections.abc import Iterator

from audits import AuditError, JobRefused, LogError, ReceiptRefused, Refusal, ReleaseRefused
from medfedvqa.devices import DeviceMemoryError
from medfedvqa.errors import BackboneError, ConfigError, DataError, FederationError, MedfedvqaError, SiteDatabaseError
from medfedvqa.plugins import PlugInRefused
from privacy.errors import PrivacyError
from privacy.ledger_journal import BudgetRefused, LedgerError

ACTIONABLE = (MedfedvqaError, AuditError, PrivacyError)
"""Errors whose message may be shown to the user of this machine. Any other error shows only its class name."""

_CODES: tuple[tuple[type[Exception], Refusal], ...] = (
    (ReleaseRefused, Refusal.MESSAGE),
    (ReceiptRefused, Refusal.MESSAGE),
    (LogError, Refusal.RECORDS),
    (LedgerError, Refusal.RECORDS),
    (BudgetRefused, Refusal.BUDGET),
    (BackboneError, Refusal.BACKBONE),
    (SiteDatabaseError, Refusal.RECORDS),
    (FederationError, Refusal.ATTEMPT),
    (PlugInRefused, Refusal.PLUG_IN),
    (ConfigError, Refusal.DATA),
    (DataError, Refusal.DATA),
)


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Error numbers of a full disk: no space, a quota, or a limit on a file's size."""
_TOO_SMALL = (MemoryError, DeviceMemoryError)
_OUT_OF_MEMORY = "OutOfMemoryError"
"""The name of torch's out-of-memory error on a GPU; commands that never train do not import torch."""


def code_of(error: Exception, private: bool = False) -> Refusal:
    """The code that the server gets for an error at a site.

    `private`: the job is under differential privacy. Then the server does not learn that memory ran out, which may
    depend on a patient's rows; a full disk does not.
    """
    chain = list(_chain(error))
    if is_full_disk(error):
        return Refusal.DISK
    if isinstance(error, JobRefused):
        return error.code
    if any(isinstance(link, _TOO_SMALL) or type(link).__name__ == _OUT_OF_MEMORY for link in chain):
        return Refusal.FAILED if private else Refusal.MEMORY
    return next((code for kind, code in _CODES if isinstance(error, kind)), Refusal.FAILED)


def is_full_disk(error: BaseException) -> bool:
    """Whether an error, or one that led to it, says that the disk is full: torch raises its own error on top."""
    return any(isinstance(link, OSError) and link.errno in _FULL for link in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that led to it, the nearest first."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
