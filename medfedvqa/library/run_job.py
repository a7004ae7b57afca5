"""Runs a job on a data set, for `medfedvqa.run` and the command `medfedvqa run`."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TypeGuard, get_args

from medfedvqa.core import method_type
from medfedvqa.data import is_registered
from medfedvqa.data.site_cuts import Cut, sites_of
from medfedvqa.devices import Precision, resolved
from medfedvqa.errors import ConfigError
from medfedvqa.federation import launch
from medfedvqa.federation.hub import TaskAnswer
from medfedvqa.federation.launch import Engine, Launch, plan
from medfedvqa.federation.shared_model import MODEL
from medfedvqa.library.data_set import Data
from medfedvqa.library.run_results import Results
from medfedvqa.library.training_job import Job, check_site_names
from medfedvqa.models.picture_networks import is_registered_network

RUNS = Path("runs")


def run(
    job: Job,
    data: Data,
    *,
    engine: str = "local",
    sites: Sequence[str] = (),
    device: str = "cpu",
    out: str | Path | None = None,
    progress: bool | Callable[[TaskAnswer], None] = False,
    threads: int = 1,
    backbone_files: Mapping[str, str | Path] | None = None,
    start_from: str | Path | None = None,
) -> Results:
    """Trains the job on the data set, by default with one site per organ, and returns the results.

    `engine`: `local` for this process, `simulator` or `provisioned` for NVIDIA FLARE on this machine. `sites`: only
    these sites; all by default. `device`: `cpu`, `cuda`, `cuda:1` or `auto`, or several separated by commas, which
    sites take in turn. `out`: the folder of the run, new or empty; by default a new one below `runs`. `progress`:
    whether to print a line per round, or a function that receives each event. `threads`: processor threads per site.
    `backbone_files`: the checkpoints of backbones `ARCH@LABEL`. `start_from`: the folder of an earlier run of `fedavg`
    whose model all sites start from, with the engine `local`.

    Everything that can be checked is checked before anything is written. Raises `ConfigError`, `DataError`,
    `BackboneError` or `FederationError`.
    """
    files = {name: Path(path) for name, path in (backbone_files or {}).items()}
    planned = launch_of(
        job,
        data,
        engine,
        sites=sites,
        device=device,
        out=out,
        threads=threads,
        backbone_files=files,
        start_from=None if start_from is None else Path(start_from),
    )
    watch = progress if callable(progress) else RoundLines().watch if progress else lambda event: None
    return Results(planned.out, launch.run(planned, engine_of(engine), watch))


def launch_of(
    job: Job,
    data: Data,
    engine: str = "local",
    *,
    sites: Sequence[str] = (),
    device: str = "cpu",
    out: str | Path | None = None,
    threads: int = 1,
    backbone_files: Mapping[str, Path] | None = None,
    ledger: Path | None = None,
    cache: Path | None = None,
    precision: Precision = "float32",
    start_from: Path | None = None,
) -> Launch:
    """The checked launch of a run; writes nothing. Raises `ConfigError`, `DataError`, `BackboneError`."""
    if isinstance(sites, str):
        raise ConfigError(f"'sites' must be a list of names: write sites=['{sites}']")
    device = resolved(device)
    _check_processes(job, data, engine_of(engine))
    if cache is not None and engine != "local":
        raise ConfigError("a cache is for sites in this process: leave it out, or use the engine 'local'")
    if start_from is not None and engine != "local":
        raise ConfigError("FLARE's server has its own runs' models: export a job with --start-from, or run it 'local'")
    sites = tuple(sites) or (
        sites_of(data.cut, data.name, data.root, job.spec(data).split.questions) if data.cut != Cut() else ()
    )
    check_site_names(data.name, data.root, tuple(sites))
    folder = new_folder(job.method, data.name) if out is None else Path(out)
    model = None if start_from is None else start_from / MODEL
    machine = (threads, backbone_files, ledger, device, cache, precision)
    return plan(job.spec(data), data.root, folder, tuple(sites), *machine, start_from=model)


def engine_of(name: str) -> Engine:
    """The engine of this name. Raises `ConfigError`."""
    if not _is_engine(name):
        raise ConfigError(f"unknown engine '{name}'; there is: {', '.join(get_args(Engine))}")
    return name


def _is_engine(name: str) -> TypeGuard[Engine]:
    return name in get_args(Engine)


def new_folder(*parts: str) -> Path:
    """A folder that does not exist yet: runs/PART-PART-TIME, with a number if this name is taken."""
    stem = "-".join((*parts, time.strftime("%Y%m%d-%H%M%S")))
    names = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
    return next(RUNS / name for name in names if not (RUNS / name).exists())


class RoundLines:
    """Prints a line as the first site answers in each round, and one as the evaluation begins."""

    def __init__(self) -> None:
        self._last = ""

    def watch(self, event: TaskAnswer) -> None:
        """Prints the stage of the event, once."""
        evaluating = event.task == "evaluate"
        line = "evaluation" if evaluating else f"round {event.round} of {event.rounds}"
        if line != self._last:
            print(line, flush=True)
        self._last = line


def _check_processes(job: Job, data: Data, engine: Engine) -> None:
    """Raises `ConfigError` if another process would need a reader, network or method of this process alone."""
    if engine != "local" and is_registered(data.name):
        raise ConfigError(f"the data '{data.name}' is read by a function of this program alone: use the engine 'local'")
    if engine != "local" and is_registered_network(job.options.get("network") or ""):
        raise ConfigError("the job's network is registered in this program alone: use the engine 'local'")
    if engine != "local" and method_type(job.method).__module__ == "__main__":
        raise ConfigError(f"the method '{job.method}' is defined in this program alone: use the engine 'local'")
