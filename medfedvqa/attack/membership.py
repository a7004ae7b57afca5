"""Membership inference by patient: a score for each canary, larger if it seems to be in the training data.

`loss`: the decrease of the loss on a patient's rows by training (Yeom et al., 2018).
`update`: the amount of a patient's gradient in the change by training, round by round (Nasr et al., 2023, in the space
of gradients). Updates are decoded for all canaries together, since their gradients overlap.
The attacker knows everything except which canaries are inserted: the canaries, the other patients, the values before
each round, and for the shared artefact also the answer head, which never leaves. Differential privacy assumes such an
attacker, who knows more than a server.
"""

from collections.abc import Mapping

import torch

from medfedvqa.attack.canaries import SiteObservation
from medfedvqa.core import Probe, Tensors
from medfedvqa.core.method import tensors_of
from medfedvqa.data import Examples

Scores = dict[tuple[str, str], torch.Tensor]
"""The scores of each artefact and attack, [canaries]."""
Values = Mapping[str, torch.Tensor]

PERSONAL, SHARED = "personal", "shared"
LOSS, UPDATE = "loss", "update"
MIN_RIDGE, MAX_RIDGE = 1e-2, 1e3
"""Bounds of the ridge, which is added to the Gram matrix of unit gradients. At the lower bound, nearly equal directions
count as one; at the upper, the result is each direction's inner product with the update."""
INDEPENDENT, TINY = 1e-6, 1e-30


def membership(observation: SiteObservation) -> Scores:
    """The scores of all attacks on one site; the shared artefact has scores only if the site shares what it trains."""
    return {**_by_loss(observation), **_by_update(observation)}


@torch.no_grad()
def _by_loss(observation: SiteObservation) -> Scores:
    first, last = observation.tasks[0], observation.tasks[-1]
    began, ended = observation.probe(first), observation.probe(last)
    trained = observation.method.trained(last.after)
    start = _summed(began, began.values, observation)
    scores = {(PERSONAL, LOSS): start - _summed(ended, trained, observation)}
    if released := released_values(last.released, began.values):
        scores[SHARED, LOSS] = start - _summed(ended, {**began.values, **released}, observation)
    return scores


def _summed(probe: Probe, values: Values, observation: SiteObservation) -> torch.Tensor:
    """The summed loss of each canary's rows, [canaries]."""
    losses = probe.losses(values, observation.rows)
    return losses.new_zeros(len(observation.canaries)).index_add_(0, observation.canaries.examples.patients, losses)


def _by_update(observation: SiteObservation) -> Scores:
    scores: Scores = {}
    others: torch.Tensor = torch.unique(observation.base.patients)
    patients = [
        *(observation.rows.chosen(observation.canaries.rows(patient)) for patient in range(len(observation.canaries))),
        *(observation.base.chosen(torch.where(observation.base.patients == patient)[0]) for patient in others),
    ]
    for task in observation.tasks:
        probe = observation.probe(task)
        values = differentiable(probe)
        gradients = [gradient(probe, values, rows) for rows in patients]
        ends = {PERSONAL: observation.method.trained(task.after), SHARED: released_values(task.released, values)}
        for artefact, end in ends.items():
            if names := [name for name in values if name in end]:
                update = flat({name: values[name].detach() - end[name] for name in names}, names)
                shares = decode(update, torch.stack([flat(gradient, names) for gradient in gradients]))
                shares = shares[: len(observation.canaries)]
                total = scores.get((artefact, UPDATE), torch.zeros_like(shares))
                scores[artefact, UPDATE] = total + shares / shares.std().clamp(min=TINY)
    return scores


def decode(update: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """The coefficient of each direction, [n, parameters], in the update, [parameters], by ridge regression, [n].

    The ridge is the ratio of noise to signal, both estimated by moments: the part of the update outside of all
    directions is noise, and the part within them is noise and signal.
    """
    units = directions.double() / directions.double().norm(dim=1, keepdim=True).clamp(min=TINY)
    along = units @ update.double()
    scale, basis = torch.linalg.eigh(units @ units.T)
    independent = scale > INDEPENDENT
    within = (basis.T @ along)[independent].square() / scale[independent]
    outside = max(1, update.numel() - int(independent.sum()))
    noise = (update.double().square().sum() - within.sum()).clamp(min=0) / outside
    signal = ((within.sum() - independent.sum() * noise) / scale[independent].sum()).clamp(min=TINY)
    ridge = (noise / signal).clamp(MIN_RIDGE, MAX_RIDGE)
    shares: torch.Tensor = basis @ ((basis.T @ along) / (scale.clamp(min=0) + ridge))
    return shares


def differentiable(probe: Probe) -> dict[str, torch.Tensor]:
    """The probe's values as leaves that require gradients."""
    return {name: value.detach().requires_grad_() for name, value in probe.values.items()}


def gradient(probe: Probe, values: dict[str, torch.Tensor], rows: Examples) -> dict[str, torch.Tensor]:
    """The gradient of the summed loss of these rows, by name."""
    gradients = torch.autograd.grad(probe.losses(values, rows).sum(), list(values.values()), materialize_grads=True)
    return dict(zip(values, gradients, strict=True))


def released_values(released: Tensors, values: Values) -> dict[str, torch.Tensor]:
    """The values that the site trains and that it released."""
    return {name: tensor for name, tensor in tensors_of(released).items() if name in values}


def flat(tensors: Values, names: list[str]) -> torch.Tensor:
    """The tensors of these names as one vector, [parameters]."""
    return torch.cat([tensors[name].flatten() for name in names])
