"""Inversion of a release: what a patient's answers were, from what a site sent after its first round.

The attacker is the server. It knows what it sent and so where training began (the job's seed draws prompts and heads),
the number of answers, and, which is more than a server knows, the patient's picture and question. It takes the
question's gradient under every possible answer and says the answer whose gradient is most in the release (label
inference as of Zhao et al., "iDLG", 2020, by search). Canaries' answers are drawn at random, so that guessing is right
once in as many times as there are answers, and everything above that comes from the release.
"""

from dataclasses import dataclass, replace

import torch

from medfedvqa.attack.membership import flat, gradient, shared
from medfedvqa.attack.observed import Observed


@dataclass(frozen=True)
class Inverted:
    """Answers said by the attacker."""

    patients: int = 0
    right: int = 0
    by_chance: float = 0.0
    """How many would be right on average without the release."""

    def __add__(self, other: "Inverted") -> "Inverted":
        return Inverted(self.patients + other.patients, self.right + other.right, self.by_chance + other.by_chance)


def invert(seen: Observed) -> Inverted:
    """Guess answers of canaries that were trained with, from the site's first release; none if it shares nothing."""
    task = seen.tasks[0]
    probe = seen.method.probe(seen.site, task.before, task.received)
    values = {name: value.detach().requires_grad_() for name, value in probe.values.items()}
    released = shared(task.released, values)
    if not released:
        return Inverted()
    names = list(released)
    update = flat({name: values[name].detach() - released[name] for name in names}, names)
    answers = len(seen.site.data.answers)
    patients = torch.where(seen.canaries.inserted)[0].tolist()
    right = 0
    for patient in patients:
        one = seen.rows.chosen(seen.canaries.rows(patient)[:1])
        found = []
        for answer in range(answers):
            under = flat(gradient(probe, values, replace(one, answers=torch.tensor([answer]))), names)
            found.append(float(under @ update / under.norm().clamp(min=1e-30)))
        right += max(range(answers), key=found.__getitem__) == int(one.answers)
    return Inverted(len(patients), right, len(patients) / answers)
