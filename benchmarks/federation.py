"""Measures what FLARE, courier and vault add to a job of three sites: seconds to start, a round's overhead, memory.

It measures the job in one process; with a vault for each site and couriers, without FLARE; in a provisioned federation
on loopback, twice, so that the second job finds vaults that run; and in the simulator with this project's transport
settings and with FLARE's, which provisioned sites refuse. Gate and log are on.
A job has started when every site's vault has admitted it, loaded data and backbone, and received the first task. Its
first answer has left every site after the first task, which is a round of training. Both are seconds from the job's
submission, according to the logs. With vaults and without FLARE, the start is the vaults' own part of it.
The overhead of a round is its wall clock at the server minus the slowest site's time between receiving and sending
according to its log. The first round, which also loads, is left out.
Memory is the largest proportional and resident set size (PSS, RSS) of a site's processes, sampled once a second. PSS
counts what processes share in parts; the vault's process for a job shares most of what the vault has imported. A vault
that starts maps more of its libraries than it keeps.
Targets: at most 0.3 s per round; at most 650 MB for a site's vault with its job, and 80 MB for the courier.

With `--sharing` it measures what a rule of sharing costs in a provisioned federation, in clear and on shares: mixtures
and means of prompts, where sites train one small batch a round, and heads on frozen features, averaged step by step. A
round's seconds are the server's wall clock.
Targets for 3 sites on two cores: at most 1.5 s a round for a mixture on shares, 0.3 s for a mean, 0.2 s for a step.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any

import psutil

from audits import Event, Refusal, read
from medfedvqa.core.on_shares import masked
from medfedvqa.data import organs, phantom
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.provision import prepare_simulation
from medfedvqa.federation.flare.reaper import reap
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.flare.run_folder import RESULTS
from medfedvqa.federation.hub import Reply, TaskCall
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import load_site_config
from medfedvqa.models import bundled_for
from medfedvqa.vault.courier import JobCourier
from medfedvqa.vault.place import JOB_FILE, VaultPlace

OURS = "ours"
SETTINGS = {OURS: True, "FLARE's": False}
SIMULATOR = "nvflare.private.fed.app.simulator.simulator"
SIMULATED = "simulate_job"  # the simulator's name for every job
ROLES = {"worker_process": "courier", "simulator_worker": "courier", "client_train": "site", "medfedvqa.vault": "vault"}
"""By a part of the command line, what a process of a site is."""
HOUR = 3600.0  # seconds
_PROMPTS = {"local_unit": "batches", "local_epochs": 1, "batch_rows": 8, "hidden": 16, "length": 24}
SHARING: Mapping[str, tuple[str, dict[str, Any]]] = {
    "mixture": ("prompt_pfl", _PROMPTS | {"local_baseline": False}),
    "mean": ("fedavg", _PROMPTS | {"tuning": "prompt", "own": "head"}),
    "step of a head": ("fedavg", {"tuning": "classifier", "schedule": "stepwise"}),
}
"""The method and options of each rule of sharing."""


def training_seconds(job: str, audits: Mapping[str, Path], in_turn: bool = False) -> dict[int, float]:
    """The longest time of a site between receiving and sending in each round, from a job's entries in the logs.

    `in_turn`: sites work one after the other, and their times add up.
    """
    seconds: dict[tuple[int, str], float] = defaultdict(float)
    for site, folder in audits.items():
        for entry in read(folder):
            if entry.job == job and entry.round is not None and entry.task in ("train", masked("train")):
                sign = {Event.RECEIVE: -1, Event.RELEASE: 1}.get(entry.event, 0)
                seconds[entry.round, site] += sign * entry.monotonic / 1e9
    rounds = {number for number, _ in seconds}
    combined = sum if in_turn else max
    return {number: combined(each for (other, _), each in seconds.items() if other == number) for number in rounds}


def overheads(job: str, out: Path, audits: Mapping[str, Path], in_turn: bool = False) -> list[float]:
    """Seconds beyond training of each round after the first, from a job's results and its entries in the logs."""
    training = training_seconds(job, audits, in_turn)
    rounds = json.loads((out / "results.json").read_text())["rounds"]
    return [record["seconds"] - training[record["round"]] for record in rounds if record["round"] > 1]


def start(job: str, submitted: float, audits: Mapping[str, Path]) -> tuple[float, float]:
    """Seconds from the submission until the slowest site has received the first task, and until it has answered."""

    def slowest(event: Event) -> float:
        entries = [next(e for e in read(folder) if (e.job, e.event) == (job, event)) for folder in audits.values()]
        return max(datetime.fromisoformat(entry.time).timestamp() for entry in entries) - submitted

    return slowest(Event.RECEIVE), slowest(Event.RELEASE)


class Peaks(dict[str, tuple[float, float]]):
    """The largest PSS and RSS in MB of one process, by what it is."""

    def add(self, role: str, pss: float, rss: float) -> None:
        """One more look at a process."""
        before = self.get(role, (0.0, 0.0))
        self[role] = max(before[0], pss), max(before[1], rss)

    def __str__(self) -> str:
        figures = {role: f"{pss:.0f} / {rss:.0f}" if rss else f"{pss:.0f} (PSS)" for role, (pss, rss) in self.items()}
        return ", ".join(f"{role} {figure}" for role, figure in figures.items())


@contextmanager
def watched_memory(folder: Path) -> Iterator[Peaks]:
    """The peaks of the site processes that work in `folder`."""
    peaks, done = Peaks(), threading.Event()

    def watch() -> None:
        while not done.wait(1.0):
            together: defaultdict[str, float] = defaultdict(float)
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    line = process.cmdline()
                    roles = [role for part, role in ROLES.items() if any(word.endswith(part) for word in line)]
                    if not roles or str(folder) not in " ".join(line):
                        continue
                    role, memory = roles[0], process.memory_full_info()
                    if role == "vault" and os.getsid(process.pid) != process.pid:
                        parent = process.parent()
                        role = "vault's job" if parent and parent.cmdline() == line else "vault that starts"
                    peaks.add(role, memory.pss / 1e6, memory.rss / 1e6)
                    if roles == ["vault"]:
                        together[line[-1]] += memory.pss / 1e6
            peaks.add("vault and job", max(together.values(), default=0.0), 0.0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        done.set()
        watcher.join()


Measured = tuple[str, tuple[float, float], list[float], Peaks]
"""The settings, seconds to the start and to the first answer, overheads, and memory."""


def in_process(launch: Launch, folder: Path) -> Iterator[Measured]:
    """Measure the engine that has server and sites in this process."""
    configs = {site: load_site_config(path, site) for site, path in write_sites(launch).items()}
    began = time.time()
    with closing(LocalEngine(configs, launch.job, "local")) as engine:
        serve_job(launch.job, launch.sites, engine.call, launch.out, "local")
    audits = launch.audit_folders
    yield OURS, start("local", began, audits), overheads("local", launch.out, audits, in_turn=True), Peaks()


class Couriers(dict[str, JobCourier]):
    """An engine of vaults without FLARE: by site, its courier."""

    def call(self, call: TaskCall) -> dict[str, Reply]:
        """See `hub.Engine`."""

        def answer(site: str) -> tuple[str, Reply]:
            incoming, message = call.audit_bytes.get(site, b""), call.messages[site]
            frame = self[site].ask("task", message, incoming, task=call.task, round=call.round)
            if frame.kind == "refused":
                call.refused(site, Refusal(frame.fields["code"]), "")
            call.answered(site)
            return site, Reply(dict(frame.arrays), 0.0, frame.data)

        with ThreadPoolExecutor(len(call.messages)) as pool:
            return dict(pool.map(answer, call.messages))


def over_vaults(launch: Launch, folder: Path) -> Iterator[Measured]:
    """Measure vaults, and couriers in this process, without FLARE, by two jobs."""
    places = {s: VaultPlace(path, s, None, path.parent / "vault") for s, path in write_sites(launch).items()}
    files = {JOB_FILE: json.dumps(launch.job.to_dict()).encode()}
    with watched_memory(folder) as peaks:
        for number in ("first", "second"):
            began, out, audits = time.time(), launch.out / number, launch.audit_folders
            couriers = Couriers({site: JobCourier(place, number, files) for site, place in places.items()})
            serve_job(launch.job, launch.sites, couriers.call, out, "local")
            for courier in couriers.values():
                courier.close()
            yield number, start(number, began, audits), overheads(number, out, audits), peaks


def provisioned(launch: Launch, folder: Path) -> Iterator[Measured]:
    """Measure real kits, by two jobs. Hardened sites send arrays inside their messages, whatever the job says."""
    with LoopbackFederation(folder, write_sites(launch)) as federation, watched_memory(federation.kits) as peaks:
        for number in ("first", "second"):
            export_job(launch.job, folder / number)
            began = time.time()
            job_id = federation.submit(folder / number)
            federation.wait(job_id, HOUR)
            audits = launch.audit_folders
            yield number, start(job_id, began, audits), overheads(job_id, federation.results(job_id), audits), peaks


def simulated(launch: Launch, folder: Path) -> Iterator[Measured]:
    """Measure a simulation with each of the settings."""
    for name, tuned in SETTINGS.items():
        of_settings = replace(launch, out=launch.out / str(tuned))
        workspace = folder / f"workspace-{tuned}"
        export_job(launch.job, folder / f"job-{tuned}", tuned)
        prepare_simulation(workspace, write_sites(of_settings))
        clients = ["-c", ",".join(launch.sites), "-t", str(len(launch.sites))]
        command = [sys.executable, "-m", SIMULATOR, str(folder / f"job-{tuned}"), "-w", str(workspace), *clients]
        began = time.time()
        with watched_memory(workspace) as peaks, (folder / "simulator.log").open("ab") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log)
        out, audits = workspace / "server" / SIMULATED / RESULTS, of_settings.audit_folders
        yield name, start(SIMULATED, began, audits), overheads(SIMULATED, out, audits), peaks


def sharing(count: int, rounds: int, folder: Path) -> Iterator[tuple[str, float, float, float, float]]:
    """For each rule: median seconds of a round, those beyond training, and bytes up and down per site and round."""

    def job_of(rule: str, secagg: bool) -> JobSpec:
        method, options = SHARING[rule]
        facts = {"method": method, "options": {**options, "rounds": rounds}, "data": "phantom", "secagg": secagg}
        return JobSpec.from_dict(facts)

    # A job on shares makes the keys that all of them use.
    launch = Launch(job_of("mixture", True), None, folder / "sites", phantom.organs(count))
    paths = write_sites(launch)
    for path in paths.values():
        path.write_text(path.read_text(encoding="utf-8").replace("[prompt_pfl]", "[prompt_pfl, fedavg]"))
    with LoopbackFederation(folder, paths) as federation:
        for number, (rule, secagg) in enumerate(product(SHARING, (False, True))):
            export_job(job_of(rule, secagg), folder / str(number))
            job_id = federation.submit(folder / str(number))
            federation.wait(job_id, HOUR)
            results = json.loads((federation.results(job_id) / "results.json").read_text(encoding="utf-8"))
            training = training_seconds(job_id, launch.audit_folders)
            records = [record for record in results["rounds"] if record["round"] in training]
            traffic = [each for record in records for each in record["bytes"].values()]
            yield (
                f"{rule} {'on shares' if secagg else 'in clear'}",
                statistics.median(record["seconds"] for record in records),
                statistics.median(record["seconds"] - training[record["round"]] for record in records),
                statistics.mean(each["up"] for each in traffic),
                statistics.mean(each["down"] for each in traffic),
            )


ENGINES = {"one process": in_process, "vaults": over_vaults, "provisioned": provisioned, "simulator": simulated}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--data", default="phantom", help="vqa-rad, slake or phantom")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--sharing", type=int, metavar="SITES", help="what sharing costs this many phantom sites")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("the first round, which also loads, is left out: give --rounds at least 2")
    if arguments.sharing:
        print("| sites | | s a round | of these beyond training | bytes up per site | bytes down per site |")
        with tempfile.TemporaryDirectory() as folder:
            for rule, *figures in sharing(arguments.sharing, arguments.rounds, Path(folder).resolve()):
                cells = "{:.2f} | {:.2f} | {:,.0f} | {:,.0f}".format(*figures)
                print(f"| {arguments.sharing} | {rule} | {cells} |", flush=True)
        return
    options = {"rounds": arguments.rounds, "local_epochs": 1, "local_baseline": False}
    facts = {"method": "prompt_pfl", "data": arguments.data, "options": options}
    job = JobSpec.from_dict({**facts, "backbone": bundled_for(arguments.data)})
    sites = organs(arguments.data, arguments.data_root)[:3]
    print("engine      | settings   | s: start, first answer | overhead per round, s: median, largest | PSS / RSS, MB")
    for engine in arguments.engines:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder).resolve()
            launch = Launch(job, arguments.data_root, path / "out", sites)
            for settings, first, seconds, peaks in ENGINES[engine](launch, path):
                middle, worst = statistics.median(seconds), max(seconds)
                cells = (
                    f"{engine:11} | {settings:10} | {first[0]:7.2f}, {first[1]:13.2f} | {middle:29.3f}, {worst:7.3f}"
                )
                print(f"{cells} | {peaks}", flush=True)
            reap([str(path)])  # vaults that nobody calls any more would end by themselves


if __name__ == "__main__":
    main()
