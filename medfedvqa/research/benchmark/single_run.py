"""One run of a benchmark: a job at its sites, in this process, or the same model trained on the rows of all sites."""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from medfedvqa.core import Method, Site, State
from medfedvqa.core.averaging import Averaging
from medfedvqa.core.kept_model import KEPT
from medfedvqa.core.local_training import Alone
from medfedvqa.core.scores import RIGHT, VALIDATED
from medfedvqa.data import SiteData, Split, united
from medfedvqa.devices import CPU
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.federation.serve import check_sites, serve_job
from medfedvqa.federation.site_config import load_site_config
from medfedvqa.federation.site_state import StateFile
from medfedvqa.models import Backbone, FeatureStore, load_backbone
from medfedvqa.research.benchmark.results_file import RunOutcome, numbered_patients


@dataclass(frozen=True)
class Machine:
    """The resources of this machine that a run uses."""

    device: str = CPU
    """The device on which all sites train."""
    store: FeatureStore | None = None
    """The folder that keeps the frozen backbone's outputs for other runs; None keeps none."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """This machine's files and folders of backbones, by name."""

    def backbone(self, job: JobSpec) -> Backbone:
        """The job's backbone on the device. Raises `BackboneError`."""
        return load_backbone(job.backbone, self.files, self.device).storing(self.store)


UNION = "all sites"
"""The name of the site that has the rows of all sites, for centralised training."""


def federated(
    job: JobSpec,
    root: Path | None,
    folder: Path,
    data: Mapping[str, SiteData],
    machine: Machine = Machine(),
) -> tuple[RunOutcome, dict[str, State]]:
    """Runs the job at sites with these data. Returns the outcome, and each site's state at the end.

    `root` is the folder of the data set. Files of the run go into `folder`, which does not exist yet.
    """
    launch = Launch(job, root, folder, tuple(data), backbone_files=machine.files, device=machine.device)
    sites = {site: load_site_config(path, site) for site, path in write_sites(launch).items()}

    def load(
        _reader: str, _root: Path | None, site: str, _split: Split, _seed: int, _answers: tuple[str, ...] | None
    ) -> SiteData:
        return data[site]

    began = time.process_time()
    with closing(LocalEngine(sites, job, "benchmark", load_data=load, store=machine.store)) as engine:
        results = serve_job(job, launch.sites, engine.call, folder, "local")
    seconds = time.process_time() - began
    states = {}
    for site in launch.sites:
        saved = StateFile(launch.out / "sites" / site / "state", "benchmark").load()
        states[site] = saved.state if saved else {}
    return _outcome(job, data, results, states, seconds, machine), states


def centralised(job: JobSpec, folder: Path, data: Mapping[str, SiteData], machine: Machine = Machine()) -> RunOutcome:
    """Trains the job on the rows of all sites together, and tests it on each site's own rows.

    A method that cannot train alone, such as a split model, runs as a federation whose one site has all rows; its files
    go into `folder`. Raises `ConfigError` if it needs more sites, and `DataError` if no training row has a listed
    answer.
    """
    method = job.build()
    if not isinstance(method, Alone):
        return _at_one_site(job, folder, data, machine)
    everywhere = Site(UNION, united(list(data.values())), machine.backbone(job), machine.device, job.seed)
    method.check_kind(everywhere)
    method.check_rows(everywhere.data)
    began = time.process_time()
    state = method.trained_alone(everywhere, method.config.rounds)
    state, _ = method.evaluate(everywhere, state, {}, method.config.rounds)
    seconds = (time.process_time() - began) / method.config.rounds
    right = state[RIGHT].split([len(each.test) for each in data.values()])
    return RunOutcome(
        right={site: rows.tolist() for site, rows in zip(data, right, strict=True)},
        validated={UNION: state[VALIDATED].tolist()},
        patients=patients_of(data),
        closed=closed_of(data),
        types=types_of(job, data),
        bytes_up=0.0,
        bytes_down=0.0,
        seconds=seconds,
        parameters=sum(value.numel() for value in method.trained(state).values()),
    )


def _at_one_site(job: JobSpec, folder: Path, data: Mapping[str, SiteData], machine: Machine) -> RunOutcome:
    check_sites(job, 1)
    everywhere = united(list(data.values()))
    outcome, _ = federated(job, None, folder, {everywhere.organ: everywhere}, machine)
    rows = iter(outcome.right[everywhere.organ])
    return replace(
        outcome,
        right={site: list(islice(rows, len(each.test))) for site, each in data.items()},
        validated=dict(zip([UNION], outcome.validated.values(), strict=False)),
        patients=patients_of(data),
        closed=closed_of(data),
        types=types_of(job, data),
        personal={},
        bytes_up=0.0,
        bytes_down=0.0,
    )


def _outcome(
    job: JobSpec,
    data: Mapping[str, SiteData],
    results: Mapping[str, Any],
    states: Mapping[str, State],
    seconds: float,
    machine: Machine,
) -> RunOutcome:
    method, rounds = job.build(), len(results["rounds"])
    traffic = [results["sites"][site]["bytes"] for site in states]
    trained = method.trained(next(iter(states.values())))
    return RunOutcome(
        right={site: state[RIGHT].tolist() for site, state in states.items()},
        validated={site: state[VALIDATED].tolist() for site, state in states.items() if VALIDATED in state},
        patients=patients_of(data),
        bytes_up=sum(each["up"] for each in traffic) / len(traffic) / rounds,
        bytes_down=sum(each["down"] for each in traffic) / len(traffic) / rounds,
        seconds=seconds / rounds,
        parameters=sum(value.numel() for value in trained.values()),
        personal=_personal(job, method, states, data, machine),
        closed=closed_of(data),
        types=types_of(job, data),
        server=_server(results["server_model"]),
    )


def _server(tested: Mapping[str, Any] | None) -> dict[str, Any]:
    """The counts of the server's model, see `RunOutcome.server`."""
    if tested is None:
        return {}
    found = {way: tested[way]["found"] for way in ("image_to_text", "text_to_image")}
    return {"questions": tested["n"], **{name: tested[name] for name in ("correct", "pictures", "captions")}, **found}


def _personal(
    job: JobSpec, method: Method[Any], states: Mapping[str, State], data: Mapping[str, SiteData], machine: Machine
) -> dict[str, list[bool]]:
    """The test rows that each site's kept model answers right, or its model before the last mean, if it has either.

    A site that never trains has the last mean in both places.
    """
    if all(KEPT in state for state in states.values()):
        return {name: state[KEPT][RIGHT][state[KEPT]["model"]].tolist() for name, state in states.items()}
    if not isinstance(method, Averaging) or not method.shares or not method.has_personal_models:
        return {}
    personal = type(method)(method.config.model_copy(update={"evaluated": "personal"}), secagg=job.secagg)
    backbone, right = machine.backbone(job), {}
    for name, state in states.items():
        if name in method.config.unseen:
            right[name] = state[RIGHT].tolist()
            continue
        site = Site(name, data[name], backbone, machine.device, job.seed)
        right[name] = personal.answered(site, state, {}, site.data.test).tolist()
    return right


def patients_of(data: Mapping[str, SiteData]) -> dict[str, list[int]]:
    """The patient of each test row by site, see `RunOutcome.patients`."""
    return {site: numbered_patients(each.test.patients.tolist()) for site, each in data.items()}


def closed_of(data: Mapping[str, SiteData]) -> dict[str, list[bool]]:
    """Whether the question of each test row is closed by site, see `RunOutcome.closed`."""
    kinds = {site: each.test.are_closed.tolist() for site, each in data.items()}
    return {site: each for site, each in kinds.items() if not all(each)}


def types_of(job: JobSpec, data: Mapping[str, SiteData]) -> dict[str, str]:
    """The letters of the types of the test rows' answers by site, see `RunOutcome.types`."""
    return {site: each.test.types for site, each in data.items()} if job.split.questions == "all" else {}
