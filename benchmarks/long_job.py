"""Measures threads, file descriptors and memory of a long job's processes, round by round.

In a provisioned federation on loopback, one job in clear (3 sites) and one on shares (4 sites), each of prompts that
train for one small batch a round. Every process is measured when the server has the first answer of a round: the
server's, each site's, and those that run the job. Memory is the unique set size (USS), which would be free if the
process ended. The first rounds load; after them nothing may grow with the number of rounds.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from medfedvqa.data import phantom
from medfedvqa.errors import FederationError
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.progress import ProgressReader
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.flare.run_folder import RESULTS
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, write_sites

TRAINING = {"local_unit": "batches", "local_epochs": 1, "batch_rows": 4, "blocks": 1, "hidden": 8, "length": 2}
KINDS: Mapping[str, tuple[int, bool]] = {"in clear": (3, False), "on shares": (4, True)}
"""Sites of a job, and whether they aggregate on shares."""
SILENCE = 60.0
"""Seconds without an answer of a site, after which the job may be over."""
MARKS = (1, 10, 100, 250, 500, 750, 1000)

Figures = dict[str, tuple[int, int, int]]
"""Threads, descriptors and megabytes, by process."""


def job_of(rounds: int, secagg: bool) -> JobSpec:
    """A job whose rounds are as short as they can be."""
    options = {**TRAINING, "local_baseline": False, "rounds": rounds}
    return JobSpec.from_dict({"method": "prompt_pfl", "options": options, "data": "phantom", "secagg": secagg})


def figures(federation: LoopbackFederation, parties: tuple[str, ...]) -> Figures:
    """The figures of every process of the federation."""
    by_process: Figures = {}
    for party in parties:
        for job in (False, True):
            for process in federation.processes(party, job):
                if process.name() != "bash":
                    by_process[f"{party}, {'job' if job else 'own'}"] = measured(process)
    return by_process


def measured(process: psutil.Process) -> tuple[int, int, int]:
    """The figures of one process."""
    return process.num_threads(), process.num_fds(), round(process.memory_full_info().uss / 1e6)


def watched(federation: LoopbackFederation, job_id: str, marks: tuple[int, ...]) -> Iterator[tuple[int, Figures]]:
    """The figures as the job reaches each of these rounds. Raises `FederationError` if it ends before."""
    reader, parties = ProgressReader(), (SERVER, *federation.sites)
    results = federation.kits / SERVER / job_id / RESULTS
    reached, to_come, last_event = 0, list(marks), time.monotonic()
    while to_come:
        for event in reader.events(results):
            reached, last_event = max(reached, event.round), time.monotonic()
        if reached >= to_come[0]:
            yield to_come.pop(0), figures(federation, parties)
        # The status is requested seldom, since the answers would be part of the measurement.
        if time.monotonic() - last_event > SILENCE:
            if federation.finished(job_id):
                raise FederationError(f"the job was over before round {to_come[0]}: {federation.status(job_id)}")
            last_event = time.monotonic()
        time.sleep(0.1)


def table(kind: str, rounds: int, folder: Path) -> Iterator[str]:
    """The lines of one job's table."""
    count, secagg = KINDS[kind]
    marks = tuple(mark for mark in MARKS if mark <= rounds)
    launch = Launch(job_of(rounds, secagg), None, folder / "sites", phantom.organs(count))
    export_job(launch.job, folder / "job")
    with LoopbackFederation(folder, write_sites(launch)) as federation:
        columns = dict(watched(federation, federation.submit(folder / "job"), marks))
    yield f"| {kind} | " + " | ".join(f"round {mark}" for mark in columns) + " |"
    yield "|---|" + "---:|" * len(columns)
    for process in columns[marks[-1]]:
        cells = ["{} / {} / {}".format(*column[process]) if process in column else "" for column in columns.values()]
        yield f"| {process} | " + " | ".join(cells) + " |"


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=MARKS[-1])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = parser.parse_args()
    print("Threads / file descriptors / megabytes (USS) of each process.")
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            print()
            for line in table(kind, arguments.rounds, Path(folder).resolve()):
                print(line, flush=True)


if __name__ == "__main__":
    main()
