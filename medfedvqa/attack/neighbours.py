"""Compares the releases of neighbouring sites, one of which has one patient more.

A method's private tasks run at both sites with the same randomness of the mechanism. Each run without a patient
continues from the releases of the run with everybody, because composition conditions on them. Then the sum of a step
may differ by the patient's own contribution, at most C, and a pair of counts by one patient. Everything else that
leaves must be equal: it follows from noisy releases and public values.

Sums, draws and counts are recorded where they are made, in `PrivateStep`, `PatientSampler` and the mechanisms of
counts, so that everything that a method does before is covered.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F

from audits import Exchange, TaskSpec
from medfedvqa.core import Method, Site, Tensors
from medfedvqa.core.method import EVALUATE
from medfedvqa.data import SiteData, Split, VQAData, build_site, partition
from medfedvqa.errors import ConfigError
from medfedvqa.models import Backbone
from privacy import PatientSampler, PrivateStep, Randomness, RepeatableRandomness
from privacy.clipping import GradientContribution
from privacy.mechanisms import CountsMechanism, counts_mechanisms
from privacy.mechanisms.base import UNITS

SEED = 0
"""The seed of the job, which is public."""
TOWARDS_OTHERS = np.float32(1.02)
"""The factor from the site's upload to the server's next message, which simulates the influence of other sites."""
ROUNDING = 2e-6
"""The share of C by which rounding may change a clipped gradient between two equal computations in float32: some thirty
units in the last place. Each patient in a step has a gradient, so a step of n patients may differ by n times this."""
QUICK = {
    "rounds": 2, "local_epochs": 2, "local_unit": "batches", "blocks": 1, "mentor_blocks": 1, "public_pairs": 8,
    "pretraining": 1, "weighting": "uniform", "answers": "closed",
}  # fmt: skip
"""Two steps in each of two rounds: a teacher exists from the second round on, and differs from its second step on."""

Draw = Mapping[str, tuple[int, ...]]
"""By the key of each patient in a step: its rows, numbered among its own training rows."""
Values = tuple[torch.Tensor, ...]
"""One tensor per parameter, in the step's order."""


@dataclass(frozen=True)
class Step:
    """One private step."""

    task: int
    """The number of its task."""
    sums: Values
    """The clipped gradients of all patients together, before noise."""
    rounded: Values
    """The sums of `sums`, rounded to the grid of the noise."""
    released: Values
    """The sums of `rounded` with noise, divided by a public figure."""
    drawn: Draw
    own: Mapping[str, Values]
    """The contribution of each watched patient."""


@dataclass(frozen=True)
class Counted:
    """One release of counts."""

    task: int
    counts: tuple[int, ...]
    """The counts before noise, in fractions of a patient, see `UNITS`."""
    released: tuple[float, ...]


@dataclass(frozen=True)
class TaskTranscript:
    """The recorded steps, counts and messages of a site's training tasks."""

    steps: tuple[Step, ...]
    counts: tuple[Counted, ...]
    received: tuple[Tensors, ...]
    """The message from the server, by task."""
    sent: tuple[Tensors, ...]
    """The site's upload, by task."""


@dataclass(frozen=True)
class Move:
    """One patient's change of one step, when both runs begin it from the same values."""

    task: int
    distance: float
    """The distance between the two sums before noise, exact or on the noise's grid (the larger), in units of C."""
    drawn: bool
    """Whether the patient is in the step."""
    others: int
    """The number of other patients in the step."""
    others_moved: float
    """The distance between the sums of the other patients, in units of C. A drawn patient must be watched for it."""
    others_alike: bool
    """Whether the step's other patients, and their rows, are the same in both runs."""


class Departure(Exception):
    """A run's steps differ in number or shapes from those of the run that it continues."""


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
        """The site with all its patients, or without one of them."""
        if without not in self._sites:
            left = replace(self.rows, rows=[row for row in self.rows.rows if row.patient != without])
            data = build_site(left, self.organ, self.split)
            self._sites[without] = Site(self.organ, data, self.backbone, "cpu", SEED)
        return self._sites[without]

    def contents(self, without: str | None = None) -> dict[str, Any]:
        """By patient key, the question and the answer's number of each of the patient's rows, part by part."""
        data = self.site(without).data
        return {key: _rows_of(data, number) for number, key in enumerate(data.patients)}

    def run(
        self,
        method: Method[Any],
        without: str | None = None,
        after: TaskTranscript | None = None,
        randomness: Randomness | None = None,
        share_of_noise: float = 1.0,
        watched: Collection[str] = (),
    ) -> TaskTranscript:
        """Runs the method's training tasks at the site. Each step continues from the release in `after`, if given.

        `randomness`: the mechanism's, the same in every run if None. `share_of_noise`: the share of it that is added,
        for tests that must fail. `watched`: the patients to record contributions of. Frozen parts are computed once
        for each site and configuration. Raises `Departure` for steps that `after` does not have.
        """
        site = self.site(without)
        # One dictionary for all methods would mix them up: they keep different things under the same name.
        frozen = self._frozen.setdefault((without, method.name, method.config.model_dump_json()), {})
        site = replace(site, randomness=randomness or RepeatableRandomness(SEED), _derived=frozen)
        recording = Recording(after, share_of_noise, watched)
        with recording.taken():
            for down, up in _train(method, site, after.received if after else None):
                recording.received.append(down)
                recording.sent.append(up)
        return recording.transcript

    def moves(
        self, method: Method[Any], reference: TaskTranscript, without: str, other: TaskTranscript | None = None
    ) -> list[Move]:
        """This patient's changes in each step, against the run with everybody. `other`: the run without the patient."""
        assert method.dp is not None
        steps = (other or self.run(method, without, reference)).steps
        return [_move(*pair, without, method.dp.clip) for pair in zip(reference.steps, steps, strict=True)]


def _tasks(method: Method[Any], leaving: Exchange) -> list[tuple[str, int]]:
    """All tasks with their rounds; the evaluation at the end only if it sends something."""
    return [(name, round) for name, round in method.tasks() if name != EVALUATE or leaving.task(name).up]


def _train(method: Method[Any], site: Site, messages: tuple[Tensors, ...] | None) -> Iterator[tuple[Tensors, Tensors]]:
    """Runs the tasks of a job at one site; yields each received message, from `messages` if given, and the upload."""
    state, reply, shape = method.setup(site), dict[str, Any](), site.backbone.shape
    exchange, leaving = method.exchange(shape), method.final_exchange(shape)
    for number, (name, round) in enumerate(_tasks(method, leaving)):
        task = exchange.task(name)
        down = messages[number] if messages else _message(task, reply)
        state, reply = method.handle(task, site, state, down, round)
        yield down, {spec.name: reply[spec.name] for spec in leaving.task(name).up if spec.name in reply}


def _message(task: TaskSpec, reply: Tensors) -> Tensors:
    """The declared message of a task: the site's last reply times `TOWARDS_OTHERS`, or else random unit vectors."""
    generator = torch.Generator().manual_seed(SEED)
    unit = {s.name: F.normalize(torch.randn(s.shape, generator=generator), dim=-1).numpy() for s in task.down}
    return {name: TOWARDS_OTHERS * reply[name] if name in reply else drawn for name, drawn in unit.items()}


def _move(with_patient: Step, without: Step, patient: str, clip: float) -> Move:
    drawn = patient in with_patient.drawn
    others = {key: rows for key, rows in with_patient.drawn.items() if key != patient}
    distance = max(_distance(with_patient.sums, without.sums), _distance(with_patient.rounded, without.rounded)) / clip
    own = with_patient.own.get(patient, [torch.zeros(())] * len(with_patient.sums))
    rest = [total - part for total, part in zip(with_patient.sums, own, strict=True)]
    moved = _distance(rest, without.sums) / clip
    return Move(with_patient.task, distance, drawn, len(others), moved, others == without.drawn)


def _distance(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    return float(torch.cat([(a - b).flatten() for a, b in zip(one, other, strict=True)]).norm())


def _rows_of(data: SiteData, number: int) -> tuple[tuple[tuple[str, int], ...], ...]:
    return tuple(
        tuple((part.questions[row], int(part.answers[row])) for row in (part.patients == number).nonzero().flatten())
        for part in data.parts
    )


def _copies(values: Iterator[torch.Tensor] | Collection[torch.Tensor]) -> Values:
    return tuple(value.detach().clone() for value in values)


class Recording:
    """The private steps and counts of one run, taken while `taken` is open."""

    def __init__(self, after: TaskTranscript | None, share_of_noise: float, watched: Collection[str]) -> None:
        """See `Neighbours.run`."""
        self.received, self.sent = list[Tensors](), list[Tensors]()
        self._after, self._share, self._watched = after, share_of_noise, watched
        self._steps, self._counts, self._draws = list[Step](), list[Counted](), list[Draw]()
        self._passed, self._own = 0, dict[str, Values]()

    @property
    def transcript(self) -> TaskTranscript:
        """What has been recorded."""
        return TaskTranscript(tuple(self._steps), tuple(self._counts), tuple(self.received), tuple(self.sent))

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Records all private steps that end, and all counts that are released, while this is open."""
        finish, add, sample = PrivateStep.finish, PrivateStep.add, PatientSampler.sample

        def finish_and_note(step: PrivateStep, noise: float, *others: Any) -> Any:
            sums, (grid, whole) = _copies(step._sums.values()), step.rounded_sums
            noisy = finish(step, noise * self._share, *others)
            self._end(sums, tuple(grid * total for total in whole.values()), list(step._sums))
            return noisy

        def add_and_note(step: PrivateStep, parts: Sequence[GradientContribution], sound: torch.Tensor) -> None:
            add(step, parts, sound)
            for place, key in enumerate([*self._draw][self._passed : self._passed + len(sound)]):
                if key in self._watched:
                    alone = type(step)(step._sums, step._clip)
                    add(alone, parts, sound & (torch.arange(len(sound), device=sound.device) == place))
                    self._own[key] = _copies(alone._sums.values())
            self._passed += len(sound)

        def sample_and_note(sampler: PatientSampler) -> list[torch.Tensor]:
            drawn, rows_of = sample(sampler), sampler._rows.items()
            at = {row: (key, place) for key, rows in rows_of for place, row in enumerate(rows.tolist())}
            self._draws.append({at[int(rows[0])][0]: tuple(at[row][1] for row in rows.tolist()) for rows in drawn})
            return drawn

        with ExitStack() as stack:
            stack.enter_context(mock.patch.multiple(PrivateStep, finish=finish_and_note, add=add_and_note))
            stack.enter_context(mock.patch.object(PatientSampler, "sample", sample_and_note))
            for kind in counts_mechanisms():
                stack.enter_context(mock.patch.object(kind, "noisy", self._noisy(kind)))
            yield

    @property
    def _draw(self) -> Draw:
        """The patients of the step that is being made."""
        if len(self._draws) <= len(self._steps):
            raise ConfigError("a private step of the method must draw its patients with `PatientSampler`")
        return self._draws[len(self._steps)]

    def _end(self, sums: Values, rounded: Values, parameters: list[torch.Tensor]) -> None:
        """Records the step that has just ended, and replaces its gradient by the one in `after`, if given."""
        number, drawn = len(self._steps), self._draw
        if self._after is not None:
            earlier = self._after.steps[number].released if number < len(self._after.steps) else ()
            if [value.shape for value in parameters] != [value.shape for value in earlier]:
                raise Departure
            for parameter, gradient in zip(parameters, earlier, strict=True):
                parameter.grad = gradient.clone()
        released = _copies([parameter.grad for parameter in parameters if parameter.grad is not None])
        self._steps.append(Step(len(self.sent), sums, rounded, released, drawn, self._own))
        self._passed, self._own = 0, {}

    def _noisy(self, kind: type[CountsMechanism]) -> Any:
        noisy = kind.noisy

        def noisy_and_record(
            mechanism: CountsMechanism, counts: Sequence[int], randomness: Randomness
        ) -> tuple[float, ...]:
            released = noisy(mechanism, counts, randomness)
            if self._after is not None:
                if len(self._counts) == len(self._after.counts):
                    raise Departure
                released = self._after.counts[len(self._counts)].released
            self._counts.append(Counted(len(self.sent), tuple(counts), released))
            return released

        return noisy_and_record


@dataclass
class TaskFinding:
    """The changes in all tasks of one name when each patient in turn is left out."""

    task: str
    steps: int
    """The number of recorded private steps."""
    sum_moved: float = 0.0
    """The largest change of a sum of clipped gradients, on the noise's grid, in units of C."""
    counts_moved: float = 0.0
    """The largest change of all counts together, L1, in patients."""
    others_moved: float = 0.0
    """The largest change of the other patients' part of a sum, in units of C per patient."""
    undrawn_moved: float = 0.0
    """Like `others_moved`, in steps in which the patient was not drawn."""
    charged_as_seen: bool = True
    """Whether the numbers of steps and counts equal those that the method is charged for."""
    others_alike: bool = True
    """Whether the number and shapes of steps, and the other patients' draws, rows, parts and answers, stay the same."""
    uploads_alike: bool = True
    """Whether everything else that leaves stays the same, bit for bit."""

    @property
    def passed(self) -> bool:
        """Whether the releases differ only by the changes that are charged."""
        alike = self.charged_as_seen and self.others_alike and self.uploads_alike
        return alike and max(self.sum_moved, self.counts_moved) <= 1.0 and self.others_moved <= ROUNDING

    def add(self, move: Move) -> None:
        """Includes a patient's change in one step."""
        moved = move.others_moved / max(1, move.others)
        self.sum_moved, self.others_moved = max(self.sum_moved, move.distance), max(self.others_moved, moved)
        self.undrawn_moved = max(self.undrawn_moved, 0.0 if move.drawn else moved)
        self.others_alike &= move.others_alike


def findings(neighbours: Neighbours, method: Method[Any]) -> list[TaskFinding]:
    """Leaves out each patient in turn; returns the changes, by task."""
    patients = list(dict.fromkeys(key for part in neighbours.patients for key in part))
    reference, everybody = neighbours.run(method, watched=patients), neighbours.contents()
    names = [name for name, _ in _tasks(method, method.final_exchange(neighbours.backbone.shape))]
    by_task = {name: TaskFinding(name, sum(names[step.task] == name for step in reference.steps)) for name in names}
    for name in names:
        cost = method.cost(name)
        planned = tuple(names.count(name) * count for count in (cost.steps, cost.counts))
        measured = by_task[name].steps, sum(names[counted.task] == name for counted in reference.counts)
        by_task[name].charged_as_seen = planned == measured
    for patient in patients:
        alike = neighbours.contents(patient) == {key: rows for key, rows in everybody.items() if key != patient}
        try:
            other = neighbours.run(method, patient, reference)
            moves = neighbours.moves(method, reference, patient, other)
            pairs = list(zip(reference.counts, other.counts, strict=True))
        except (Departure, ValueError):
            alike, moves, pairs, other = False, [], [], reference
        for each in by_task.values():
            each.others_alike &= alike
        for move in moves:
            by_task[names[move.task]].add(move)
        for one, two in pairs:
            moved = sum(abs(a - b) for a, b in zip(one.counts, two.counts, strict=True)) / UNITS
            by_task[names[one.task]].counts_moved = max(by_task[names[one.task]].counts_moved, moved)
        for name, sent, others in zip(names, reference.sent, other.sent, strict=True):
            same = sent.keys() == others.keys() and all(np.array_equal(sent[n], others[n]) for n in sent)
            by_task[name].uploads_alike &= same
    return list(by_task.values())
