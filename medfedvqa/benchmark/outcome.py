"""The outcome of one run of a benchmark, by site, without any text of a row."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of one run, by site. It stays on the machine that runs the benchmark."""

    right: dict[str, list[bool]]
    """Whether each test row is answered right."""
    validated: dict[str, list[float]]
    """The accuracy on validation rows after each round; empty if the method does not measure it."""
    patients: dict[str, list[int]]
    """The patient of each test row, numbered within the site's test rows from 0, in order of first appearance."""
    bytes_up: float
    """Bytes per site and round."""
    bytes_down: float
    seconds: float
    """Processor seconds per round, with evaluation and without decoding pictures."""
    parameters: int
    """The number of parameters that a site trains; 0 without training."""
    personal: dict[str, list[bool]] = field(default_factory=dict)
    """The same as `right` for the site's own model before the last mean; empty if a site has no other model."""
    seed: int = 0
    cohort: int = 0
    """The first seed with the same test rows. Runs of one cohort are about the same patients."""


def numbered_patients(patients: Iterable[int]) -> list[int]:
    """Patients numbered from 0 in order of first appearance: equal for equal test rows, whatever else a site holds."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(patient, len(numbers)) for patient in patients]
