"""Measures the overhead of FLARE: seconds per round beyond training with three sites, and memory per site process.

It measures a provisioned federation on loopback, and the simulator with this project's transport settings and with
FLARE's, which provisioned sites refuse. Gate and log are on, and in the federation also the byte ledger.
The overhead of a round is its wall clock at the server minus the slowest site's time between receiving and sending
according to its log. The first round, which also loads, is left out.
Memory is the largest proportional set size (PSS) of a site's job process, sampled once a second.
Targets: at most 0.3 s per round, and at most 600 MB per site process with the bundled backbone.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from audits import Event, read
from medfedvqa.data import organs
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.provision import prepare_simulation
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.flare.run_folder import RESULTS
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.models import bundled_for

OURS = "ours"
SETTINGS = {OURS: True, "FLARE's": False}
SIMULATOR = "nvflare.private.fed.app.simulator.simulator"
SIMULATED = "simulate_job"  # the simulator's name for every job
WORKERS = ("worker_process", "simulator_worker")
HOUR = 3600.0  # seconds


def training_seconds(job: str, audits: Mapping[str, Path]) -> dict[int, float]:
    """The longest time of a site between receiving and sending in each round, from a job's entries in the logs."""
    seconds: dict[tuple[int, str], float] = defaultdict(float)
    for site, folder in audits.items():
        for entry in read(folder):
            if entry.job == job and entry.round is not None and entry.task == "train":
                sign = {Event.RECEIVE: -1, Event.RELEASE: 1}.get(entry.event, 0)
                seconds[entry.round, site] += sign * entry.monotonic / 1e9
    rounds = {number for number, _ in seconds}
    return {number: max(each for (other, _), each in seconds.items() if other == number) for number in rounds}


def overheads(job: str, out: Path, audits: Mapping[str, Path]) -> list[float]:
    """Seconds beyond training of each round after the first, from a job's results and its entries in the logs."""
    training = training_seconds(job, audits)
    rounds = json.loads((out / "results.json").read_text())["rounds"]
    return [record["seconds"] - training[record["round"]] for record in rounds if record["round"] > 1]


@contextmanager
def watched_memory(folder: Path) -> Iterator[dict[int, float]]:
    """The largest PSS in MB, by process, of the site processes that work in `folder`."""
    peaks: dict[int, float] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(1.0):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    line = " ".join(process.cmdline())
                    if str(folder) in line and any(worker in line for worker in WORKERS):
                        peaks[process.pid] = max(peaks.get(process.pid, 0.0), process.memory_full_info().pss / 1e6)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        done.set()
        watcher.join()


def provisioned(launch: Launch, folder: Path) -> Iterator[tuple[str, list[float], dict[int, float]]]:
    """Measure real kits. Hardened sites send arrays inside their messages, whatever the job says."""
    with LoopbackFederation(folder, write_sites(launch)) as federation:
        export_job(launch.job, folder / "job")
        with watched_memory(federation.kits) as peaks:
            job_id = federation.submit(folder / "job")
            federation.wait(job_id, HOUR)
        yield OURS, overheads(job_id, federation.results(job_id), launch.audit_folders), peaks


def simulated(launch: Launch, folder: Path) -> Iterator[tuple[str, list[float], dict[int, float]]]:
    """Measure a simulation with each of the settings."""
    for name, tuned in SETTINGS.items():
        of_settings = Launch(launch.job, launch.root, launch.out / str(tuned), launch.sites)
        workspace = folder / f"workspace-{tuned}"
        export_job(launch.job, folder / f"job-{tuned}", tuned)
        prepare_simulation(workspace, write_sites(of_settings))
        clients = ["-c", ",".join(launch.sites), "-t", str(len(launch.sites))]
        command = [sys.executable, "-m", SIMULATOR, str(folder / f"job-{tuned}"), "-w", str(workspace), *clients]
        with watched_memory(workspace) as peaks, (folder / "simulator.log").open("ab") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log)
        out = workspace / "server" / SIMULATED / RESULTS
        yield name, overheads(SIMULATED, out, of_settings.audit_folders), peaks


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--data", default="phantom", help="vqa-rad, slake or phantom")
    parser.add_argument("--data-root", type=Path)
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("the first round, which also loads, is left out: give --rounds at least 2")
    options = {"rounds": arguments.rounds, "local_epochs": 1, "local_baseline": False}
    facts = {"method": "prompt_pfl", "data": arguments.data, "options": options}
    job = JobSpec.from_dict({**facts, "backbone": bundled_for(arguments.data)})
    sites = organs(arguments.data, arguments.data_root)[:3]
    print("engine      | settings | overhead per round, s: median, largest | memory per site process, MB: largest")
    for engine, measure in (("provisioned", provisioned), ("simulator", simulated)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder).resolve()
            for settings, seconds, peaks in measure(Launch(job, arguments.data_root, path / "out", sites), path):
                middle, worst = statistics.median(seconds), max(seconds)
                largest = max(peaks.values())
                print(f"{engine:11} | {settings:8} | {middle:29.2f}, {worst:7.2f} | {largest:38.0f}", flush=True)


if __name__ == "__main__":
    main()
