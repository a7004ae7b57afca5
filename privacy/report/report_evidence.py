"""The evidence of a report: parts of the site's log and ledger with their proofs, and unproven facts from the site.

Every section of a report follows from its evidence alone, so that whoever has the report can make its sections again.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from audits.excerpt import Excerpt
from privacy.aggregation import Secagg
from privacy.settings import Governance

State = Literal["shown", "not shown", "broken"]
"""The state of a part, as in the audit log's verdicts."""


class Frozen(BaseModel):
    """A part of a report: immutable, without unknown fields.

    A report of an earlier version lacks fields that were added since. Such a field has a default, is not among
    `model_fields_set` when the report is read, and stays out of the file when it is written again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")


class Tool(Frozen):
    """The software that made the report."""

    version: str
    code_digest: str
    """SHA-256 over the Python files of the three packages, hex."""
    opacus: str
    """Version of the package whose accountants are replayed."""


class LedgerRow(Frozen):
    """A record of the budget ledger with its hashes. `record` is None where it would list patients' digests."""

    seq: int
    prev: str
    hash: str
    record: dict[str, JsonValue] | None


class Policy(Frozen):
    """The site's policy, from its `site.yml` at the time of the report."""

    methods: tuple[str, ...]
    kinds: tuple[str, ...]
    recipients: tuple[str, ...]
    require_dp: bool
    max_epsilon: float | None
    max_epsilon_per_job: float | None
    delta: float
    unit: str
    colluders: int | None = None
    require_secagg: bool
    min_sites: int
    committee: tuple[str, ...]
    min_committee: int
    require_masks: bool = False
    require_crypten: bool = False
    min_difference: int = 2
    min_count: int = 1
    """Earlier versions had no such limit."""
    allowed_backbones: tuple[str, ...] = ()
    submitters: tuple[str, ...] = ()
    require_fresh: bool = True
    repeats: int = 3
    data_refusals: int = 3
    allow_export: bool = False
    max_mixture_share: float = 1.0
    revoked_submitters: tuple[str, ...] = ()
    require_audited_methods: bool = False
    epsilon_limit: float | None = None
    """The limit that holds where `max_epsilon` is not set."""

    @property
    def limit(self) -> float | None:
        """The most epsilon that all jobs together may cost."""
        return self.max_epsilon if self.epsilon_limit is None else self.epsilon_limit


class Run(Frozen):
    """The job's settings and versions from a run's `results.json`, without figures about any site's data."""

    sha256: str
    """SHA-256 of the file, hex."""
    status: str
    method: str
    options: dict[str, JsonValue]
    data: str | None
    split: dict[str, JsonValue]
    backbone: str
    seed: int
    engine: str
    rounds_planned: int
    rounds_done: int
    secagg: Secagg
    dp: dict[str, JsonValue] | None
    """The settings of differential privacy, with the noise multipliers that follow from them."""
    sites: tuple[str, ...]
    versions: dict[str, str | None]


class LogVerdict(Frozen):
    """One part of the verdicts on the whole log, see `medfedvqa audit verify`."""

    verdict: str
    part: str
    state: str
    said: str


class AttackEstimate(Frozen):
    """One attack's guesses about synthetic patients."""

    artefact: str
    attack: str
    canaries: int
    guessed: int
    correct: int


class Attack(Frozen):
    """The counts of `medfedvqa audit attack`."""

    sha256: str
    """SHA-256 of the file, hex."""
    method: str
    options: dict[str, JsonValue]
    data: str
    backbone: str
    dp: dict[str, JsonValue] | None
    sites: tuple[str, ...]
    claimed_epsilon: float | None
    claimed_delta: float | None
    confidence: float
    attacks: tuple[AttackEstimate, ...]


class Accuracy(Frozen):
    """Accuracy on a site's test rows in 0..1, to three digits, with its Wilson 95 % interval."""

    accuracy: float
    low: float
    high: float


KeptModel = Literal["finished", "received", "ensemble", "alone", "alone_equal"]
"""Which model a site keeps: the one that it trained on after its last release, or the one that it trained alone."""


class GroupAccuracy(Frozen):
    """Accuracy on the test rows of a group of at least 20 patients, to two digits."""

    by: str
    """The characteristic, such as `sex`."""
    group: str
    model: Literal["released", "kept"]
    private: float
    without: float
    """The accuracy of the same job without differential privacy."""
    low: float | None
    high: float | None
    """The 95 % interval of `without` less `private`, over patients; None where there is none."""


class AccuracyMeasurement(Frozen):
    """The accuracy of the site's model, with and without differential privacy; the site decides whether to give it."""

    private: Accuracy
    """The accuracy of this job's model at its last release."""
    without: Accuracy
    """The accuracy of the same job without differential privacy."""
    prior: Accuracy
    """The accuracy of the majority answer to the same question, which needs no picture."""
    same_settings: bool
    """Whether the two jobs differ in nothing but differential privacy and secure aggregation."""
    finished: Accuracy | None = None
    """The accuracy after the site trained the job's model further by itself, without noise; None if it did not."""
    alone: Accuracy | None = None
    """The accuracy of a model that the site trained alone, without noise; None if it trained none."""
    alone_equal: Accuracy | None = None
    """Like `alone`, but trained for as many passes as the federation and finishing together."""
    kept: KeptModel | None = None
    """Which model the site keeps; None if it did not train further."""
    groups: tuple[GroupAccuracy, ...] = ()


class DicomCode(Frozen):
    """A code of DICOM's context group 7050."""

    value: str
    meaning: str


class IngestionManifest(Frozen):
    """How a store was ingested: its manifest without the counts."""

    sha256: str
    """SHA-256 of the manifest, hex."""
    made: str
    codes: tuple[DicomCode, ...]
    retained: tuple[str, ...]
    versions: dict[str, str]
    code: str
    reviewed: bool | None = None
    """Whether a person accepted every picture; None in evidence of an earlier version."""


class StoreBinding(Frozen):
    """The binding of the ledger to the patients of a store, without anything that identifies them."""

    from_store: bool
    """Whether the site trains on a store that `medfedvqa ingest` made: other data sets have no key to bind to."""
    bound: bool
    """Whether the ledger and the store name each other."""
    compared: bool
    """Whether ingestion compared all files and patients of the store with those of the ledgers beside it."""


class CohortAttestation(Frozen):
    """The site's statement whether delta is below 1 / (patients of the largest cohort), without their number."""

    delta: float
    """The largest delta of the ledger's charges."""
    below: bool


class ReportEvidence(Frozen):
    """All that a report is made of."""

    created: str
    """The time, in UTC."""
    site: str
    job: str
    tool: Tool
    log: Excerpt
    """Entries of the job, of the site itself, and refusals of any job."""
    ledger: tuple[LedgerRow, ...]
    """The whole chain; empty if the site has no ledger."""
    policy: Policy
    run: Run | None
    examined: tuple[LogVerdict, ...]
    attack: Attack | None
    measured: AccuracyMeasurement | None
    ingested: IngestionManifest | None
    binding: StoreBinding | None = None
    governance: Governance | None = None
    cohort: CohortAttestation | None = None
    """None if the ledger has no cohort."""
