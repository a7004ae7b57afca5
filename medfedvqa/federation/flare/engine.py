"""Runs a job on FLARE on this machine, in its simulator or in a provisioned federation."""

import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medfedvqa.errors import FederationError
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.progress import ProgressReader
from medfedvqa.federation.flare.provision import prepare_simulation
from medfedvqa.federation.flare.reaper import Reaper
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.flare.run_folder import RESULTS, last_words
from medfedvqa.federation.flare.server_side import STOP_FILE
from medfedvqa.federation.hub import TaskAnswer
from medfedvqa.federation.job import JobSpec

_SIMULATOR = "nvflare.private.fed.app.simulator.simulator"
_POLL = 0.2  # seconds
_SPLITS = re.compile(r"""[\s'"\\#]""")
"""Characters at which a shell splits or alters a path."""


@dataclass(frozen=True)
class _Run:
    """A job that has been started."""

    running: Callable[[], bool]
    results: Callable[[], Path]
    """The folder where results are now; it may not be there yet."""
    succeeded: Callable[[], bool]


def run_on_flare(
    job: JobSpec,
    sites: Mapping[str, Path],
    out: Path,
    engine: Literal["simulator", "provisioned"],
    watch: Callable[[TaskAnswer], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Run `job` with one process per site; results go into `out`, FLARE's own files into `out/flare`.

    `sites`: a `site.yml` with absolute paths, by site name. Once `stop` returns True, no new round begins and the model
    reached so far is evaluated. Returns the results. Raises `FederationError` if the job fails; `out` then holds the
    partial results.
    """
    start = _simulation if engine == "simulator" else _federation
    folder = out.resolve() / "flare"
    folder.mkdir(parents=True)
    stop_file = folder / "stop"
    reader = ProgressReader()
    with start(folder, job, sites, {STOP_FILE: str(stop_file)}) as run:
        try:
            while run.running():
                _report(reader, run, watch)
                if stop():
                    stop_file.touch()
                time.sleep(_POLL)
            _report(reader, run, watch)
        finally:
            if run.results().is_dir():
                shutil.copytree(run.results(), out, dirs_exist_ok=True)
        succeeded = run.succeeded()
    path = out / "results.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    # The simulator ends well although its workers died.
    if not succeeded or results.get("status") not in ("finished", "stopped"):
        reasons = [results.get("failure"), *last_words(folder), f"FLARE's logs are in '{folder}'"]
        raise FederationError("; ".join(reason for reason in reasons if reason))
    return results


def _report(reader: ProgressReader, run: _Run, watch: Callable[[TaskAnswer], None]) -> None:
    for event in reader.events(run.results()):
        watch(event)


@contextmanager
def _simulation(
    folder: Path, job: JobSpec, sites: Mapping[str, Path], environment: Mapping[str, str]
) -> Iterator[_Run]:
    export_job(job, folder / "job")
    prepare_simulation(folder / "simulator", sites)
    clients = ["-c", ",".join(sites), "-t", str(len(sites))]
    with _plain_path(folder) as plain, _plain_path(Path(sys.prefix)) as prefix, Reaper(plain / "simulator") as reaper:
        workspace = plain / "simulator"
        python = str(prefix / Path(sys.executable).relative_to(sys.prefix))
        command = [python, "-m", _SIMULATOR, str(plain / "job"), "-w", str(workspace), *clients]
        process = reaper.start(command, folder, folder / "simulator.log", {**os.environ, **environment})
        yield _Run(
            running=lambda: process.poll() is None,
            results=lambda: workspace / "server" / "simulate_job" / RESULTS,
            succeeded=lambda: process.returncode == 0,
        )


@contextmanager
def _plain_path(folder: Path) -> Iterator[Path]:
    """A path of the folder that FLARE's simulator (2.9) can split from a string: its own, or that of a link to it.

    The simulator starts its workers by such a string, and a blank or a quote in a path ended each of them.
    """
    if not _SPLITS.search(str(folder)):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="medfedvqa-") as temporary:
        link = Path(temporary) / "link"
        link.symlink_to(folder, target_is_directory=True)
        if _SPLITS.search(str(link)):
            raise FederationError("the folder for temporary files has a blank or a quote in its name: set TMPDIR")
        yield link


@contextmanager
def _federation(
    folder: Path, job: JobSpec, sites: Mapping[str, Path], environment: Mapping[str, str]
) -> Iterator[_Run]:
    with LoopbackFederation(folder, sites, environment) as federation:
        export_job(job.model_copy(update={"terms": federation.terms()}), folder / "job")
        job_id = federation.submit(folder / "job")
        yield _Run(
            running=lambda: not federation.finished(job_id),
            results=lambda: federation.results(job_id),
            succeeded=lambda: federation.status(job_id) == "FINISHED:COMPLETED",
        )
