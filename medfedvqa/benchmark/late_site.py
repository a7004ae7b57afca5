"""A site that joins late: the others have trained together, and it has the rows of a few patients.

Every site in turn is the one that is late. It receives the others' last mean, trains on its own rows for as many rounds
as they did, and sends nothing. Beside it: the same model trained alone on these rows, and one trained on all rows.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from audits import Tensors
from medfedvqa.benchmark.outcome import RunOutcome
from medfedvqa.benchmark.regimes import newcomer
from medfedvqa.benchmark.single_run import Machine, centralised, closed_of, federated, patients_of, types_of
from medfedvqa.core import Site, State
from medfedvqa.core.averaging import Averaging
from medfedvqa.core.best_round import recalled, remembered
from medfedvqa.data import SiteData
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import check_sites
from medfedvqa.models import HEAD, Values


def joins_late(job: JobSpec) -> bool:
    """Whether it is defined what a late site receives: the mean of the others' values, or nothing from anybody."""
    method = job.build()
    return isinstance(method, Averaging) and not method.steps_at_server


def late_sites(
    job: JobSpec,
    root: Path | None,
    folder: Path,
    data: Mapping[str, SiteData],
    patients: int,
    union: bool,
    machine: Machine,
) -> RunOutcome:
    """The outcome at each site as the late one, with the rows of so many training patients. `union`: centralised.

    Of a shared head, `right` is the others' mean as it arrives, and `personal` the model that the site trained from it.
    With a head of its own the late site has nothing to answer with before it trains: `right` is the trained model.
    Raises `ConfigError` if `joins_late` is false, or if a single site remains.
    """
    if not joins_late(job):
        raise ConfigError(f"'{job.method}' sends no mean that a late site could begin with: leave it out of this study")
    if len(data) < 2:
        raise ConfigError("a late site joins others: the study needs at least two sites")
    turns = {}
    for late in data:
        small, others = newcomer(data[late], patients), {site: each for site, each in data.items() if site != late}
        turns[late] = _turn(job, root, folder / f"without-{late}", late, small, others, union, machine)
    several = [outcome for outcome in turns.values() if outcome.personal]
    return RunOutcome(
        right={late: outcome.right[late] for late, outcome in turns.items()},
        validated={},
        patients={late: outcome.patients[late] for late, outcome in turns.items()},
        bytes_up=0.0,
        bytes_down=max(outcome.bytes_down for outcome in turns.values()),
        seconds=sum(outcome.seconds for outcome in turns.values()),
        parameters=max(outcome.parameters for outcome in turns.values()),
        personal={late: outcome.personal[late] for late, outcome in turns.items()} if several else {},
        closed=closed_of(data),
        types=types_of(job, data),
    )


def _turn(
    job: JobSpec,
    root: Path | None,
    folder: Path,
    late: str,
    small: SiteData,
    others: Mapping[str, SiteData],
    union: bool,
    machine: Machine,
) -> RunOutcome:
    if union:
        return centralised(job, folder, {**others, late: small}, machine)
    method = job.build()
    if not isinstance(method, Averaging) or not method.shares:
        return federated(job, root, folder, {late: small}, machine)[0]
    check_sites(job, len(others))
    # The mean is that of the last round, so the others keep their last model.
    lasting = {name: value for name, value in job.options.items() if name != "keep"}
    outcome, states = federated(job.model_copy(update={"options": lasting}), root, folder, others, machine)
    site = Site(late, small, machine.backbone(job), machine.device, job.seed)
    names = method.shared(site.backbone.shape)
    weighs = method.config.weighting == "rows"
    weights = {name: float(len(others[name].train.answered)) if weighs else 1.0 for name in states}
    mean = {name: _mean(states, weights, name) for name in names}
    received = {name: value.numpy() for name, value in mean.items()}
    before = method.setup(site)
    personal = type(method)(method.config.model_copy(update={"evaluated": "personal"}))
    trained = {late: personal.answered(site, _trained_on(personal, site, received), {}, small.test).tolist()}
    whole = any(name.startswith(HEAD) for name in names)
    arrived = {late: method.answered(site, before, received, small.test).tolist()} if whole else trained
    return RunOutcome(
        right=arrived,
        validated={},
        patients=patients_of({late: small}),
        bytes_up=0.0,
        bytes_down=float(sum(value.nbytes for value in received.values())),
        seconds=outcome.seconds,
        parameters=outcome.parameters,
        personal=trained if whole else {},
        closed=closed_of({late: small}),
        types=types_of(job, {late: small}),
    )


def _trained_on(method: Averaging[Any], site: Site, received: Tensors) -> State:
    """The state of a site that begins with a received model: of its last round, or of its best if it keeps that."""
    state = method.setup(site)
    for number in range(1, method.config.rounds + 1):
        state, _ = method.train(site, state, received if number == 1 else {}, number)
        if method.config.keep == "best":
            state = remembered(method, site, state, {}, ())
    return recalled(state, {})[0]


def _mean(states: Mapping[str, State], weights: Mapping[str, float], name: str) -> torch.Tensor:
    values: list[Values] = [state["values"] for state in states.values()]
    parts = [weight * each[name].double() for weight, each in zip(weights.values(), values, strict=True)]
    return (torch.stack(parts).sum(dim=0) / sum(weights.values())).float()
