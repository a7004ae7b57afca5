"""Turns the results of one setting into rows of a table, and names the row that each is compared with."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from medfedvqa.errors import ConfigError
from medfedvqa.public_answers import ANSWER_TYPES
from medfedvqa.research.benchmark.outcome import RunOutcome, at_sites, of_kind, of_type
from medfedvqa.research.benchmark.results_file import Result
from medfedvqa.research.benchmark.statistics import SeedSummary, average, paired

PERSONAL = " (personal)"
"""The suffix of the label of a row that scores the sites' own models before the last mean."""


@dataclass(frozen=True)
class Comparison:
    """Systems on the same test rows, under the same settings."""

    setting: Mapping[str, Any]
    """See `Result.setting`."""
    rows: Mapping[str, Sequence[RunOutcome]]
    """The outcomes of each system by label, in order of seeds."""
    baselines: frozenset[str]
    """The labels of the baselines."""
    alone: Mapping[str, str]
    """The label of the same model without the other sites, by label."""
    without_picture: Mapping[str, str]
    """The label of the same system without the picture, by label."""
    seconds: float
    """Processor seconds of all runs, without decoding pictures."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The options that each system ran with, by label; none for answers without training."""
    unseen: tuple[str, ...] = ()
    """The sites that never train and test the others' last mean."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The tested sites."""
        return tuple(self.setting["sites"])

    @property
    def reference(self) -> str:
        """The label of the baseline with the highest average accuracy. Raises `ConfigError` without a baseline."""
        if not self.baselines:
            raise ConfigError("the results hold no baseline to compare with")
        return max(
            (label for label in self.rows if label in self.baselines), key=lambda label: average(self.rows[label]).mean
        )

    @cached_property
    def questions(self) -> Literal["closed", "open", "all"]:
        """The kinds of the tested questions."""
        closed, open_ = (all(of_kind(runs, kind) for runs in self.rows.values()) for kind in (True, False))
        return "all" if closed and open_ else "open" if open_ else "closed"

    def averages(self, label: str) -> dict[str, SeedSummary]:
        """A row's mean accuracies over sites, by heading: first on each part of the test rows, then on all of them.

        The parts are: closed and open questions, if both are tested; the types of answers, if the results have them;
        and training and unseen sites, if some sites never train.
        """
        runs = self.rows[label]
        parts = self._by_type(runs) | self._by_training(runs)
        if self.questions != "all":
            return parts | {"average": average(runs)}
        kinds = {"closed": average(of_kind(runs, True)), "open": average(of_kind(runs, False))}
        return kinds | parts | {"together": average(runs)}

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types of answers that occur in every row; empty if some results have no types."""
        return tuple(
            name for name, letter in ANSWER_TYPES.items() if all(of_type(runs, letter) for runs in self.rows.values())
        )

    def _by_type(self, runs: Sequence[RunOutcome]) -> dict[str, SeedSummary]:
        return {name: average(of_type(runs, ANSWER_TYPES[name])) for name in self.types}

    def _by_training(self, runs: Sequence[RunOutcome]) -> dict[str, SeedSummary]:
        if not self.unseen:
            return {}
        seen = [site for site in self.sites if site not in self.unseen]
        return {"seen": average(at_sites(runs, seen)), "unseen": average(at_sites(runs, self.unseen))}

    def pair(self, label: str, others: Mapping[str, str]) -> str | None:
        """The row that `others` names for this one, if both have outcomes of a common seed."""
        other = others.get(label, "")
        present = other in self.rows and paired(self.rows[label], self.rows[other])
        return other if present else None


def compared(results: Iterable[Result]) -> Comparison:
    """Compares results of one setting. A system with personal models has two rows.

    Raises `ConfigError` if results of one cohort test different rows.
    """
    ordered = sorted(results, key=lambda result: result.seed)
    by_label: dict[str, list[Result]] = {}
    for result in ordered:
        by_label.setdefault(result.system, []).append(result)
    _check_rows(ordered)
    rows: dict[str, list[RunOutcome]] = {}
    baselines, alone, blind = set(), dict[str, str](), dict[str, str]()
    for label, each in by_label.items():
        outcomes = [result.outcome for result in each]
        labels = [label]
        rows[label] = [replace(outcome, personal={}) for outcome in outcomes]
        if all(outcome.personal for outcome in outcomes):
            labels.append(label + PERSONAL)
            rows[label + PERSONAL] = [
                replace(outcome, right=outcome.personal, personal={}, validated={}) for outcome in outcomes
            ]
        for row in labels:
            alone[row] = each[0].alone
            blind[row] = each[0].without_picture and each[0].without_picture + row.removeprefix(label)
        baselines |= set(labels) if each[0].baseline else set()
    seconds = sum(result.processor_seconds for result in ordered)
    unseen = dict.fromkeys(site for result in ordered for site in result.options.get("unseen", ()))
    ran = {label: each[0].options for label, each in by_label.items()}
    return Comparison(ordered[0].setting, rows, frozenset(baselines), alone, blind, seconds, ran, tuple(unseen))


def _check_rows(results: Sequence[Result]) -> None:
    tested: dict[tuple[int, str], tuple[tuple[int, ...], str]] = {}
    for result in results:
        for site, each in result.sites.items():
            rows = each.patients, each.closed
            if tested.setdefault((result.cohort, site), rows) != rows:
                raise ConfigError(f"results of the site '{site}' test different rows: take those of one data set only")
