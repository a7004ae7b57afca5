"""The outcome of one run of a benchmark, by site, without any text of a row."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from statistics import fmean


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
    closed: dict[str, list[bool]] = field(default_factory=dict)
    """Whether the question of each test row is closed; a site that tests closed questions only is absent."""
    seed: int = 0
    cohort: int = 0
    """The first seed with the same test rows. Runs of one cohort are about the same patients."""

    @property
    def validation_curve(self) -> list[float]:
        """The accuracy on validation rows after each round, as the mean over sites; empty without such accuracies."""
        return [fmean(sites) for sites in zip(*self.validated.values(), strict=False)]


def of_kind(outcomes: Sequence[RunOutcome], closed: bool) -> list[RunOutcome]:
    """The outcomes on the test rows whose question is closed, or on the others: empty if no site has such rows.

    A site without such rows in one of the outcomes is left out of all, so that means over sites are of the same sites.
    """
    sites = [
        site
        for site in (outcomes[0].right if outcomes else ())
        if all(any(_rows_of_kind(outcome, site, closed)) for outcome in outcomes)
    ]
    return [_restricted(outcome, sites, closed) for outcome in outcomes] if sites else []


def _rows_of_kind(outcome: RunOutcome, site: str, closed: bool) -> list[bool]:
    """Whether each of the site's test rows has a question of this kind."""
    kinds = outcome.closed.get(site, [True] * len(outcome.right[site]))
    return [kind is closed for kind in kinds]


def _restricted(outcome: RunOutcome, sites: Sequence[str], closed: bool) -> RunOutcome:
    right, patients, personal = dict[str, list[bool]](), dict[str, list[int]](), dict[str, list[bool]]()
    for site in sites:
        chosen = _rows_of_kind(outcome, site, closed)
        right[site] = list(compress(outcome.right[site], chosen))
        patients[site] = numbered_patients(compress(outcome.patients[site], chosen))
        if site in outcome.personal:
            personal[site] = list(compress(outcome.personal[site], chosen))
    kinds = {} if closed else {site: [False] * len(rows) for site, rows in right.items()}
    return replace(outcome, right=right, patients=patients, personal=personal, closed=kinds)


def numbered_patients(patients: Iterable[int]) -> list[int]:
    """Patients numbered from 0 in order of first appearance: equal for equal test rows, whatever else a site holds."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(patient, len(numbers)) for patient in patients]
