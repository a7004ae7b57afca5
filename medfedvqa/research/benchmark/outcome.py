"""The outcome of one run of a benchmark, by site, without any text of a row."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from statistics import fmean
from typing import Any


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
    types: dict[str, str] = field(default_factory=dict)
    """The letter of the type of each test row's answer, see `ANSWER_TYPES`; empty unless all questions are tested."""
    server: dict[str, Any] = field(default_factory=dict)
    """The counts of the server's own model on public rows, see `ServerScore`; empty if there is none."""
    seed: int = 0
    cohort: int = 0
    """The first seed with the same test rows. Runs of one cohort are about the same patients."""

    @property
    def validation_curve(self) -> list[float]:
        """The accuracy on validation rows after each round, as the mean over sites; empty without such accuracies."""
        return [fmean(sites) for sites in zip(*self.validated.values(), strict=False)]


def of_kind(outcomes: Sequence[RunOutcome], closed: bool) -> list[RunOutcome]:
    """The outcomes on the test rows with a closed question, or with an open one; empty if no site has such rows.

    A site that lacks such rows in one outcome is left out of all, so that all means are over the same sites.
    """
    return _where(outcomes, lambda outcome, site: [kind is closed for kind in _kinds(outcome, site)])


def of_type(outcomes: Sequence[RunOutcome], letter: str) -> list[RunOutcome]:
    """Like `of_kind`, on the test rows whose answer is of this type; empty if an outcome does not say types."""
    return _where(outcomes, lambda outcome, site: [each == letter for each in outcome.types.get(site, "")])


def at_sites(outcomes: Sequence[RunOutcome], sites: Collection[str]) -> list[RunOutcome]:
    """The outcomes at these sites only; empty if none of them is tested."""
    return _where(outcomes, lambda outcome, site: [site in sites] * len(outcome.right[site]))


def _kinds(outcome: RunOutcome, site: str) -> list[bool]:
    return outcome.closed.get(site, [True] * len(outcome.right[site]))


def _where(outcomes: Sequence[RunOutcome], chosen: Callable[[RunOutcome, str], Sequence[bool]]) -> list[RunOutcome]:
    """The outcomes on the test rows for which `chosen`, given an outcome and a site, has a true flag."""
    sites = [
        site
        for site in (outcomes[0].right if outcomes else ())
        if all(any(chosen(outcome, site)) for outcome in outcomes)
    ]
    return [_restricted(outcome, {site: chosen(outcome, site) for site in sites}) for outcome in outcomes if sites]


def _restricted(outcome: RunOutcome, chosen: Mapping[str, Sequence[bool]]) -> RunOutcome:
    kinds = {site: list(compress(_kinds(outcome, site), flags)) for site, flags in chosen.items()}
    return replace(
        outcome,
        right={site: list(compress(outcome.right[site], flags)) for site, flags in chosen.items()},
        patients={site: numbered_patients(compress(outcome.patients[site], f)) for site, f in chosen.items()},
        personal={
            site: list(compress(rows, chosen[site])) for site, rows in outcome.personal.items() if site in chosen
        },
        closed={site: each for site, each in kinds.items() if not all(each)},
        types={site: "".join(compress(each, chosen[site])) for site, each in outcome.types.items() if site in chosen},
    )


def numbered_patients(patients: Iterable[int]) -> list[int]:
    """Patients numbered from 0 in order of first appearance. The numbers depend on the test rows alone."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(patient, len(numbers)) for patient in patients]
