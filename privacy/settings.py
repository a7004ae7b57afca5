"""A job's settings of differential privacy, the same at every site, and a site's statements on its decisions."""

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Literal

from pydantic import BaseModel, Field, field_validator

from privacy.accounting import calibrate
from privacy.errors import AccountingError, SettingsError
from privacy.mechanisms import CountsMechanism, DPEvent, Use, counts_mechanisms
from privacy.mechanisms.sampled_gaussian import SampledGaussian
from privacy.mechanisms.shared_gaussian import MOST_SITES, SharedGaussian, site_share

MOST_EPSILON = 1e5
MOST_LEVEL = 1e6
"""The largest noise multiplier and clipping norm."""
LEAST_CLIP = 1e-6
"""The smallest clipping norm, so that single precision holds every step of its grid."""
LEAST_RATE = 1e-5
"""Smallest sampling rate: an epoch takes one over the rate steps."""
MOST_PATIENTS = 10_000_000
MOST_ROWS = 4_096
"""The largest number of rows of a patient, and of patients in memory at once."""


@dataclass(frozen=True)
class Cost:
    """The privacy cost of a task, or of a whole job, in steps and counts."""

    steps: int = 0
    """Steps of training."""
    counts: int = 0
    """Pairs of counts that are released."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.steps + other.steps, self.counts + other.counts)


@dataclass(frozen=True)
class NoiseLevels:
    """The noise of a job."""

    gradients: float
    """Standard deviation on the sum of clipped patient gradients in each step, in units of `clip`; 0 without steps."""
    counts: CountsMechanism | None = None
    """The mechanism that releases each pair of counts, with its parameter; None where none is released."""
    sharers: int = 1
    """The least number of honest sites whose noise is in a sum of gradients."""

    @property
    def of_one_site(self) -> float:
        """The standard deviation of one site's noise on its sum, in units of `clip`."""
        return site_share(self.gradients, self.sharers)


@dataclass(frozen=True)
class DPSettings:
    """Differential privacy by patient, under adding or removing all rows of one patient.

    No setting depends on a site's data, so that epsilon does not either. Give `epsilon`, or `noise` and `count_noise`.
    """

    epsilon: float | None = None
    """The most that the whole job may cost each patient, in nats at `delta`; the noise is calibrated to it."""
    noise: float | None = None
    """Noise multiplier of the gradients, instead of a target."""
    count_noise: float | None = None
    """Multiplier of Gaussian noise on the counts behind each released accuracy, instead of a target."""
    count_share: float = 0.1
    """Share of `epsilon` that the accuracies of the whole job may cost by themselves."""
    delta: float = 1e-5
    """The delta of the whole job: below one over the number of patients at every site."""
    unit: Literal["patient"] = "patient"
    """The privacy unit; nothing smaller is offered."""
    clip: float = 1.0
    """Largest norm of one patient's gradient in a step (C)."""
    sample_rate: float = 0.25
    """Probability of each patient to take part in a step (q)."""
    expected_patients: int = 32
    """The divisor of the noisy sum: a public figure in place of the site's own number of patients times q."""
    patient_rows: int = 8
    """Most rows of one patient in a step."""
    physical_patients: int = 32
    """Patients whose gradients are in memory at once; larger samples are accumulated."""
    sharers: int = 1
    """The fewest honest sites that share the noise of a masked sum; each adds 1/sqrt of it (1: each adds all)."""
    colluders: int = 0
    """Further sites that may tell the server their noise. A sum of fewer than `sharers` + `colluders` is not opened."""
    engine: Literal["own", "opacus"] = "own"
    """The code that clips, adds and scales patients' gradients: this project's, or Opacus' `DPOptimizer`, which needs
    memory for each patient's whole gradient. Noise and unit are the same."""

    def __post_init__(self) -> None:
        choices = [value is not None for value in (self.epsilon, self.noise, self.count_noise)]
        if choices not in ([True, False, False], [False, True, True]):
            raise SettingsError("differential privacy needs either 'epsilon', or both 'noise' and 'count_noise'")
        levels = [value for value in (self.noise, self.count_noise, self.clip) if value is not None]
        if not all(0 < value <= MOST_LEVEL for value in levels):
            raise SettingsError("'noise', 'count_noise' and 'clip' must be positive numbers, a million at most")
        if self.clip < LEAST_CLIP:
            raise SettingsError("'clip' must be at least a millionth: the noise is sampled on a grid finer than 'clip'")
        if self.epsilon is not None and not 0 < self.epsilon <= MOST_EPSILON:
            raise SettingsError("'epsilon' must be a positive number, a hundred thousand at most")
        if not LEAST_RATE <= self.sample_rate <= 1 or not 0 < self.delta < 1 or not 0 < self.count_share < 1:
            raise SettingsError("'sample_rate' must lie in [0.00001, 1], 'delta' and 'count_share' between 0 and 1")
        if not 1 <= self.expected_patients <= MOST_PATIENTS:
            raise SettingsError("'expected_patients' must be at least 1 and at most ten million")
        if not all(1 <= count <= MOST_ROWS for count in (self.patient_rows, self.physical_patients)):
            raise SettingsError("'patient_rows' and 'physical_patients' must be at least 1 and at most 4096")
        if self.sharers < 1 or self.colluders < 0 or self.sharers + self.colluders > MOST_SITES:
            raise SettingsError(
                f"'sharers' must be at least 1, 'colluders' at least 0, and their sum at most {MOST_SITES}"
            )
        if self.colluders and self.sharers == 1:
            raise SettingsError("each site adds all noise by itself, so nobody can collude: leave out 'colluders'")

    @property
    def is_shared(self) -> bool:
        """Whether the sites of a sum share the noise of its gradients."""
        return self.sharers > 1

    def levels(self, job: Cost) -> NoiseLevels:
        """The noise in the settings, or the least that keeps the whole job within the target.

        Counts get the mechanism with the smallest deviation. It is deterministic: server and sites get the same noise.
        Raises `AccountingError` if no noise suffices.
        """
        if self.noise is not None and self.count_noise is not None:
            return NoiseLevels(self.noise, SampledGaussian.for_counts(self.count_noise), self.sharers)
        assert self.epsilon is not None
        counts, steps = self._counts(job), Cost(steps=job.steps)
        if not job.steps:
            return NoiseLevels(0.0, counts)
        count_events = self.events(Cost(counts=job.counts), NoiseLevels(0.0, counts))

        def planned(noise: float) -> list[DPEvent]:
            return [*self.events(steps, NoiseLevels(noise, sharers=self.sharers)), *count_events]

        return NoiseLevels(calibrate(self.epsilon, self.delta, planned), counts, self.sharers)

    def _counts(self, job: Cost) -> CountsMechanism | None:
        """The mechanism with the smallest deviation at the share of `epsilon` that counts may cost."""
        if not job.counts or self.epsilon is None:
            return None
        share = self.count_share * self.epsilon if job.steps else self.epsilon
        offers, failure = [], AccountingError("no mechanism releases counts")
        for kind in counts_mechanisms():
            try:
                offers.append(_least(kind, share, self.delta, job.counts))
            except AccountingError as error:
                failure = error
        if not offers:
            raise failure
        return min(offers, key=lambda offer: offer.deviation)

    def events(self, cost: Cost, levels: NoiseLevels) -> tuple[DPEvent, ...]:
        """The events of this cost, for the accountants to compose."""
        events: list[DPEvent] = []
        if cost.steps and self.is_shared:
            shared = self.sharers, self.colluders, cost.steps, Use.GRADIENTS
            events.append(SharedGaussian(self.sample_rate, levels.of_one_site, *shared))
        elif cost.steps:
            events.append(SampledGaussian(self.sample_rate, levels.gradients, cost.steps, Use.GRADIENTS))
        if cost.counts:
            if levels.counts is None:
                raise SettingsError("the job's plan has no noise for the released counts: include them in its cost")
            events.append(levels.counts.times(cost.counts))
        return tuple(events)


def _least(kind: type[CountsMechanism], target: float, delta: float, releases: int) -> CountsMechanism:
    """The mechanism for one release, with the least noise that keeps `releases` of them within the target."""
    return kind.for_counts(calibrate(target, delta, lambda noise: [kind.for_counts(noise).times(releases)]))


MAX_WORDS = 20_000
"""The most characters of a text in `Governance`."""
Words = Annotated[str, Field(min_length=1, max_length=MAX_WORDS)]


class Governance(BaseModel, frozen=True, extra="forbid"):
    """A site's statements on its own decisions, in its own words; nothing verifies them."""

    purpose: Words | None = None
    controller: Words | None = None
    contact: Words | None = None
    legal_basis: Words | None = None
    retention: Words | None = None
    epsilon_decided_by: Words | None = None
    epsilon_reason: Words | None = None
    permitted_use: Words | None = None
    review_date: Words | None = None

    @field_validator("review_date", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        """A date as text, because YAML parses unquoted dates."""
        return value.isoformat() if isinstance(value, date) else value
