"""The interface of a mechanism, and the registry that finds one by its name."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from privacy.analysis import PrivacyLoss
from privacy.errors import AccountingError, NewerMechanism

if TYPE_CHECKING:
    from privacy.noise import Randomness

LEAST_NOISE, MOST_NOISE = 1e-2, 1e4
"""The range of calibrated noise, in units of the sensitivity. Larger noise counts as the second, which never
understates epsilon."""
UNITS = 2**20
"""Counts are whole numbers of 1/UNITS of a patient, so that a patient adds at most 1 without any rounding."""
UNNAMED = "sampled_gaussian"
"""The mechanism of records that name none: versions up to 0.1.0 had no other."""


class Use(StrEnum):
    """The value that a mechanism was applied to."""

    GRADIENTS = "gradients"
    COUNTS = "counts"

    @property
    def words(self) -> str:
        """The noisy value, for reports."""
        return _USES[self][0]

    @property
    def bound(self) -> str:
        """The most by which one patient changes the value, for reports: a setting of the job, or a number."""
        return _USES[self][1]


_USES = {
    Use.GRADIENTS: ("sum of clipped gradients of patients", "clip"),
    Use.COUNTS: ("set of counts over patients", "1"),
}


class DPEvent(ABC):
    """A mechanism with its parameters, applied `steps` times for one `use`.

    Subclasses are frozen dataclasses. Their fields other than `steps` and `use` are the parameters, numbers.
    `use` is None in records of versions that did not note it. Raises `AccountingError` for unfit parameters.
    """

    mechanism: ClassVar[str]
    """Its name in records."""
    rdp_source: ClassVar[str]
    """The source of its Renyi divergence."""
    norm: ClassVar[str]
    """The norm in which its sensitivity is measured, for reports."""
    steps: int
    use: Use | None
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "mechanism" in vars(cls):
            _REGISTRY[cls.mechanism] = cls

    @property
    def parameters(self) -> dict[str, float]:
        """The mechanism's parameters, by field name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in ("steps", "use")}

    def times(self, steps: int) -> Self:
        """The same mechanism, applied this many times."""
        return replace(self, steps=steps)

    def to_dict(self) -> dict[str, Any]:
        """The event as plain values that JSON stores without loss."""
        use = None if self.use is None else self.use.value
        return {"mechanism": self.mechanism, "use": use, **self.parameters, "steps": self.steps}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "DPEvent":
        """The event that `to_dict` wrote. Raises `AccountingError` on a missing, unknown or unfit value."""
        record = dict(values)
        if "mechanism" not in record and "use" not in record:
            record |= {"mechanism": UNNAMED, "use": None}
        name = record.pop("mechanism", None)
        kind = _REGISTRY.get(name) if isinstance(name, str) else None
        if kind is None and not isinstance(name, str):
            raise AccountingError("an event must have the name of its mechanism: add it")
        if kind is None or set(record) > {member.name for member in fields(kind)}:
            raise NewerMechanism
        if set(record) != {member.name for member in fields(kind)}:
            raise AccountingError("an event must have exactly the fields of its mechanism: add or remove fields")
        if record["use"] is not None:
            if not isinstance(record["use"], str):
                raise AccountingError("the use of an event must be a text or null: correct it")
            if record["use"] not in list(Use):
                raise NewerMechanism
            record["use"] = Use(record["use"])
        return kind(**record)

    def against(self, colluders: int) -> Self:
        """The event for an observer who knows the noise of `colluders` sites; differs only for shared noise."""
        return self

    @property
    def observer(self) -> str:
        """The observer that the claim names; empty if it is everybody outside of the site."""
        return ""

    @property
    @abstractmethod
    def accounted(self) -> Self:
        """One step for the accountants: without its `use`, and with noise capped at the most that they count."""

    @property
    def is_accountable(self) -> bool:
        """Whether an accountant can bound the event's epsilon; if none can, epsilon is infinite."""
        return True

    @property
    def pure_epsilon(self) -> float:
        """Epsilon of one step at delta 0, infinite if there is none."""
        return math.inf

    @property
    def slack(self) -> float:
        """Nats to add to the accountants' figure for one step: the log of the relative error of its probabilities."""
        return 0.0

    @abstractmethod
    def rdp(self, orders: Sequence[float]) -> NDArray[np.float64]:
        """The Renyi divergence of one step at these orders."""

    @abstractmethod
    def loss(self, least: float, most: float) -> PrivacyLoss:
        """The privacy loss of one step, given that it lies between `least` and `most`."""

    @property
    @abstractmethod
    def mu_squared(self) -> float:
        """The square of Gaussian DP's mu of all its steps. May raise `ArithmeticError`."""

    @property
    @abstractmethod
    def mu_is_exact(self) -> bool:
        """Whether mu is exact, and not the central limit approximation."""

    @property
    @abstractmethod
    def sampler(self) -> str:
        """How a report describes the patients who take part in a step."""

    @property
    @abstractmethod
    def noise_words(self) -> str:
        """The noise and its figure, in words for reports."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """The kind of noise and what it is added to, for the claim."""

    @property
    def applied_to(self) -> str:
        """What the noise is added to, in words for reports."""
        return self.use.words if self.use else "sum over patients (an earlier version, which noted no use)"

    @property
    def sensitivity(self) -> str:
        """The most that one patient changes the value before noise, for reports."""
        return f"{self.use.bound if self.use else 'not recorded'} ({self.norm})"


class CountsMechanism(DPEvent):
    """A mechanism that can release counts to which each patient adds at most 1, over all of them together."""

    @classmethod
    @abstractmethod
    def for_counts(cls, noise: float) -> Self:
        """One release with this noise, in the mechanism's own parameter; more noise never costs more."""

    @property
    @abstractmethod
    def deviation(self) -> float:
        """The standard deviation of the noise on each count, in patients."""

    @abstractmethod
    def noisy(self, counts: Sequence[int], randomness: "Randomness") -> tuple[float, ...]:
        """Adds noise to counts in 1/UNITS of a patient; returns noisy numbers of patients."""


_REGISTRY: dict[str, type[DPEvent]] = {}


def counts_mechanisms() -> list[type[CountsMechanism]]:
    """All mechanisms that can release counts, sorted by name."""
    return [kind for _, kind in sorted(_REGISTRY.items()) if issubclass(kind, CountsMechanism)]


def merge_steps(events: Iterable[DPEvent]) -> tuple[DPEvent, ...]:
    """The events in the order of first occurrence, with events that differ only in `steps` merged."""
    steps: dict[DPEvent, int] = {}
    for event in events:
        once = event.times(1)
        steps[once] = steps.get(once, 0) + event.steps
    return tuple(once.times(count) for once, count in steps.items())


def check_steps(steps: object) -> None:
    """Raises `AccountingError` unless `steps` is a whole number of at least 1."""
    if type(steps) is not int or steps < 1:
        raise AccountingError("an event must have at least one step: give a whole number from 1")


def is_number(value: object) -> bool:
    """Whether it is a finite int or float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
