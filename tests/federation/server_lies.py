"""Lies of a server: what it does in the place of a job, the same for sites in process and through FLARE.

One for each finding of an attack on version 0.1.0, with what has to come of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from lying_dealer import Deal
from lying_server import Answer, Liar, numbers
from phantoms import short_job

from medfedvqa.core import Tensors
from medfedvqa.federation.job import JobSpec
from medfedvqa.models import shape_of
from privacy import DPSettings
from privacy.secagg.ring import Ring

ROWS = "train_rows"
"""The weight of a site."""
DP = DPSettings(noise=8.0, count_noise=40.0, sample_rate=0.3, patient_rows=4)
SUMS = short_job("fedavg", {"rounds": 2}, secagg=True, min_sites=3)
MIXTURES = short_job("prompt_pfl", {"rounds": 2, "answers": "closed"}, secagg=True, min_sites=3)
PRIVATE = short_job("prompt_pfl", {"rounds": 2, "answers": "closed"}, dp=DP, min_sites=3)

Sites = tuple[str, ...]
Outcome = dict[str, Any]


def averaged_shapes(job: JobSpec) -> dict[str, tuple[int, ...]]:
    """What the job averages, in the order in which a sum holds it."""
    down = job.build().exchange(shape_of(job.backbone)).task("evaluate").down
    return {spec.name: spec.shape for spec in sorted(down, key=lambda spec: spec.name)}


def mean_of(total: Ring, shapes: dict[str, tuple[int, ...]]) -> Tensors:
    """What the server sends to sites as the mean."""
    values, weight = numbers(total)[:-1], numbers(total)[-1]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
    parts = np.split(np.float32(values / weight), ends)
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def codes(answers: Mapping[str, Answer]) -> list[str]:
    """Of the answers, empty for one that is no refusal."""
    return [answer.code for _, answer in sorted(answers.items())]


def two_rounds(server: Liar, sites: Sites) -> tuple[Tensors, Ring]:
    """An honest job on shares until its end: the first mean, and the second sum."""
    shapes = averaged_shapes(server.job)
    server.tell("start", 1, sites)
    first = server.mean("start", 1, sites, list(shapes), ROWS)
    assert first is not None
    down = mean_of(first, shapes)
    server.tell("train", 2, sites, down)
    second = server.mean("train", 2, sites, list(shapes), ROWS)
    assert second is not None
    server.tell("evaluate", 2, sites, mean_of(second, shapes))
    return down, second


def rewound_sum(server: Liar, sites: Sites, meanwhile: Callable[[], None] = lambda: None) -> Outcome:
    """Finding 1: after `evaluate`, `train` of round 2 again over three sites. The difference of the two sums was the
    fourth site's whole upload."""
    down, four = two_rounds(server, sites)
    meanwhile()
    again = codes(server.tell("train", 2, sites[:3], down))
    three = server.mean("train", 2, sites[:3], list(averaged_shapes(server.job)), ROWS)
    return {"again": again, "rows of the fourth": None if three is None else round(numbers(four - three)[-1])}


def searched_number(server: Liar, sites: Sites) -> Outcome:
    """Finding 2: a round whose number the server chose, in a job of two rounds. It searched for one whose committee
    were its colluders."""
    return {"again": codes(server.tell("start", 35, sites))}


def rewound_mixture(server: Liar, sites: Sites) -> Outcome:
    """Finding 3: mixtures of rounds 1, 2 and 1."""
    mixed = []
    for task, round in (("start", 1), ("train", 2)):
        server.tell(task, round, sites)
        mixed.append(Deal(server, task, round, sites, sites).play().completed)
    again = codes(server.tell("start", 1, sites))
    mixed.append(Deal(server, "start", 1, sites, sites).play().completed)
    return {"again": again, "mixed": [len(completed) for completed in mixed]}


def rewound_training(server: Liar, sites: Sites) -> Outcome:
    """Finding 5: under differential privacy, `start` again after the last round, and then the last round. Each repeat
    was charged."""
    start = server.tell("start", 1, sites)
    shared = {
        site: {name: answer.tensors[name] for name in ("prompt.image", "prompt.text")} for site, answer in start.items()
    }
    server.ask("train", 2, shared)
    again = codes(server.tell("start", 1, sites))
    return {"again": again + codes(server.ask("train", 2, shared))}


@dataclass(frozen=True)
class Lie:
    """What the server plays in the place of a job of four sites, and what has to come of it."""

    play: Callable[[Liar, Sites], Outcome]
    job: JobSpec
    outcome: Outcome
    refusing: int = 4
    """How many of the four sites refuse, the first ones."""


LIES = {
    "rewound_sum": Lie(rewound_sum, SUMS, {"again": ["order"] * 3, "rows of the fourth": None}, refusing=3),
    "searched_number": Lie(searched_number, SUMS, {"again": ["order"] * 4}),
    "rewound_mixture": Lie(rewound_mixture, MIXTURES, {"again": ["order"] * 4, "mixed": [4, 4, 0]}),
    "rewound_training": Lie(rewound_training, PRIVATE, {"again": ["order"] * 8}),
}
