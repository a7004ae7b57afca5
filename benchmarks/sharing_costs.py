"""Measures what a rule of sharing costs in a provisioned federation: seconds, bytes and rounds, in clear and on shares.

In one federation for each number of sites: mixtures of prompts (`prompt_pfl`) and means of prompts (`fedavg` with
local heads), 61,440 numbers a site, as many as the prompts of ViT-B/32 have, where sites train one small batch a round;
and heads on frozen features, averaged by rounds or step by step, as jobs train them by default.
A round's seconds are the server's wall clock; what aggregation takes of them is measured from the last site's answer to
`train` to the end of the round. A whole job is the median times the rounds that the rule has by default.
Targets for 3 sites on two cores: at most 1.5 s a round for a mixture on shares, at most 0.3 s for a mean.
"""

import argparse
import json
import re
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

PROMPTS = {"local_unit": "batches", "local_epochs": 1, "batch_rows": 8, "hidden": 16, "length": 24}
MIXTURE = PROMPTS | {"local_baseline": False}
MEAN = PROMPTS | {"tuning": "prompt", "own": "head"}
HEAD = {"tuning": "classifier"}
STEP = HEAD | {"schedule": "stepwise"}
KINDS: Mapping[str, tuple[str, dict[str, Any], bool]] = {
    "mixture in clear": ("prompt_pfl", MIXTURE, False),
    "mixture on shares": ("prompt_pfl", MIXTURE, True),
    "mean in clear": ("fedavg", MEAN, False),
    "mean on shares": ("fedavg", MEAN, True),
    "heads by rounds in clear": ("fedavg", HEAD, False),
    "heads by rounds on shares": ("fedavg", HEAD, True),
    "heads step by step in clear": ("fedavg", STEP, False),
    "heads step by step on shares": ("fedavg", STEP, True),
    "heads, 4 batches an exchange": ("fedavg", STEP | {"rounds": 50, "local_epochs": 4}, False),
}


def job_of(kind: str, rounds: int | None = None) -> JobSpec:
    """The job of one row of the table; without `rounds`, with as many as the rule has by default."""
    method, options, secagg = KINDS[kind]
    options = options if rounds is None else {**options, "rounds": rounds}
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
            job = folder / "-".join(re.findall(r"\w+", kind))
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
    print("| sites | | s a round | beyond training | bytes up per site | down | rounds | whole job, s | MB up |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for count in arguments.sites:
        with tempfile.TemporaryDirectory() as folder:
            for kind, seconds, beyond, up, down in measured(count, arguments.rounds, Path(folder).resolve()):
                row = f"| {count} | {kind} | {seconds:.2f} | {beyond:.2f} | {up:,.0f} | {down:,.0f} |"
                whole = job_of(kind).build().rounds
                print(f"{row} {whole} | {seconds * whole:,.0f} | {up * whole / 1e6:,.1f} |", flush=True)


if __name__ == "__main__":
    main()
