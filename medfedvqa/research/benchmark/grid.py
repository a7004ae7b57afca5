"""Runs a benchmark: each run has a folder, several run at a time, and no finished run is repeated."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from medfedvqa.atomic_files import write_whole
from medfedvqa.core import create
from medfedvqa.core.averaging import Averaging
from medfedvqa.core.local_training import Alone
from medfedvqa.data import CLOSED_ANSWERS, Questions, SiteData, Split, load_site
from medfedvqa.devices import CPU, in_turn
from medfedvqa.errors import ConfigError
from medfedvqa.evaluation.accuracy import majority_right, question_prior_right
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.serve import check_sites
from medfedvqa.models import FeatureStore, bundled_for, has_seen, load_backbone
from medfedvqa.research.benchmark.results_file import (
    ALL_ROWS,
    RESULTS,
    Result,
    RunOutcome,
    append,
    numbered_patients,
    parts_of,
)
from medfedvqa.research.benchmark.single_run import (
    Machine,
    Regime,
    centralised,
    closed_of,
    federated,
    joining_sites,
    newcomer,
    patients_of,
    types_of,
)
from medfedvqa.research.benchmark.systems import System
from medfedvqa.version import code_version

OUTCOME = "outcome.json"
NAMED = ("method", "options", "data", "split", "backbone", "seed", "secagg", "round_timeout")
"""Job settings that have fields of their own in a result, that belong to a system, or that change no result."""
OLD = "at most 0.2.0"
"""The version recorded for runs whose files name none."""
FREE: Mapping[str, Callable[[SiteData], torch.Tensor]] = {
    "majority": lambda site: majority_right(site.train.answers, site.test.answers),
    "question-only prior": lambda site: question_prior_right(site.train, site.test),
}
"""Baselines without training: each function returns which test rows of a site it answers right."""


@dataclass(frozen=True)
class Grid:
    """The runs of a benchmark: every system on one data set, with the same seeds, budget and backbone."""

    reader: str
    root: Path | None
    out: Path
    systems: tuple[System, ...]
    seeds: int
    budget: Mapping[str, Any]
    organs: tuple[str, ...]
    backbone: str = ""
    cache: Path | None = None
    """The folder of outputs of the frozen backbone, which all runs share; None keeps none."""
    regime: Regime = Regime()
    """How the organs' rows are divided among sites."""
    devices: str = CPU
    """The device that runs train on, or several, separated by commas: each run then takes a free one."""
    lines: Path | None = None
    """The file of raw results, which several grids may share; None: `results.jsonl` in `out`."""
    fractions: tuple[float, float, float] | None = None
    """The shares of a split by patient; None: the published split."""
    questions: Questions = "closed"
    """The kind of questions that systems train on and are tested with."""
    answers: tuple[str, ...] = ()
    """The list for systems that share one, in place of the closed answers: the classes of a set without questions."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """This machine's files and folders of backbones, by name."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites."""
        return self.regime.sites(self.organs)

    @property
    def split(self) -> str:
        """The name of the split."""
        return "by patient " + "/".join(f"{100 * x:g}" for x in self.fractions if x) if self.fractions else "official"

    @property
    def results_file(self) -> Path:
        """The file of raw results."""
        return self.lines or self.out / RESULTS

    @property
    def store(self) -> FeatureStore | None:
        """The feature store in the folder `cache`, if it is set. Raises `ConfigError`."""
        return None if self.cache is None else FeatureStore(self.cache)

    def job(self, system: System, seed: int) -> JobSpec:
        """The job of one run. Raises `ConfigError`, also if the backbone has seen the test rows."""
        backbone = self.backbone or bundled_for(self.reader)
        if has_seen(backbone, self.reader):
            raise ConfigError(f"the backbone '{backbone}' has seen {self.reader}, its test rows too: choose another")
        return JobSpec.from_dict(
            {
                "method": system.method,
                "options": self._options(system),
                "data": self.reader,
                "split": {"kind": "official", "seed": seed, "questions": self.questions}
                | ({"kind": "patient", "fractions": self.fractions} if self.fractions else {}),
                "backbone": backbone,
                "seed": seed,
                "secagg": system.secagg,
                "round_timeout": None,
            }
        )

    def _options(self, system: System) -> dict[str, Any]:
        """The system's options with the budget's. With open questions, a longer list replaces the closed answers."""
        options, listed = system.with_budget(dict(self.budget)), self.answers or "public"
        if self.regime.unseen and not system.centralised:
            options |= self._unseen(system, options)
        if options.get("mixing") == "organ":
            places = [(site, self.regime.organ(site)) for site in self.sites]
            options["groups"] = [
                [site for site, place in places if place == organ]
                for organ in dict.fromkeys(place for _, place in places)
            ]
        if (self.questions == "closed" and not self.answers) or "answers" in options:
            return options
        names_closed = create(system.method, options, secagg=system.secagg).public_answers == CLOSED_ANSWERS
        return options | {"answers": listed} if names_closed else options

    def _unseen(self, system: System, options: dict[str, Any]) -> dict[str, Any]:
        """The option that names unseen sites; empty for a silent `Alone`, the reference, which trains there too."""
        method = create(system.method, options, secagg=system.secagg)
        if isinstance(method, Alone) and method.silent:
            return {}
        if not isinstance(method, Averaging):
            raise ConfigError(f"'{system.label}' sends no model that an unseen site could test: leave it out")
        return {"unseen": list(self.regime.unseen)}

    def folder(self, system: System, seed: int) -> Path:
        """The folder of one run."""
        return self.out / "runs" / f"{system.folder}-{seed}"


def run(grid: Grid, workers: int) -> Iterator[tuple[System, int]]:
    """Performs the missing runs in `workers` parallel processes, and yields each run as it ends.

    Raises `ConfigError` before anything runs, or as soon as a run fails.
    """
    todo = [(system, seed) for seed in range(grid.seeds) for system in grid.systems if not _is_done(grid, system, seed)]
    for system, seed in todo:
        check_sites(grid.job(system, seed), 1 if system.centralised else len(grid.sites))
    waiting = iter(todo)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        # Only as many runs as workers are submitted: an interrupted grid ends with the runs that have begun.
        running = {}
        for number, each in enumerate(islice(waiting, workers)):
            device = in_turn(grid.devices, number)
            running[pool.submit(_run, grid, *each, device)] = *each, device
        while running:
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                done.result()
                system, seed, device = running.pop(done)
                for each in islice(waiting, 1):
                    running[pool.submit(_run, grid, *each, device)] = *each, device
                yield system, seed


def _end_with_parent() -> None:
    """Ends this worker as soon as its parent dies. Otherwise a pool's workers train on, and then wait for ever."""
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(process: BaseProcess) -> None:
    process.join()
    os._exit(1)


def results(grid: Grid) -> list[Result]:
    """Returns the result of each run, baselines without training first, and adds them all to `results.jsonl`."""
    every = [_free(grid, label, seed) for label in FREE for seed in range(grid.seeds)]
    every += [_saved(grid, system, seed) for system in grid.systems for seed in range(grid.seeds)]
    append(grid.results_file, every)
    return every


def _saved(grid: Grid, system: System, seed: int) -> Result:
    """The result of a run that has ended. Version 0.2.0 numbered patients otherwise and wrote no version."""
    record = json.loads((grid.folder(system, seed) / OUTCOME).read_text(encoding="utf-8"))
    patients = {site: numbered_patients(rows) for site, rows in record["outcome"]["patients"].items()}
    changes = {"patients": patients, "seed": seed, "cohort": _cohort(grid, seed)}
    described = {
        "system": system.label,
        "method": system.method,
        "options": record["job"]["options"],
        "baseline": system.baseline,
        "alone": system.alone,
        "without_picture": system.without_picture,
        "version": record.get("version", OLD),
    }
    return _result(grid, RunOutcome(**{**record["outcome"], **changes}), described)


def _free(grid: Grid, label: str, seed: int) -> Result:
    data = data_of(grid, seed)
    if grid.regime.joining is not None:
        data = {site: newcomer(each, grid.regime.joining) for site, each in data.items()}
    outcome = RunOutcome(
        right={site: FREE[label](each).tolist() for site, each in data.items()},
        validated={},
        patients=patients_of(data),
        closed=closed_of(data),
        types=types_of(grid.job(grid.systems[0], seed), data),
        bytes_up=0.0,
        bytes_down=0.0,
        seconds=0.0,
        parameters=0,
        seed=seed,
        cohort=_cohort(grid, seed),
    )
    described: dict[str, Any] = {"method": "", "options": {}, "baseline": True, "alone": "", "without_picture": ""}
    return _result(grid, outcome, {"system": label, "version": code_version(), **described})


def _result(grid: Grid, outcome: RunOutcome, described: Mapping[str, Any]) -> Result:
    spec = grid.job(grid.systems[0], outcome.seed)
    job, changed = spec.to_dict(), spec.model_dump(mode="json", exclude_defaults=True)
    split = {name: value for name, value in job["split"].items() if name != "seed"}
    # Through JSON, so that a result is equal to the one that is read from its line.
    budget = json.loads(json.dumps(dict(grid.budget)))
    setting = {"data": grid.reader, "split": split, "backbone": job["backbone"], "budget": budget}
    setting["regime"] = grid.regime.name
    setting["job"] = {name: value for name, value in changed.items() if name not in NAMED}
    return Result.model_validate(json.loads(json.dumps({**setting, **described, **parts_of(outcome)})))


def _cohort(grid: Grid, seed: int) -> int:
    """The first seed with the same test rows as this one. Published test rows are the same for all seeds."""
    mine = _test_rows(grid, seed)
    return next(other for other in range(seed + 1) if _test_rows(grid, other) == mine)


def _test_rows(grid: Grid, seed: int) -> dict[str, list[tuple[str, str]]]:
    """The patient's key and the question of each test row, by site."""
    job = grid.job(grid.systems[0], seed)
    return _read_test_rows(grid.reader, grid.root, grid.organs, job.split, seed, grid.regime)


@lru_cache
def _read_test_rows(
    reader: str, root: Path | None, organs: tuple[str, ...], split: Split, seed: int, regime: Regime
) -> dict[str, list[tuple[str, str]]]:
    by_site = regime.divided({organ: load_site(reader, root, organ, split, seed) for organ in organs})
    return {
        site: [
            (data.patients[patient], question)
            for patient, question in zip(data.test.patients.tolist(), data.test.questions, strict=True)
        ]
        for site, data in by_site.items()
    }


def _is_done(grid: Grid, system: System, seed: int) -> bool:
    """Whether the folder holds a complete run of exactly this job; any other run there is repeated.

    Raises `ConfigError` for the run of a newer version, which a repetition would overwrite.
    """
    file = grid.folder(system, seed) / OUTCOME
    if not file.exists():
        return False
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        newer = record["outcome"].keys() - {field.name for field in fields(RunOutcome)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    if newer:
        raise ConfigError(f"a newer version ran '{system.label}' in this folder: use that version, or another --out")
    try:
        # A run of an earlier version lacks the settings that came later: they have their defaults.
        job = JobSpec.from_dict({**record["job"], "round_timeout": None})
    except ConfigError:
        return False
    same_job = job == grid.job(system, seed) and record["sites"] == list(grid.sites)
    same_rows = record.get("pictures", True) == system.pictures and record.get("regime", ALL_ROWS) == grid.regime.name
    return bool(same_job and same_rows)


def _run(grid: Grid, system: System, seed: int, device: str) -> None:
    torch.set_num_threads(1)
    folder, job, machine = grid.folder(system, seed), grid.job(system, seed), Machine(device, grid.store, grid.files)
    if folder.exists():
        shutil.rmtree(folder)
    data = data_of(grid, seed, system.pictures)
    if grid.regime.joining is not None:
        outcome = joining_sites(job, grid.root, folder, data, grid.regime, system.centralised, machine)
    elif system.centralised:
        outcome = centralised(job, folder, grid.regime.pooled(data), machine)
    else:
        outcome, _ = federated(job, grid.root, folder, data, machine)
    content = {
        "version": code_version(),
        "job": job.to_dict(),
        "sites": list(grid.sites),
        "pictures": system.pictures,
        "regime": grid.regime.name,
        "device": device,
        "outcome": vars(outcome),
    }
    write_whole(folder / OUTCOME, json.dumps(content).encode())
    append(grid.results_file, [_saved(grid, system, seed)])


def data_of(grid: Grid, seed: int, pictures: bool = True) -> dict[str, SiteData]:
    """The data of each site. If `pictures` is false, all pictures are black."""
    job = grid.job(grid.systems[0], seed)
    files = tuple(grid.files.items())
    data = grid.regime.divided(_read(grid.reader, grid.root, grid.organs, job.split, seed, job.backbone, files))
    if pictures:
        return data
    return {site: replace(each, pictures=each.pictures.blank()) for site, each in data.items()}


@lru_cache(maxsize=1)
def _read(
    reader: str,
    root: Path | None,
    organs: tuple[str, ...],
    split: Split,
    seed: int,
    backbone: str,
    files: tuple[tuple[str, Path], ...],
) -> dict[str, SiteData]:
    """The data of each organ, with its pictures. Runs of a seed follow each other, so a process reads them once."""
    by_organ, loaded = {}, load_backbone(backbone, dict(files))
    for organ in organs:
        data = load_site(reader, root, organ, split, seed)
        by_organ[organ] = replace(data, pictures=data.pictures.cached())
        for number in range(len(data.pictures)):
            by_organ[organ].pictures.read(number, loaded.shape.image_size, loaded.channels)
    return by_organ
