"""Inversion of a release: infers a patient's answer from what a site sent after its first round.

The attacker is the server. It knows the values that training began with (the job's seed draws prompts and heads), the
number of answers, and also the patient's picture and question, which is more than a server knows. It computes the
question's gradient under every possible answer, and infers the answer whose gradient is most in the release (label
inference after Zhao et al., "iDLG", 2020, by search). Canaries' answers are drawn uniformly, so that a higher rate than
one over the number of answers comes from the release.
"""

from dataclasses import dataclass, replace

import torch

from medfedvqa.attack.job_with_canaries import SiteObservation
from medfedvqa.attack.membership import differentiable, flat, gradient, released_values


@dataclass(frozen=True)
class InversionCount:
    """How many answers the attacker infers, and how many of them are right."""

    patients: int = 0
    right: int = 0
    by_chance: float = 0.0
    """How many would be right without the release, on average."""

    def __add__(self, other: "InversionCount") -> "InversionCount":
        return InversionCount(
            self.patients + other.patients, self.right + other.right, self.by_chance + other.by_chance
        )


def invert(observation: SiteObservation) -> InversionCount:
    """Infer the answers of inserted canaries from the site's first release; none if the site shares nothing."""
    task = observation.tasks[0]
    probe = observation.probe(task)
    values = differentiable(probe)
    released = released_values(task.released, values)
    if not released:
        return InversionCount()
    names = list(released)
    update = flat({name: values[name].detach() - released[name] for name in names}, names)
    answers = len(observation.site.data.answers)
    patients = torch.where(observation.canaries.inserted)[0].tolist()
    right = 0
    for patient in patients:
        row = observation.rows.chosen(observation.canaries.rows(patient)[:1])
        scores = []
        for answer in range(answers):
            direction = flat(gradient(probe, values, replace(row, answers=torch.tensor([answer]))), names)
            scores.append(float(direction @ update / direction.norm().clamp(min=1e-30)))
        right += max(range(answers), key=scores.__getitem__) == int(row.answers)
    return InversionCount(len(patients), right, len(patients) / answers)
