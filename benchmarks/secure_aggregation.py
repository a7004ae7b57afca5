"""Measures secure aggregation in a provisioned federation: seconds and bytes of a round, in clear and on shares.

In one federation for each number of sites: mixtures of prompts (`prompt_pfl`) and means of prompts (`fedavg` with
local heads), each in clear and on shares, 61,440 numbers a site, as many as the prompts of ViT-B/32 have. Sites train
one small batch a round. A round's seconds are the server's wall clock; what aggregation takes of them is measured
from the last site's answer to `train` to the end of the round.
Targets for 3 sites on two cores: at most 1.5 s a round for a mixture on shares, at most 0.3 s for a mean.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from federation import HOUR, training_seconds

from medfedvqa.data import phantom
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, write_sites

TRAINING = {"local_unit": "batches", "local_epochs": 1, "batch_rows": 8, "hidden": 16, "length": 24}
KINDS: Mapping[str, tuple[str, dict[str, Any], bool]] = {
    "mixture in clear": ("prompt_pfl", {"local_baseline": False}, False),
    "mixture on shares": ("prompt_pfl", {"local_baseline": False}, True),
    "mean in clear": ("fedavg", {"tuning": "prompt", "head": "local"}, False),
    "mean on shares": ("fedavg", {"tuning": "prompt", "head": "local"}, True),
}


def job_of(kind: str, rounds: int) -> JobSpec:
    """The job of one row of the table."""
    method, options, secagg = KINDS[kind]
    options = {**TRAINING, **options, "rounds": rounds}
    return JobSpec.from_dict({"method": method, "options": options, "data": "phantom", "secagg": secagg})


def measured(count: int, rounds: int, folder: Path) -> Iterator[tuple[str, float, float, float, float]]:
    """For each kind: median seconds of a round, those beyond training, and bytes up and down per site and round."""
    sites = phantom.organs(count)
    # A job on shares makes the keys that all of them use.
    launch = Launch(job_of("mixture on shares", rounds), None, folder / "sites", sites)
    paths = write_sites(launch)
    for path in paths.values():
        path.write_text(path.read_text(encoding="utf-8").replace("[prompt_pfl]", "[prompt_pfl, fedavg]"))
    with LoopbackFederation(folder, paths) as federation:
        for kind in KINDS:
            job = folder / f"job-{kind.replace(' ', '-')}"
            export_job(job_of(kind, rounds), job)
            job_id = federation.submit(job)
            federation.wait(job_id, HOUR)
            results = json.loads((federation.results(job_id) / "results.json").read_text(encoding="utf-8"))
            training = training_seconds(job_id, launch.audit_folders)
            # The first round also loads.
            records = [record for record in results["rounds"] if record["round"] in training]
            traffic = [each for record in records for each in record["bytes"].values()]
            yield (
                kind,
                statistics.median(record["seconds"] for record in records),
                statistics.median(record["seconds"] - training[record["round"]] for record in records),
                statistics.mean(each["up"] for each in traffic),
                statistics.mean(each["down"] for each in traffic),
            )


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 5])
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("the first round, which also loads, is left out: give --rounds at least 2")
    print("| sites | | s a round | of these beyond training | bytes up per site | bytes down per site |")
    print("|---|---|---:|---:|---:|---:|")
    for count in arguments.sites:
        with tempfile.TemporaryDirectory() as folder:
            for kind, seconds, beyond, up, down in measured(count, arguments.rounds, Path(folder).resolve()):
                print(f"| {count} | {kind} | {seconds:.2f} | {beyond:.2f} | {up:,.0f} | {down:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
