"""Membership inference by patient: a score for each canary, larger where it looks trained with.

`loss`: how much better the trained model answers a patient's rows than the untrained one (Yeom et al., 2018).
`update`: how much of a patient's gradient is in what training changed, round by round (Nasr et al., 2023, in the space
of gradients). Updates are decoded for all canaries together, since their gradients overlap.
The attacker knows everything but who was in: canaries, the other patients, each round's start, and for the shared
artefact also the answer head, which never leaves. That is more than a server knows, as differential privacy assumes.
"""

from collections.abc import Mapping

import torch

from medfedvqa.attack.observed import Observed
from medfedvqa.core import Probe, Tensors
from medfedvqa.core.method import tensors_of
from medfedvqa.data import Examples

Scores = dict[tuple[str, str], torch.Tensor]
"""By artefact and attack, [canaries]."""
Values = Mapping[str, torch.Tensor]

PERSONAL, SHARED = "personal", "shared"
LOSS, UPDATE = "loss", "update"
LEAST_RIDGE, MOST_RIDGE = 1e-2, 1e3
"""Added to the Gram matrix of unit gradients. With the first, directions that are nearly the same count as one; with
the second, what is decoded is each direction's inner product with the update."""
INDEPENDENT, TINY = 1e-6, 1e-30


def membership(seen: Observed) -> Scores:
    """All attacks on one site's part in a job; those on the shared artefact only if the site shares what it trains."""
    return {**_by_loss(seen), **_by_update(seen)}


@torch.no_grad()
def _by_loss(seen: Observed) -> Scores:
    first, last = seen.tasks[0], seen.tasks[-1]
    began = seen.method.probe(seen.site, first.before, first.received)
    ended = seen.method.probe(seen.site, last.before, last.received)
    trained = seen.method.trained(last.after)
    start = _summed(began, began.values, seen)
    scores = {(PERSONAL, LOSS): start - _summed(ended, trained, seen)}
    if released := shared(last.released, began.values):
        scores[SHARED, LOSS] = start - _summed(ended, {**began.values, **released}, seen)
    return scores


def _summed(probe: Probe, values: Values, seen: Observed) -> torch.Tensor:
    """The loss of each canary's rows together, [canaries]."""
    losses = probe.losses(values, seen.rows)
    return losses.new_zeros(len(seen.canaries)).index_add_(0, seen.canaries.examples.patients, losses)


def _by_update(seen: Observed) -> Scores:
    scores: Scores = {}
    others: torch.Tensor = torch.unique(seen.base.patients)
    patients = [
        *(seen.rows.chosen(seen.canaries.rows(patient)) for patient in range(len(seen.canaries))),
        *(seen.base.chosen(torch.where(seen.base.patients == patient)[0]) for patient in others),
    ]
    for task in seen.tasks:
        probe = seen.method.probe(seen.site, task.before, task.received)
        values = {name: value.detach().requires_grad_() for name, value in probe.values.items()}
        gradients = [gradient(probe, values, rows) for rows in patients]
        ends = {PERSONAL: seen.method.trained(task.after), SHARED: shared(task.released, values)}
        for artefact, end in ends.items():
            if names := [name for name in values if name in end]:
                update = flat({name: values[name].detach() - end[name] for name in names}, names)
                found = decoded(update, torch.stack([flat(gradient, names) for gradient in gradients]))
                found = found[: len(seen.canaries)]
                total = scores.get((artefact, UPDATE), torch.zeros_like(found))
                scores[artefact, UPDATE] = total + found / found.std().clamp(min=TINY)
    return scores


def decoded(update: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """How much of each direction, [n, parameters], is in the update, [parameters]: ridge regression, [n].

    The ridge is the noise over the signal, each by its moment: what of the update lies outside of all directions is
    noise, and what lies within is more than noise by the signal.
    """
    units = directions.double() / directions.double().norm(dim=1, keepdim=True).clamp(min=TINY)
    along = units @ update.double()
    scale, basis = torch.linalg.eigh(units @ units.T)
    kept = scale > INDEPENDENT
    within = (basis.T @ along)[kept].square() / scale[kept]
    outside = max(1, update.numel() - int(kept.sum()))
    noise = (update.double().square().sum() - within.sum()).clamp(min=0) / outside
    signal = ((within.sum() - kept.sum() * noise) / scale[kept].sum()).clamp(min=TINY)
    ridge = (noise / signal).clamp(LEAST_RIDGE, MOST_RIDGE)
    shares: torch.Tensor = basis @ ((basis.T @ along) / (scale.clamp(min=0) + ridge))
    return shares


def gradient(probe: Probe, values: dict[str, torch.Tensor], rows: Examples) -> dict[str, torch.Tensor]:
    """Of the summed loss of some rows."""
    found = torch.autograd.grad(probe.losses(values, rows).sum(), list(values.values()), materialize_grads=True)
    return dict(zip(values, found, strict=True))


def shared(released: Tensors, values: Values) -> dict[str, torch.Tensor]:
    """What left the site of what it trains."""
    return {name: tensor for name, tensor in tensors_of(released).items() if name in values}


def flat(tensors: Values, names: list[str]) -> torch.Tensor:
    """Side by side, [parameters]."""
    return torch.cat([tensors[name].flatten() for name in names])
