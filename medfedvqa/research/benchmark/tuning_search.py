"""A search over learning rate and weight decay by successive halving, on the validation rows of one seed.

All candidates train for a few rounds. The better half starts again with about twice as many, until two are compared at
the full number. Source: K. Jamieson and A. Talwalkar, "Non-stochastic Best Arm Identification", AISTATS 2016, alg. 1.
No test row is read. The choice depends on private data, so it suits only runs without differential privacy.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, Field

from medfedvqa.atomic_files import write_whole
from medfedvqa.bounds import Rate, WeightDecay
from medfedvqa.checking import checked
from medfedvqa.core import method_type
from medfedvqa.errors import ConfigError
from medfedvqa.research.benchmark.grid import OUTCOME, Grid, run
from medfedvqa.research.benchmark.systems import WITHOUT, System

FORMAT = 1
SEED = 0
"""The seed of all runs of a search."""
RATES, DECAYS = (3e-4, 1e-3, 3e-3, 1e-2), (0.0, 0.05)


@dataclass(frozen=True)
class Candidate:
    """One choice of the searched options."""

    learning_rate: float
    weight_decay: float


@dataclass(frozen=True)
class Trial:
    """The run of a candidate for some rounds."""

    candidate: Candidate
    rounds: int
    validation: float
    """Validation accuracy in 0..1, as the mean over sites, in the round of the model that each site tests."""
    seconds: float
    """Processor seconds of the whole run, all sites."""


class Choice(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """The options that won for a system."""

    learning_rate: Rate
    weight_decay: WeightDecay


class Tuned(BaseModel, frozen=True, extra="ignore", allow_inf_nan=False):
    """The part of `tuned.json` that a benchmark reads; the rest says how the choices were made."""

    format: int = Field(ge=1, le=FORMAT)
    data: str
    backbone: str
    choices: dict[str, Choice]
    """By the system's label."""


def candidates(rates: Sequence[float], decays: Sequence[float]) -> tuple[Candidate, ...]:
    """All pairs. Raises `ConfigError` for a value out of the options' range, or one given twice."""
    pairs = tuple(Candidate(rate, decay) for rate, decay in product(rates, decays))
    for pair in pairs:
        checked(Choice, asdict(pair), "the searched learning rates and weight decays")
    if not pairs or len(set(pairs)) < len(pairs):
        raise ConfigError("a search needs at least one learning rate and one weight decay, each named once")
    return pairs


def halvings(count: int, rounds: int) -> list[tuple[int, int]]:
    """(candidates, rounds) of each step. For `count` 8 and `rounds` 30: (8, 7), (4, 15), (2, 30)."""
    counts = [count]
    while counts[-1] > 2:
        counts.append((counts[-1] + 1) // 2)
    last = len(counts) - 1
    return [(number, max(1, rounds // 2 ** (last - step))) for step, number in enumerate(counts)]


def halve(
    pairs: Sequence[Candidate], rounds: int, train: Callable[[Sequence[Candidate], int], Sequence[Trial]]
) -> list[list[Trial]]:
    """The trials of each step, best first; ties keep their order. The last step's first trial is the winner."""
    steps: list[list[Trial]] = []
    left = list(pairs)
    for count, number in halvings(len(left), rounds):
        trials = sorted(train(left[:count], number), key=lambda trial: -trial.validation)
        steps.append(trials)
        left = [trial.candidate for trial in trials]
    return steps


def search(
    grid: Grid, pairs: Sequence[Candidate], workers: int, watch: Callable[[Trial, System], None]
) -> dict[str, Any]:
    """Searches for each system of the grid, and writes `tuned.json` after each. Runs in the folder are not repeated.

    `watch` gets every trial once its step is over. Raises `ConfigError`, also for a system without validation
    accuracy, or under differential privacy.
    """
    found: dict[str, list[list[Trial]]] = {}
    record: dict[str, Any] = {}
    for system in grid.systems:

        def train(left: Sequence[Candidate], rounds: int, system: System = system) -> list[Trial]:
            trials = list(_trained(grid, system, left, rounds, workers))
            for trial in trials:
                watch(trial, system)
            return trials

        found[system.label] = halve(pairs, full_rounds(grid, system), train)
        record = _record(grid, pairs, found)
        write_whole(grid.out / "tuned.json", json.dumps(record, indent=2).encode() + b"\n")
    return record


def full_rounds(grid: Grid, system: System) -> int:
    """The rounds of the system's whole training. Raises `ConfigError` if its method has no rate to search for."""
    fields = method_type(system.method).config_type.model_fields
    if not {"rounds", "learning_rate", "weight_decay"} <= fields.keys():
        raise ConfigError(
            f"'{system.label}' has no learning rate, weight decay and rounds to search over: leave it out"
        )
    rounds: int = system.with_budget(dict(grid.budget)).get("rounds", fields["rounds"].default)
    return rounds


def _trained(grid: Grid, system: System, left: Sequence[Candidate], rounds: int, workers: int) -> Iterator[Trial]:
    """The trials of these candidates, each from its first round."""
    systems = {pair: _as_system(system, pair, rounds) for pair in left}
    step = replace(grid, systems=tuple(systems.values()), seeds=1)
    for _ in run(step, workers):
        pass
    for pair, each in systems.items():
        outcome = json.loads((step.folder(each, SEED) / OUTCOME).read_text(encoding="utf-8"))["outcome"]
        if not outcome["validated"]:
            raise ConfigError(f"'{system.label}' has no validation accuracy by round: no search can compare it")
        keeps_best = each.with_budget(dict(grid.budget)).get("keep") == "best"
        tested = fmean(max(curve) if keeps_best else curve[-1] for curve in outcome["validated"].values())
        yield Trial(pair, rounds, tested, outcome["seconds"] * rounds)


def _as_system(system: System, pair: Candidate, rounds: int) -> System:
    """The system with these options, under its own label and so in its own folder."""
    label = f"{system.label} rate {pair.learning_rate!r} decay {pair.weight_decay!r} rounds {rounds}"
    return replace(system, label=label, options={**system.options, **asdict(pair), "rounds": rounds})


def _record(grid: Grid, pairs: Sequence[Candidate], found: Mapping[str, list[list[Trial]]]) -> dict[str, Any]:
    """The content of `tuned.json`: choices, every trial, and the processor seconds that they took."""
    return {
        "format": FORMAT,
        "data": grid.reader,
        "questions": grid.questions,
        "backbone": grid.job(grid.systems[0], SEED).backbone,
        "seed": SEED,
        "sites": list(grid.sites),
        "budget": dict(grid.budget),
        "space": [asdict(pair) for pair in pairs],
        "choices": {label: asdict(steps[-1][0].candidate) for label, steps in found.items()},
        "seconds": {label: sum(t.seconds for step in steps for t in step) for label, steps in found.items()},
        "trials": {label: [[asdict(t) for t in step] for step in steps] for label, steps in found.items()},
    }


def read_tuned(path: Path) -> Tuned:
    """The choices in a file of `medfedvqa tune`. Raises `ConfigError`."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        raise ConfigError("the file of --tuned is missing or is not JSON: `medfedvqa tune` writes tuned.json") from None
    fields = content if isinstance(content, dict) else {}
    if isinstance(fields.get("format"), int) and fields["format"] > FORMAT:
        raise ConfigError("the file of --tuned was written by a newer version of this software: use that version")
    return checked(Tuned, fields, "the file of --tuned")


def with_choices(systems: Sequence[System], tuned: Tuned, data: str, backbone: str) -> tuple[System, ...]:
    """The systems with the options that won for them, or for their family.

    A system without the picture takes the options of the same system with it. Raises `ConfigError` for other data,
    another backbone, or a system without a choice.
    """
    if (tuned.data, tuned.backbone) != (data, backbone):
        raise ConfigError(f"--tuned is of a search on {tuned.data} with backbone {tuned.backbone}: search on this data")
    choices = [
        tuned.choices.get(system.label.removesuffix(WITHOUT)) or tuned.choices.get(system.family) for system in systems
    ]
    missing = [system.label for system, choice in zip(systems, choices, strict=True) if choice is None]
    if missing:
        raise ConfigError(f"--tuned has no values for {', '.join(missing)}: search for them, or leave them out")
    return tuple(
        replace(system, options=system.options | choice.model_dump())
        for system, choice in zip(systems, choices, strict=True)
        if choice is not None
    )
