"""Sections A to E of a report: what it is of, what it claims, what ran, and what was charged."""

from typing import Literal

from audits import CodeKind
from privacy.report.report_evidence import Frozen
from privacy.report.wording import MaybeWording, Wording, Wordings


class NamedDigest(Frozen):
    """A tensor that was released last, and the digest of the bytes that were sent; none where it was shared."""

    tensor: str
    round: int | None
    sha256: str | None


class CodeShare(Frozen):
    """A part of the code that ran a job."""

    kind: str
    """`project`, `plug-in`, `dependency`, or `module` for code of no distribution, which has no name."""
    name: str | None
    version: str | None
    sha256: str | None
    """None of code that is in no file."""


class ReportIdentity(Frozen):
    """A: what the report is of."""

    report: str
    """SHA-256 of the evidence, hex."""
    tool: str
    tool_code: str
    created: str
    job: str
    method: str
    site: str
    sites: tuple[str, ...]
    """All of the job, as far as the site knows them."""
    state: Literal["running", "closed", "refused", "expired"]
    """`expired`: the entries that would tell are past their retention."""
    signer: str
    """The site's verifier key."""
    log_origin: str
    log_entries: int
    log_root: str
    """Hex."""
    ledger_records: int
    ledger_head: str | None
    adapter: tuple[NamedDigest, ...]
    backbone: str | None
    backbone_digest: str | None
    code_versions: tuple[str, ...]
    code_digests: tuple[str, ...]
    exchange_digest: str | None
    policy_digest: str | None
    config_digest: str | None
    """SHA-256 of the job's settings as canonical JSON; none without `results.json`."""
    code_parts: tuple[CodeShare, ...] = ()
    """What `code_digests` are made of, as the log names it; empty if the log is from before it did."""

    @property
    def same_code(self) -> object:
        """What sites of one job have in common: dependencies may differ, such as torch with and without CUDA."""
        parts = frozenset(one for one in self.code_parts if one.kind != CodeKind.DEPENDENCY.value)
        return parts or self.code_digests


class Claim(Frozen):
    """B: what is claimed, in one sentence, and what is not."""

    made: bool
    sentence: Wording
    mechanism: MaybeWording
    unit: str | None
    neighbours: MaybeWording
    epsilon: float | None
    """Of the job's charges so far, at `delta`."""
    delta: float | None
    mu: float | None
    mu_is_exact: bool | None
    observer: MaybeWording
    provisional: bool
    """Whether the job may still be charged."""
    not_covered: Wordings


class Bound(Frozen):
    """A figure that bounds what one patient can do, and where it is written."""

    name: str
    value: float | None
    unit: Wording
    meaning: Wording
    source: Wording


class Unit(Frozen):
    """C: who is protected, and the bounds on one patient."""

    unit: str
    record: Wording
    neighbours: Wording
    bounds: tuple[Bound, ...]
    delta_below_cohort: bool | None = None
    """Whether every delta of the ledger's charges is below one over the patients of the largest cohort, as the site
    attests without their number; none if it does not."""


class Parameter(Frozen):
    """A figure of a mechanism."""

    name: str
    value: float


class EventFigures(Frozen):
    """A mechanism with its parameters, and how often it is applied."""

    mechanism: str
    """Its name in the registry of mechanisms."""
    use: str | None
    """What it was applied to; none in charges of versions that did not note it."""
    parameters: tuple[Parameter, ...]
    steps: int


class Mechanism(Frozen):
    """One mechanism of D, summed over the job's charges."""

    event: EventFigures
    applied_to: Wording
    sampler: Wording
    noise: Wording
    sensitivity: Wording
    """The most that one patient changes the value before noise: a setting of the job or a number, and the norm."""


class ExecutedMechanism(Frozen):
    """D: what ran."""

    mechanisms: tuple[Mechanism, ...]
    clip: float | None
    noise_deviation: float | None
    """Of the noise on a step's sum of clipped gradients: multiplier times clip; none if the clip is not known."""
    expected_patients: int | None
    batch_sizes: Wording
    randomness: Wording
    void: bool
    """Whether the noise could be repeated, so that it protects nobody."""
    source: Wording


class ReportCharge(Frozen):
    """One charge of the ledger, with its replay."""

    record: int
    """Position in the ledger."""
    time: str
    job: str
    method: str
    task: str
    round: int
    attempt: int
    settled: bool
    void: bool
    imported: bool
    """Taken over from another ledger, of which no recorded figures are at hand."""
    events: tuple[EventFigures, ...]
    delta: float | None
    job_epsilon_after: float | None
    """As the ledger recorded it."""
    replayed: float | None
    """The same, replayed by both accountants, of which the smaller binds; of other jobs only after the last charge."""
    site_epsilon_after: float | None
    """Of the cohort's worst patient over all jobs, as the ledger recorded it."""
    entries: tuple[int, ...]
    """Entries of the audit log that name this charge."""


class Figures(Frozen):
    """Upper bounds on epsilon at `accounting.delta`; none where an accountant gives no figure."""

    epsilon: float | None
    rdp: float | None
    prv: float | None
    mu: float | None


class Accountant(Frozen):
    """How an epsilon was replayed."""

    name: str
    implementation: Wording
    source: Wording


class JobFigures(Frozen):
    """One job in the ledger."""

    job: str
    method: str
    epsilon: float | None
    charges: int
    reserved: int
    void: bool


class ReportRefusal(Frozen):
    """Something that the site did not do."""

    entry: int
    time: str
    job: str | None
    round: int | None
    task: str | None
    direction: str | None
    reason: str


class Restart(Frozen):
    """A task that began more than once: each attempt is charged."""

    task: str
    round: int
    attempts: int


class Accounting(Frozen):
    """E: what was charged, and what that comes to."""

    delta: float | None
    charges: tuple[ReportCharge, ...]
    """Of all jobs of this site, in the ledger's order: the course of the budget, by job."""
    accountants: tuple[Accountant, ...]
    job: Figures | None
    """This job's charges."""
    outside: Figures | None = None
    """The same against a server with which no other site colludes, where sites share noise."""
    projected: Figures | None
    """This job's charges with what it has reserved and not yet begun."""
    reserved_tasks: int
    spent: Figures | None
    """All jobs, of a patient who was in every one of them: at least as much as any has."""
    authorised: Figures | None
    """The same with all that is reserved."""
    limit: float | None
    limit_per_job: float | None
    remaining: float | None
    """Limit less what is authorised, not below 0."""
    refusals: tuple[ReportRefusal, ...]
    restarts: tuple[Restart, ...]
    jobs: tuple[JobFigures, ...]
    """This job and all earlier and other ones."""
