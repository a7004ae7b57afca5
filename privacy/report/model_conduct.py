"""The privacy-budget report: sections F to L, and all of them together. They follow from its evidence."""

from typing import Annotated, Final, Literal

from pydantic import Field

from privacy.report.model_guarantee import Accounting, Claim, ExecutedMechanism, ReportIdentity, ReportRefusal, Unit
from privacy.report.report_evidence import Accuracy, Frozen, KeptModel, ReportEvidence
from privacy.report.wording import WORDING, MaybeWording, Wording, Wordings

FORMAT: Final = "medfedvqa.privacy-report/1"

State = Literal["shown", "not shown", "broken"]
"""As in the audit log's verdicts."""


class Outside(Frozen):
    """F: something that the theorem does not cover."""

    what: Wording
    why: Wording
    treatment: Wording


class SharedComputation(Frozen):
    """One computation on shares, as its entry tells."""

    entry: int
    round: int | None
    said: Wording
    attempt: str | None = None
    protocol: str | None = None
    sites: tuple[str, ...] = ()
    """Whose values are shared; none where the entry does not name them."""
    dealer: str | None = None
    """Who hands out correlated randomness; none if nobody does."""


class Trust(Frozen):
    """G: who is trusted with what, and how contributions are combined."""

    server: Wording
    sites: Wording
    author: Wording
    administrators: Wording
    aggregation: Literal["in clear", "on shares", "nothing released"]
    aggregation_said: Wording
    attempts: tuple[SharedComputation, ...]
    isolation: tuple[str | None, ...] = ()
    """What kept the network from the process that held the rows while the job ran: `namespace`, `filter` or `none`,
    each once, in order; null where the log does not say, and empty where it does not tell that the job was opened."""
    isolation_said: MaybeWording = None
    """None in reports of earlier versions."""


class ReleaseFigures(Frozen):
    """One tensor of one release."""

    entry: int
    time: str
    round: int | None
    task: str | None
    recipient: str | None
    tensor: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    protection: str
    nbytes: int
    sha256: str | None
    charge: int | None
    """Position in the ledger of the charge that the release's entry names."""


class KindTotal(Frozen):
    """ReleaseFigures tensors of one kind and protection."""

    kind: str
    protection: str
    tensors: int
    nbytes: int


class RoundTotal(Frozen):
    """ReleaseFigures tensors of one round and kind."""

    round: int | None
    kind: str
    nbytes: int


class TensorFigures(Frozen):
    """One tensor over the job."""

    tensor: str
    recipient: str | None
    kind: str
    protection: str
    messages: int
    nbytes: int


class Proofs(Frozen):
    """What proves the table."""

    checkpoint_entries: int
    checkpoint_root: str
    cosigned_entries: int
    """Entries under a checkpoint that others have cosigned; 0 if none has."""
    cosigners: tuple[str, ...]
    quoted: int
    not_quoted: int
    """Entries that are in the log and not here: of other jobs."""
    expired: int
    """Entries whose lines are past their retention."""


class Egress(Frozen):
    """H: everything that left the site for this job."""

    releases: tuple[ReleaseFigures, ...]
    messages: int
    nbytes: int
    by_kind: tuple[KindTotal, ...]
    by_round: tuple[RoundTotal, ...]
    by_tensor: tuple[TensorFigures, ...]
    received_messages: int
    received_nbytes: int
    refused: tuple[ReportRefusal, ...]
    proofs: Proofs
    digests_said: Wording


class DataHandling(Frozen):
    """I: how the data became what was trained on."""

    ingested: bool
    said: Wording
    profile: tuple[str, ...]
    retained: tuple[str, ...]
    burned_in: Wording
    tools: tuple[str, ...]
    manifest: str | None
    made: str | None


class AttackFigures(Frozen):
    """One attack's result, computed again from its counts."""

    artefact: str
    attack: str
    canaries: int
    guessed: int
    correct: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    epsilon_at_least: float
    """The interval for epsilon is from here to infinity."""
    provable: float
    """The bound if every guess had been right."""
    refutes: bool | None
    """Whether it exceeds the epsilon that the attacked job claimed; none without a claim."""


class Empirical(Frozen):
    """J: attacks beside the claim, and what privacy cost."""

    attacked: bool
    said: Wording
    same_settings: bool | None
    """Whether the attacked job has this job's method, options, backbone and privacy settings."""
    data: str | None
    claimed_epsilon: float | None
    claimed_delta: float | None
    confidence: float | None
    attacks: tuple[AttackFigures, ...]
    lower_bound: float | None
    """The largest of the attacks' bounds: all hold together with `confidence`."""
    refuted: bool | None
    utility_said: Wording
    accuracy_private: float | None
    accuracy_private_low: float | None
    accuracy_private_high: float | None
    accuracy_without: float | None
    accuracy_without_low: float | None
    accuracy_without_high: float | None
    accuracy_prior: float | None
    cost_of_privacy: float | None
    """Accuracy without less accuracy with differential privacy."""
    accuracy_finished: Accuracy | None = None
    accuracy_alone: Accuracy | None = None
    accuracy_alone_equal: Accuracy | None = None
    kept: KeptModel | None = None
    kept_said: MaybeWording = None
    """What epsilon does not cover of the kept model; none if the job keeps none."""


Support = Literal["supports", "partly supports", "not provided"]


class Mapping(Frozen):
    """K: one line of a framework, in the project's own words, as the version that made the report saw it."""

    framework: Wording
    reference: Wording
    topic: Wording
    support: Support
    said: Wording
    evidence: Wordings
    """Sections of this report, such as `E` or `H`."""
    source: MaybeWording = None
    """Which version of the framework the line is about; none in reports of earlier versions."""
    checked: MaybeWording = None
    """The day, as YYYY-MM-DD, on which the line was last compared with its source; none as above."""


class Rule(Frozen):
    """One rule of L, and whether the report shows that it was kept."""

    rule: str
    """Its short name."""
    statement: Wording
    state: State
    said: Wording
    evidence: Wordings
    closing: MaybeWording = None
    """What the site can do about it; none if the rule is shown to be kept."""


class SignOff(Frozen):
    """A line that a person signs on paper; the report does not fill it in."""

    role: Wording
    confirms: Wording


class Verdicts(Frozen):
    """L: rule by rule."""

    state: State
    """The worst of the rules."""
    rules: tuple[Rule, ...]
    sign_off: Annotated[tuple[SignOff, ...], WORDING]


class Summary(Frozen):
    """Figures of the first page, for people, with the two parameters that a version chooses: `wrongly`, `most_counted`.

    A verifier computes with the parameters of the report. Their bounds belong to the format: a share of accused people
    below one in 100 would be rounded away on the pages, and a longer count would keep a verifier busy.
    """

    wrongly: Annotated[float, Field(ge=0.01, le=0.5)]
    """The share, in 0..1, of people who did not take part and are accused nevertheless ..."""
    found: float | None
    """... and the largest share, in 0..1, of those who did whom anybody finds by what this job released; none without a
    claim."""
    found_in_all: float | None
    """The same by what all jobs of the site released under differential privacy; none if it is not bounded."""
    jobs_that_fit: int | None
    """How many more jobs with this one's charges the limit allows, counted to `most_counted`; none without a limit."""
    most_counted: Annotated[int, Field(ge=1, le=100)]


class Sections(Frozen):
    """A to L as they follow from the evidence, and M."""

    identity: ReportIdentity
    claim: Claim
    unit: Unit
    mechanism: ExecutedMechanism
    accounting: Accounting
    outside: Annotated[tuple[Outside, ...], WORDING]
    trust: Trust
    egress: Egress
    data_handling: DataHandling
    empirical: Empirical
    mappings: Annotated[tuple[Mapping, ...], WORDING]
    verdicts: Verdicts
    never: Wordings
    """M: what is never in a report."""
    summary: Summary | None = None
    """None in reports of earlier versions."""


class Report(Frozen):
    """One site's report on one job."""

    format: Literal["medfedvqa.privacy-report/1"] = FORMAT
    sections: Sections
    evidence: ReportEvidence
