"""The lies of a server, the same for sites in process, through FLARE and at vaults' sockets.

What it does to letters, says of an attempt and deals, from which random scripts draw, and what it does in the place of
a job: one for each finding of an attack on version 0.1.0, with what has to come of it.
"""

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from lying_dealer import Bend, Deal, Parts
from lying_network import Letter
from lying_server import Answer, Liar, numbers
from phantoms import short_job

from medfedvqa.core import Tensors
from medfedvqa.federation.job import JobSpec
from medfedvqa.models import shape_of
from privacy import DPSettings
from privacy.secagg.cut_and_choose import SETS
from privacy.secagg.ring import Ring

ROWS = "train_rows"
"""The weight of a site."""
DP = DPSettings(noise=8.0, count_noise=40.0, sample_rate=0.3, patient_rows=4)
SUMS = short_job("fedavg", {"rounds": 2}, secagg=True, min_sites=3)
MIXTURES = short_job("prompt_pfl", {"rounds": 2, "answers": "closed"}, secagg=True, min_sites=3)
PRIVATE = short_job("prompt_pfl", {"rounds": 2, "answers": "closed"}, dp=DP, min_sites=3)

Sites = tuple[str, ...]
Outcome = dict[str, Any]


class View(NamedTuple):
    """What one site is sent about an attempt."""

    name: str
    sites: Sites
    members: Sites
    number: int


def some_of(rng: random.Random, sites: Sites) -> Sites:
    """All of them, or all but one or two."""
    return tuple(sorted(rng.sample(sites, max(1, len(sites) - rng.choice([0, 0, 0, 1, 1, 2])))))


def all_but_one(rng: random.Random, sites: Sites) -> Sites:
    """Of these."""
    return tuple(sorted(rng.sample(sites, max(1, len(sites) - 1))))


def other_sites(rng: random.Random, view: View, sites: Sites) -> View:
    """An attempt of some of all `sites`, who compute if those of the view do."""
    others = some_of(rng, sites)
    return view._replace(sites=others, members=others if view.members == view.sites else view.members)


LETTERS: dict[str, Callable[[Letter, float], list[Letter]]] = {
    "drop": lambda letter, late: [],
    "delay": lambda letter, late: [replace(letter, delay=late)],
    "double": lambda letter, late: [letter, letter],
    "replace": lambda letter, late: [replace(letter, content=letter.content[:-1] + bytes([letter.content[-1] ^ 1]))],
}
"""What is delivered in place of a letter between sites; the number: seconds."""
VIEWS: dict[str, Callable[[random.Random, View, Sites], View]] = {
    "name": lambda rng, view, sites: view._replace(name=f"{view.name}-else"),
    "sites": other_sites,
    "members": lambda rng, view, sites: view._replace(members=all_but_one(rng, view.sites)),
    "number": lambda rng, view, sites: view._replace(number=rng.randint(0, 9)),
    "order": lambda rng, view, sites: view._replace(sites=view.sites[::-1]),
}
"""What one site is sent about an attempt in place of what the others are; last, all sites."""


def exchanged(rng: random.Random, parts: Parts) -> Parts:
    """Two sites' parts in each other's place."""
    site, other = rng.sample(sorted(parts), 2)
    return {**parts, site: parts[other], other: parts[site]}


PARTS: dict[str, Callable[[random.Random, Deal, Parts, list[Parts]], Parts]] = {
    "reused": lambda rng, deal, parts, earlier: rng.choice(earlier),
    "added": lambda rng, deal, parts, earlier: deal.shifted(parts, rng.choice(sorted(parts))),
    "exchanged": lambda rng, deal, parts, earlier: exchanged(rng, parts),
}
"""What is dealt in place of a set's honest parts; last, those that were dealt before to the same sites."""


def second_mixture(server: Liar, sites: Sites) -> Deal:
    """Finding 3, without going back: a round that was mixed, again."""
    assert Deal(server, "start", 1, sites, sites).play().completed == list(sites)
    return Deal(server, "start", 1, sites, sites, number=2).play()


MIXING: dict[str, tuple[Callable[[Liar, Sites], Deal], set[str]]] = {
    "nothing": (lambda server, sites: Deal(server, "start", 1, sites, sites).play(), set()),
    "a bent dealing": (
        lambda server, sites: Deal(server, "start", 1, sites, sites, bend=shifted_for(sites[-1])).play(),
        {"dealer"},
    ),
    "two sites alone": (lambda server, sites: Deal(server, "start", 1, sites[:2], sites[:2]).play(), {"attempt"}),
    "two members only": (lambda server, sites: Deal(server, "start", 1, sites, sites[:2]).play(), {"attempt"}),
    "a second mixture": (second_mixture, {"attempt"}),
}
"""What is played once sites have trained in round 1, and the codes with which they refuse. Finding 4: a dealer adds a
vector of its choice to the correction of one site's mixture, in all dealings."""


def shifted_for(site: str, sets: Collection[int] = range(SETS)) -> Bend:
    """In these sets a half is added to all numbers of the site's mixture."""
    return lambda deal, index, parts: deal.shifted(parts, site) if index in sets else parts


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
