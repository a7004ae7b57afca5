"""The errors at a site's border, and the fixed sentences that explain a refusal."""

from enum import StrEnum

from audits.refusals import Refusal


class AuditError(Exception):
    """Base of every error of this package; its text holds no value, identifier or undeclared name."""


class ReleaseRefused(AuditError):
    """The site may not send this message; no part of it left."""


class ReceiptRefused(AuditError):
    """The site may not accept this message; no part of it was used."""


class MessageRefused(AuditError):
    """A message is not what its task declares; the text holds declared facts only."""


class JobRefused(AuditError):
    """A site refuses a job. Others receive only `code`; the text is for the site's staff."""

    def __init__(self, code: Refusal, detail: str = "") -> None:
        super().__init__(f"the job was refused: {detail or code.sentence}")
        self.code, self.detail = code, detail


class PolicyError(AuditError):
    """A site's policy is malformed; the text names the key and its permitted values."""


class LogError(AuditError):
    """The audit log cannot be written or read; while it cannot be written, nothing leaves."""


class NewerFormat(LogError):
    """The data are sound but contain something that only a newer version of this software knows."""

    def __init__(self, what: str = "the entry") -> None:
        super().__init__(f"{what} was written by a newer version of this software: use that version, or a later one")


class OlderFormat(LogError):
    """The data are sound but of a development state before the first release, whose formats are no longer read."""

    def __init__(self, what: str = "the entry") -> None:
        super().__init__(
            f"{what} is of a development state before 0.2.0, which is no longer read: version 0.2.0 reads it"
        )


class NoteError(LogError):
    """A key, note or checkpoint is damaged, or not what it should be; never stops training, is logged as a finding."""


class ForkFound(NoteError):
    """Two signed checkpoints of one log that cannot both be true: it was forked, rewritten or rolled back."""


class ProofFromElsewhere(NoteError):
    """A proof that does not hold because its sender did not know which checkpoint was cosigned here."""


class ReleaseFault(StrEnum):
    """The fixed sentences that explain a refusal.

    They are filled with declared facts only, because refusals are reported to the server. An undeclared name or a
    tensor's actual shape may itself carry data: a shape is often a row count.
    """

    TASK = "the method declares no such task"
    PEER = "the site's policy knows no such peer"
    ROUND = "the round is not a whole number from 0 to 2147483647"
    UNDECLARED = "{count} of the message's tensors are not declared for this task"
    MISSING = "tensor '{name}' is missing"
    ADDRESS = "tensor '{name}' is declared for other peers only"
    ARRAY = "tensor '{name}' is not a plain numpy array of numbers"
    DTYPE = "tensor '{name}' does not have its declared dtype {dtype}"
    SHAPE = "tensor '{name}' does not have its declared shape {shape}"
    FINITE = "tensor '{name}' holds values that are not finite"
    BOUNDS = "tensor '{name}' holds values outside of its declared bounds {low} to {high}"
    NORM = "the parameters are longer than the declared norm of {most}"
    METHOD = "the site's policy does not allow the method '{method}'"
    KIND = "tensor '{name}' is of the kind '{kind}', which the site's policy does not allow"
    RECIPIENT = "tensor '{name}' is declared for a peer that the site's policy does not allow"
    UNCHARGED = "tensor '{name}' is declared under differential privacy, and the site's ledger holds no charge for it"
    UNPROTECTED = "tensor '{name}' depends on data and carries no differential privacy, which the site requires"
    OPEN = "tensor '{name}' is meant for other sites, and they may only get shares of it"
    UNMASKED = "tensor '{name}' depends on data and is not masked, and the site requires secure aggregation"
    DP = "the site requires differential privacy, and the job trains without it"
    DELTA = "the job's delta is larger than the site's"
    UNIT = "the site protects '{unit}'s, and the job another unit"
    SECAGG = "the site requires secure aggregation, and the job does not use it"
    SITES = "the site takes part with at least {count} sites only, and the job does not ask for that number"
    COMMITTEE = "the job and the site's policy do not name the same committee, or only one of them names any"
    MEMBERS = "the site wants at least {count} sites to compute, and the job may do with fewer"
