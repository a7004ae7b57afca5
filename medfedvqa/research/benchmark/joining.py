"""Hospitals that join: each in turn has few labelled patients, and the others have already trained a model.

It receives their model through the job that `medfedvqa join` makes, tests it, trains it further, and keeps the best.
Two references: the same model trained alone on these patients, and one trained on the rows of all hospitals.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from medfedvqa.core.averaging import Averaging
from medfedvqa.core.kept_model import KEPT
from medfedvqa.core.local_training import Alone
from medfedvqa.core.scores import RIGHT
from medfedvqa.data import SiteData
from medfedvqa.errors import ConfigError
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.shared_model import MODEL, SharedModel
from medfedvqa.research.benchmark.regimes import Regime, newcomer
from medfedvqa.research.benchmark.results_file import RunOutcome
from medfedvqa.research.benchmark.single_run import Machine, centralised, federated


def has_joiners(job: JobSpec, regime: Regime) -> bool:
    """Whether a joining hospital has a well-defined model: a complete one from the others, or one from its own rows."""
    method = job.build()
    if isinstance(method, Averaging) and method.shares:
        return bool(method.config.own == "nothing" and method.config.mixing == "none")
    return isinstance(method, Alone) and method.silent and regime.joining != 0


def joining_sites(
    job: JobSpec,
    root: Path | None,
    folder: Path,
    data: Mapping[str, SiteData],
    regime: Regime,
    union: bool,
    machine: Machine,
) -> RunOutcome:
    """The outcome at each hospital in turn as the one that joins. `union`: one model trains on the rows of all.

    `right` scores the others' model as received, `personal` the one that the hospital keeps. The others' federation is
    trained once, and kept beside `folder` for other numbers of labelled patients. Raises `ConfigError` if `has_joiners`
    is false, or no other site is left to train.
    """
    if not has_joiners(job, regime):
        raise ConfigError(f"'{job.method}' has no model that a hospital could join with: leave it out of this study")
    method, turns = job.build(), dict[str, RunOutcome]()
    for site, whole in data.items():
        small, others = newcomer(whole, regime.joining or 0), regime.others(site, data)
        if not others:
            raise ConfigError("a hospital joins others: the study needs at least two sites that may train without it")
        if union:
            turns[site] = centralised(job, folder, {**others, site: small}, machine)
        elif not isinstance(method, Averaging) or not method.shares:
            turns[site] = federated(job, root, folder / site, {site: small}, machine)[0]
        else:
            place = folder.parents[2] / "federations" / f"{job.definition[:16]}-{'-'.join(others)}"
            organs = sorted({regime.organ(other) for other in others})
            small = replace(small, organ=regime.organ(site))
            turns[site] = _joined(job, root, place, folder / site, others, {site: small}, organs, machine)
    first = next(iter(turns.values()))
    seconds = sum(turn.seconds for turn in turns.values())
    return replace(
        first,
        right={site: turn.right[site] for site, turn in turns.items()},
        patients={site: turn.patients[site] for site, turn in turns.items()},
        personal={site: turn.personal[site] for site, turn in turns.items() if turn.personal},
        closed={site: turn.closed[site] for site, turn in turns.items() if site in turn.closed},
        types={site: turn.types[site] for site, turn in turns.items() if site in turn.types},
        validated={},
        bytes_up=max(turn.bytes_up for turn in turns.values()),
        bytes_down=max(turn.bytes_down for turn in turns.values()),
        seconds=seconds,
    )


def _joined(
    job: JobSpec,
    root: Path | None,
    federation: Path,
    folder: Path,
    others: Mapping[str, SiteData],
    small: Mapping[str, SiteData],
    organs: Sequence[str],
    machine: Machine,
) -> RunOutcome:
    if not (federation / MODEL).exists():
        shutil.rmtree(federation, ignore_errors=True)  # of a process that died
        federated(job, root, federation, others, machine)
    model = SharedModel.read(federation / MODEL)
    model.write(folder / MODEL)
    outcome, states = federated(model.joining(organs), root, folder, small, machine)
    kept = {site: state[KEPT] for site, state in states.items() if KEPT in state}
    personal = {site: each[RIGHT][each["model"]].tolist() for site, each in kept.items()}
    return replace(outcome, personal=personal or outcome.right)
