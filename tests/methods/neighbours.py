"""Neighbouring sites, one with a patient more than the other, and what each private step makes of them.

Sums and draws are taken where they are made, in `PrivateStep` and `PatientSampler`, so that whatever a method does
before that takes part.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from audits import TaskSpec
from medfedvqa.core import Method, Site, Tensors
from medfedvqa.data import SiteData, Split, VQAData, build_site, partition
from medfedvqa.models import Backbone
from privacy import PatientSampler, PrivateStep, Randomness, RepeatableRandomness

SEED = 0
"""The seed of the job, which is public."""
TOWARDS_OTHERS = np.float32(1.02)
"""What a server sends is a little larger than what the site sent: the other sites are elsewhere."""

Draw = Mapping[str, tuple[int, ...]]
"""By the key of each patient in a step: its rows, numbered among its own training rows."""
Values = tuple[torch.Tensor, ...]
"""By parameter, in the order in which the step has them."""


@dataclass(frozen=True)
class Step:
    """One private step."""

    sums: Values
    """The clipped gradients of all patients together, before noise."""
    rounded: Values
    """The same on the grid of the noise."""
    released: Values
    """The same with noise, divided by a public figure."""
    drawn: Draw


@dataclass(frozen=True)
class Transcript:
    """What a site's handlers did in the training tasks of a job."""

    steps: tuple[Step, ...]
    received: tuple[Tensors, ...]
    """The message from the server, by task."""


@dataclass(frozen=True)
class Move:
    """What one patient changes in one step, when both runs begin it from the same values."""

    distance: float
    """Between the two sums before noise, over all parameters together, in units of C."""
    rounded_distance: float
    """The same between the sums on the grid of the noise, to which it is added."""
    drawn: bool
    """Whether the patient is in the step."""
    others: int
    """How many other patients are in it."""
    others_alike: bool
    """Whether the other patients in it, and their rows, are the same in both runs."""


@dataclass
class Neighbours:
    """A site, and the same site without all rows of any one of its patients."""

    rows: VQAData
    organ: str
    backbone: Backbone
    split: Split = Split()
    _sites: dict[str | None, Site] = field(default_factory=dict)
    _frozen: dict[tuple[str | None, str, str], dict[object, Any]] = field(default_factory=dict)

    @property
    def patients(self) -> tuple[tuple[str, ...], ...]:
        """The keys of the patients with rows to train on, to validate on and to test on, in the order of the rows."""
        parts = partition(self.rows, self.organ, self.split)
        return tuple(
            tuple(dict.fromkeys(row.patient for row in part)) for part in (parts.train, parts.validate, parts.test)
        )

    def site(self, without: str | None = None) -> Site:
        """The site with everybody, or without one patient."""
        if without not in self._sites:
            left = replace(self.rows, rows=[row for row in self.rows.rows if row.patient != without])
            data = build_site(left, self.organ, self.split)
            self._sites[without] = Site(self.organ, data, self.backbone, "cpu", SEED)
        return self._sites[without]

    def contents(self, without: str | None = None) -> dict[str, Any]:
        """By the key of each patient: the question and the answer's number of each of its rows, part by part."""
        data = self.site(without).data
        return {key: _rows_of(data, number) for number, key in enumerate(data.patients)}

    def run(
        self,
        method: Method,
        without: str | None = None,
        after: Transcript | None = None,
        randomness: Randomness | None = None,
        share_of_noise: float = 1.0,
    ) -> Transcript:
        """The method's training tasks at the site; each step goes on from what was released `after`, if given.

        `randomness`: the mechanism's, the same in every run if None. `share_of_noise`: how much of it is added, for
        tests that have to fail. What a method freezes is computed once for each site and configuration.
        """
        site = self.site(without)
        # One dictionary for all methods would mix them up: they keep different things under the same name.
        frozen = self._frozen.setdefault((without, method.name, method.config.model_dump_json()), {})
        site = replace(site, randomness=randomness or RepeatableRandomness(SEED), _derived=frozen)
        with recorded_steps(site.data.patients, after, share_of_noise) as steps:
            received = tuple(train(method, site, after and after.received))
        return Transcript(tuple(steps), received)

    def moves(self, method: Method, reference: Transcript, without: str) -> list[Move]:
        """What this patient changes, step by step, against the run with everybody."""
        other = self.run(method, without, reference)
        return [_move(*pair, without, method.dp.clip) for pair in zip(reference.steps, other.steps, strict=True)]


def train(method: Method, site: Site, messages: tuple[Tensors, ...] | None) -> Iterator[Tensors]:
    """Run all training tasks of a job at one site; yields the messages that it received, `messages` if given."""
    state, reply, exchange = method.setup(site), {}, method.exchange(site.backbone.shape)
    for number, (name, round) in enumerate((name, round) for name, round in method.tasks() if name != "evaluate"):
        task = exchange.task(name)
        down = messages[number] if messages else _message(task, reply)
        yield down
        state, reply = method.handle(task, site, state, down, round)


def _message(task: TaskSpec, reply: Tensors) -> Tensors:
    """What the task declares: a little more than the site's reply to the task before, or else random unit vectors."""
    generator = torch.Generator().manual_seed(SEED)
    unit = {s.name: F.normalize(torch.randn(s.shape, generator=generator), dim=-1).numpy() for s in task.down}
    return {name: TOWARDS_OTHERS * reply[name] if name in reply else drawn for name, drawn in unit.items()}


def _move(with_patient: Step, without: Step, patient: str, clip: float) -> Move:
    others = {key: rows for key, rows in with_patient.drawn.items() if key != patient}
    distance = _distance(with_patient.sums, without.sums) / clip
    rounded = _distance(with_patient.rounded, without.rounded) / clip
    return Move(distance, rounded, patient in with_patient.drawn, len(others), others == without.drawn)


def _distance(one: Values, other: Values) -> float:
    return float(torch.cat([(a - b).flatten() for a, b in zip(one, other, strict=True)]).norm())


def _rows_of(data: SiteData, number: int) -> tuple[tuple[tuple[str, int], ...], ...]:
    return tuple(
        tuple((part.questions[row], int(part.answers[row])) for row in (part.patients == number).nonzero().flatten())
        for part in data.parts
    )


@contextmanager
def recorded_steps(
    keys: tuple[str, ...], after: Transcript | None = None, share_of_noise: float = 1.0
) -> Iterator[list[Step]]:
    """All private steps that end while this is open; each goes on from what was released `after`, if given.

    `share_of_noise`: how much of the noise is added, for tests that have to fail.
    """
    steps: list[Step] = []
    draws: list[Draw] = []
    finish = PrivateStep.finish

    def finish_and_record(step: PrivateStep, noise: float, divisor: float, randomness: Randomness) -> None:
        sums = tuple(total.detach().clone() for total in step._sums.values())
        grid, whole = step.rounded_sums
        rounded = tuple(grid * total for total in whole.values())
        finish(step, noise * share_of_noise, divisor, randomness)
        parameters = list(step._sums)
        if after is not None:
            for parameter, released in zip(parameters, after.steps[len(steps)].released, strict=True):
                parameter.grad = released.clone()
        released = tuple(parameter.grad.clone() for parameter in parameters)
        steps.append(Step(sums, rounded, released, draws[len(steps)]))

    with pytest.MonkeyPatch.context() as patch, recorded_draws(patch, keys, draws.append):
        patch.setattr(PrivateStep, "finish", finish_and_record)
        yield steps


@contextmanager
def recorded_draws(patch: pytest.MonkeyPatch, keys: tuple[str, ...], record: Callable[[Draw], None]) -> Iterator[None]:
    """Hands each step's draw to `record`."""
    start, sample = PatientSampler.__init__, PatientSampler.sample

    def start_and_keep(sampler: PatientSampler, patients: torch.Tensor, *options: Any) -> None:
        start(sampler, patients, *options)
        sampler.numbers = patients

    def sample_and_record(sampler: PatientSampler) -> list[torch.Tensor]:
        drawn, found = sample(sampler), {}
        for rows in drawn:
            number = int(sampler.numbers[rows[0]])
            place = {row: place for place, row in enumerate((sampler.numbers == number).nonzero().flatten().tolist())}
            found[keys[number]] = tuple(place[row] for row in rows.tolist())
        record(found)
        return drawn

    patch.setattr(PatientSampler, "__init__", start_and_keep)
    patch.setattr(PatientSampler, "sample", sample_and_record)
    yield
