"""The runs of a benchmark: each has a folder, several run at a time, and none is repeated."""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from medfedvqa.atomic_files import write_whole
from medfedvqa.benchmark.systems import System
from medfedvqa.core import Site
from medfedvqa.core.local_training import Alone
from medfedvqa.core.scores import RIGHT, VALIDATED
from medfedvqa.data import SiteData, Split, load_site, united
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.baselines import majority_right, question_prior_right
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, plan, write_sites
from medfedvqa.federation.serve import check_sites, serve_job
from medfedvqa.federation.site_config import load_site_config
from medfedvqa.federation.site_state import StateFile
from medfedvqa.models import bundled_for, load_backbone, seen_by

OUTCOME = "outcome.json"
UNION = "all sites"
"""The name of the site that has the rows of all sites, for centralised training."""

FREE: Mapping[str, Callable[[SiteData], torch.Tensor]] = {
    "majority": lambda site: majority_right(site.train.answers, site.test.answers),
    "question-only prior": lambda site: question_prior_right(site.train, site.test),
}
"""Ways of answering that need no training: functions that say which test rows of a site they answer right."""


@dataclass(frozen=True)
class Grid:
    """The runs of a benchmark: every system on one data set, with the same seeds, budget and backbone."""

    reader: str
    root: Path | None
    out: Path
    systems: tuple[System, ...]
    seeds: int
    budget: Mapping[str, Any]
    sites: tuple[str, ...]
    backbone: str = ""

    def job(self, system: System, seed: int) -> JobSpec:
        """The job of one run. Raises `ConfigError`, also if the backbone has seen the test rows."""
        backbone = self.backbone or bundled_for(self.reader)
        if self.reader in (seen_by(backbone) or ()):
            raise ConfigError(f"the backbone '{backbone}' has seen {self.reader}, its test rows too: choose another")
        return JobSpec.from_dict(
            {
                "method": system.method,
                "options": system.with_budget(dict(self.budget)),
                "data": self.reader,
                "split": {"kind": "official", "seed": seed},
                "backbone": backbone,
                "seed": seed,
                "secagg": system.secagg,
                "round_timeout": None,
            }
        )

    def folder(self, system: System, seed: int) -> Path:
        """The folder of one run."""
        return self.out / "runs" / f"{system.folder}-{seed}"


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of one run, by site. It stays on the machine that runs the benchmark."""

    right: dict[str, list[bool]]
    """Whether each test row is answered right."""
    validated: dict[str, list[float]]
    """The accuracy on validation rows after each round; empty if the method does not measure it."""
    patients: dict[str, list[int]]
    """The patient of each test row, numbered within the site."""
    bytes_up: float
    """Bytes per site and round."""
    bytes_down: float
    seconds: float
    """Processor seconds per round, with evaluation and without decoding pictures."""
    parameters: int
    """The number of parameters that a site trains; 0 without training."""


def run(grid: Grid, workers: int) -> Iterator[tuple[System, int]]:
    """Run what is missing, in `workers` processes at a time; yields each run as it ends.

    Raises `ConfigError` before anything runs, or as soon as a run fails.
    """
    todo = [(system, seed) for seed in range(grid.seeds) for system in grid.systems if not _is_done(grid, system, seed)]
    for system, seed in todo:
        check_sites(grid.job(system, seed), len(grid.sites))
    waiting = iter(todo)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        # Only as many runs as workers are submitted: an interrupted grid ends with the runs that have begun.
        running = {pool.submit(_run, grid, *each): each for each in islice(waiting, workers)}
        while running:
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                done.result()
                ended = running.pop(done)
                running |= {pool.submit(_run, grid, *each): each for each in islice(waiting, 1)}
                yield ended


def outcomes(grid: Grid) -> dict[str, list[RunOutcome]]:
    """The outcomes of each seed, by label; first those of answers without training."""
    data = [_data(grid, seed) for seed in range(grid.seeds)]
    by_label = {label: [_free(each, right) for each in data] for label, right in FREE.items()}
    for system in grid.systems:
        files = [grid.folder(system, seed) / OUTCOME for seed in range(grid.seeds)]
        by_label[system.label] = [
            RunOutcome(**json.loads(file.read_text(encoding="utf-8"))["outcome"]) for file in files
        ]
    return by_label


def _is_done(grid: Grid, system: System, seed: int) -> bool:
    """Whether the folder holds the run of this very job; the run of another job is repeated."""
    file = grid.folder(system, seed) / OUTCOME
    if not file.exists():
        return False
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return bool(record["job"] == grid.job(system, seed).to_dict() and record["sites"] == list(grid.sites))


def _run(grid: Grid, system: System, seed: int) -> None:
    torch.set_num_threads(1)
    folder, job = grid.folder(system, seed), grid.job(system, seed)
    if folder.exists():
        shutil.rmtree(folder)
    outcome = _centralised(grid, job, seed) if system.centralised else _federated(grid, job, folder, seed)
    content = {"job": job.to_dict(), "sites": list(grid.sites), "outcome": vars(outcome)}
    write_whole(folder / OUTCOME, json.dumps(content).encode())


def _federated(grid: Grid, job: JobSpec, folder: Path, seed: int) -> RunOutcome:
    """The outcome of the job at its sites."""
    launch = plan(job, grid.root, folder, grid.sites)
    sites = {site: load_site_config(path, site) for site, path in write_sites(launch).items()}
    data = _data(grid, seed)

    def load(
        _reader: str, _root: Path | None, site: str, _split: Split, _seed: int, _answers: tuple[str, ...] | None
    ) -> SiteData:
        return data[site]

    began = time.process_time()
    with closing(LocalEngine(sites, job, "benchmark", load_data=load)) as engine:
        results = serve_job(job, grid.sites, engine.call, folder, "local")
    return _outcome(grid, launch, results, time.process_time() - began, seed)


def _centralised(grid: Grid, job: JobSpec, seed: int) -> RunOutcome:
    """The outcome of the job's local training on the rows of all sites, tested on each site's own rows."""
    method = job.build()
    if not isinstance(method, Alone):
        raise ConfigError("a centralised system trains by a method that can train alone: choose 'local'")
    data = _data(grid, seed)
    everywhere = Site(UNION, united(list(data.values())), load_backbone(job.backbone), "cpu", seed)
    state, began = method.setup(everywhere), time.process_time()
    for number in range(1, method.config.rounds + 1):
        state, _ = method.train(everywhere, state, {}, number)
    state, _ = method.evaluate(everywhere, state, {}, method.config.rounds)
    seconds = (time.process_time() - began) / method.config.rounds
    right = state[RIGHT].split([len(each.test) for each in data.values()])
    return RunOutcome(
        right={site: rows.tolist() for site, rows in zip(data, right, strict=True)},
        validated={UNION: state[VALIDATED].tolist()},
        patients=_patients(data),
        bytes_up=0.0,
        bytes_down=0.0,
        seconds=seconds,
        parameters=sum(value.numel() for value in method.trained(state).values()),
    )


def _outcome(grid: Grid, launch: Launch, results: Mapping[str, Any], seconds: float, seed: int) -> RunOutcome:
    states = {}
    for site in launch.sites:
        saved = StateFile(launch.out / "sites" / site / "state", "benchmark").load()
        states[site] = saved.state if saved else {}
    method, rounds = launch.job.build(), len(results["rounds"])
    traffic = [results["sites"][site]["bytes"] for site in launch.sites]
    trained = method.trained(states[launch.sites[0]])
    return RunOutcome(
        right={site: state[RIGHT].tolist() for site, state in states.items()},
        validated={site: state[VALIDATED].tolist() for site, state in states.items() if VALIDATED in state},
        patients=_patients(_data(grid, seed)),
        bytes_up=sum(each["up"] for each in traffic) / len(traffic) / rounds,
        bytes_down=sum(each["down"] for each in traffic) / len(traffic) / rounds,
        seconds=seconds / rounds,
        parameters=sum(value.numel() for value in trained.values()),
    )


def _free(data: Mapping[str, SiteData], right: Callable[[SiteData], torch.Tensor]) -> RunOutcome:
    by_site = {site: right(each).tolist() for site, each in data.items()}
    return RunOutcome(by_site, {}, _patients(data), 0.0, 0.0, 0.0, 0)


def _patients(data: Mapping[str, SiteData]) -> dict[str, list[int]]:
    return {site: each.test.patients.tolist() for site, each in data.items()}


def _data(grid: Grid, seed: int) -> dict[str, SiteData]:
    job = grid.job(grid.systems[0], seed)
    return _read(grid.reader, grid.root, grid.sites, job.split, seed, job.backbone)


@lru_cache(maxsize=1)
def _read(
    reader: str, root: Path | None, sites: tuple[str, ...], split: Split, seed: int, backbone: str
) -> dict[str, SiteData]:
    """The data of each site, with its pictures. Runs of a seed follow each other, so that a process reads them once."""
    by_site, size = {}, load_backbone(backbone).shape.image_size
    for site in sites:
        data = load_site(reader, root, site, split, seed)
        by_site[site] = replace(data, pictures=data.pictures.cached())
        by_site[site].pictures.load(size)
    return by_site
