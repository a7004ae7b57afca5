"""The fixed reasons why a site refuses or stops a job, all that anybody outside of the site learns about it.

A code reveals nothing about data, environment or job text. The details stay in the site's own log.
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
    Refusal.SUBMITTER: "the site's policy does not list the job's submitter",
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
