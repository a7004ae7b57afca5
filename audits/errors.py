"""The fixed reasons why a site refuses or stops a job, and the errors at a site's border.

A code is all that anybody outside of the site learns: it reveals nothing about data, environment or job text. The
details stay in the site's own log.
"""

import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

_logger = logging.getLogger(__name__)


class Refusal(StrEnum):
    """A code; `sentence` says what it means."""

    FOLDER = "folder"
    SCHEMA = "schema"
    SIGNATURE = "signature"
    SUBMITTER = "submitter"
    FEDERATION = "federation"
    EXPIRED = "expired"
    REPLAY = "replay"
    FRESH = "fresh"
    REPEATS = "repeats"
    READER = "reader"
    METHOD = "method"
    CODE = "code"
    PLUG_IN = "plug-in"
    NEIGHBOURS = "neighbours"
    ANSWERS = "answers"
    KIND = "kind"
    PRIVACY = "privacy"
    EPSILON = "epsilon"
    NOISE = "noise"
    SECAGG = "secagg"
    SITES = "sites"
    COMMITTEE = "committee"
    MASKS = "masks"
    CRYPTEN = "crypten"
    MIXTURE = "mixture"
    APPROVAL = "approval"
    DECLINED = "declined"
    PEERS = "peers"
    COHORT = "cohort"
    COUNT = "count"
    BACKBONE = "backbone"
    DEVICE = "device"
    ROOT = "root"
    MEMORY = "memory"
    DISK = "disk"
    BUDGET = "budget"
    THROTTLED = "throttled"
    DATA = "data"
    MESSAGE = "message"
    ATTEMPT = "attempt"
    ORDER = "order"
    DRAWN = "drawn"
    VIEWS = "views"
    DEALER = "dealer"
    RECORDS = "records"
    CONNECTION = "connection"
    ISOLATION = "isolation"
    FAILED = "failed"

    @property
    def sentence(self) -> str:
        """The sentence that the server and the job's submitter receive."""
        return _SENTENCES[self]


_SENTENCES = {
    Refusal.FOLDER: "the job's folder holds more than the two configuration files of a job, or they are too large",
    Refusal.SCHEMA: "the job's configuration is not as this version writes it: make it by `medfedvqa jobs export`",
    Refusal.SIGNATURE: "the job is not signed by a submitter of this federation",
    Refusal.SUBMITTER: "the site's policy does not allow the job's submitter",
    Refusal.FEDERATION: "the job was signed for another federation, or for other sites",
    Refusal.EXPIRED: "the job's signature has expired: export it anew with `medfedvqa jobs export`",
    Refusal.REPLAY: "the job's nonce was used before: export it anew with `medfedvqa jobs export`",
    Refusal.FRESH: "a job under differential privacy needs a fresh signature: export it with `medfedvqa jobs export`",
    Refusal.REPEATS: "the job ran as often as the site's policy lets one definition run within a day",
    Refusal.READER: "the job is for data of another reader than the site's",
    Refusal.METHOD: "the site's policy does not allow the job's method",
    Refusal.CODE: "the code of the job's method has changed at the site since it was loaded",
    Refusal.PLUG_IN: "the distribution that brings the job's method, data reader or backbone is not allowed as it is",
    Refusal.NEIGHBOURS: "the job's private method comes from outside, and has not passed `medfedvqa audit neighbours` "
    "as the site demands",
    Refusal.ANSWERS: "the job takes each site's own list of answers, and the site declares none",
    Refusal.KIND: "the job moves kinds of tensors, or to recipients, that the site's policy does not allow",
    Refusal.PRIVACY: "the site requires differential privacy by its own unit and delta, and the job does not offer it",
    Refusal.EPSILON: "the job alone would spend more than the site allows one job",
    Refusal.NOISE: "the job's sites share noise, and the site's policy trusts fewer other sites than the job does",
    Refusal.SECAGG: "the site requires secure aggregation, and the job does not use it",
    Refusal.SITES: "the site takes part with more sites only than the job asks for",
    Refusal.COMMITTEE: "the job and the site's policy do not agree on who computes on shares",
    Refusal.MASKS: "the site takes part in means under masks only, and in this job sites compute them with CrypTen",
    Refusal.CRYPTEN: "the site takes part in means with CrypTen only, and this job takes them under masks: give "
    "`secagg` as 'crypten'",
    Refusal.MIXTURE: "one site's values may have more weight in another's mixture than the site allows: ask for a "
    "smaller `most_share`, where the method has it",
    Refusal.APPROVAL: "the job waits for a person of the site to approve it: submit it again once that has happened",
    Refusal.DECLINED: "a person of the site has decided against the job",
    Refusal.PEERS: "the site does not know the keys of all sites with which it would share",
    Refusal.COHORT: "sums over these and earlier sites could be combined to show fewer sites than the policy allows",
    Refusal.COUNT: "figures in a round would be about fewer patients than the site's policy allows: ask for "
    "`weighting` 'uniform', where the method has it, for differential privacy or for secure aggregation",
    Refusal.BACKBONE: "the site's policy does not list the job's backbone, or the site does not have it",
    Refusal.DEVICE: "the site's device is not there: see its driver, or write another `device` into site.yml",
    Refusal.ROOT: "the site's data folder is not there: mount it, or write the right `root` into site.yml",
    Refusal.MEMORY: "the site's machine or card ran out of memory: use smaller batches, fewer processes or more memory",
    Refusal.DISK: "the site's disk is full: free at least 1 GiB where its state, log and ledger lie",
    Refusal.BUDGET: "the site's privacy budget does not cover the job",
    Refusal.THROTTLED: "the site has refused too many jobs within a day and takes no further one of this kind",
    Refusal.DATA: "this site cannot run the job",
    Refusal.MESSAGE: "a message was not what the job declares and the site's policy allows",
    Refusal.ATTEMPT: "the server asked for an aggregation on shares in which the site takes no part",
    Refusal.ORDER: "the server asked for a task that the job's plan does not have, or has only before the last one",
    Refusal.DRAWN: "a committee was drawn for the same job before: a second draw would let somebody choose",
    Refusal.VIEWS: "the server told the sites different things of one computation",
    Refusal.DEALER: "the server dealt randomness that is not what the sites' seeds give",
    Refusal.RECORDS: "the site's audit log or budget ledger cannot be written or trusted",
    Refusal.CONNECTION: "the site's process connects to one pinned address only, and was to connect elsewhere",
    Refusal.ISOLATION: "the process that would read the site's rows has a network: give it none by a name "
    "space, a service or container without network, or a filter of sockets; or write `isolation: none` into site.yml",
    Refusal.FAILED: "the task failed at the site; the site's own log has the details",
}


def refuses_job(event: str, outcome: str | None) -> bool:
    """Whether an entry of this event and outcome says that a job was refused; earlier versions logged it as opened."""
    return event == "refusal" or (event, outcome) == ("open", "refused")


def known_code(admission: Mapping[str, Any] | None) -> Refusal | None:
    """The code in an entry's `admission`; None if this version does not know it."""
    code = (admission or {}).get("code")
    return Refusal(code) if isinstance(code, str) and code in frozenset(Refusal) else None


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
    """A key, note or checkpoint is damaged or not the expected one. It never stops training, and is logged as a
    finding.
    """


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
