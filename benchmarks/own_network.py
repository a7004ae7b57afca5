"""Measures a network of MONAI that four hospitals train from random values under the product's guards.

The pictures are the open chest films of children in the data folder (`open/kermany_cxr.zip`: normal, bacterial and
viral pneumonia). One film counts as one patient, since the set names none. Each hospital gets equally many, drawn
without replacement. Every arm is a whole job through gate, log and ledger in this process.

    python benchmarks/own_network.py --data-root "$MEDFEDVQA_DATA" --patients 250 --seeds 0 --lines FILE
    python benchmarks/own_network.py --lines FILE --table

`--lines` gets a line of JSON for each run. Lines that are there are not repeated.
"""

import argparse
import csv
import io
import json
import random
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import medfedvqa as mv
from audits import Tensors
from medfedvqa.core import State, register
from medfedvqa.methods.fedavg import FedAvg
from medfedvqa.training import Trainer
from medfedvqa.version import code_version
from privacy import spent
from privacy.mechanisms import Use
from privacy.mechanisms.sampled_gaussian import SampledGaussian

HOSPITALS = ("north", "east", "south", "west")
NETWORKS: Mapping[str, dict[str, Any]] = {
    "DenseNet121": {},
    "small DenseNet": {"init_features": 8, "growth_rate": 4, "block_config": [2, 2, 2], "groups": 4, "bn_size": 2},
}
SIDE, ROUNDS, EPSILON = 64, 12, 8.0
CLIENT_CLIP, CLIENT_NOISE = 1.0, 2.4
"""Of a filter by client: the norm of a hospital's change, and the deviation of the server's noise over that norm."""
ARMS = ("alone", "together", "stepwise", "private", "private, shared noise on shares", "client-level filter")


class ByClient(FedAvg):
    """FedAvg whose hospitals shorten their change to a norm, and whose server adds noise to the mean."""

    name = "by_client"

    def local(self, trainer: Trainer, state: State, start: Any, round: int, seed: int) -> State:
        """See `Alone.local`."""
        state = super().local(trainer, state, start, round, seed)
        changes = {name: value - start[name] for name, value in state["values"].items()}
        norm = float(torch.stack([change.square().sum() for change in changes.values()]).sum().sqrt())
        factor = min(1.0, CLIENT_CLIP / max(norm, 1e-12))
        return {**state, "values": {name: start[name] + factor * change for name, change in changes.items()}}

    def server_step(self, held: Tensors, mean: Tensors, state: Any) -> tuple[Tensors, Any]:
        """See `Stepwise.server_step`. The noise is drawn from a number of the round, for one server alone."""
        number = state.get("steps", 0) + 1
        chance, deviation = np.random.default_rng(number), CLIENT_NOISE * CLIENT_CLIP / len(HOSPITALS)
        noisy = {n: (v + chance.normal(0, deviation, v.shape)).astype(held[n].dtype) for n, v in mean.items()}
        return noisy, {"steps": number}


def films(root: Path, folder: Path, patients: int, seed: int) -> None:
    """Write a folder of films with a table of labels: as many patients for each hospital, a quarter to test."""
    with zipfile.ZipFile(root / "open" / "kermany_cxr.zip") as archive:
        lines = [json.loads(line) for line in archive.read("captions.jsonl").splitlines()]
        chosen = random.Random(seed).sample(lines, patients * len(HOSPITALS))
        table = io.StringIO()
        writer = csv.writer(table)
        writer.writerow(["picture", "patient", "site", "split", "label"])
        for number, line in enumerate(chosen):
            site, place = HOSPITALS[number % len(HOSPITALS)], number // len(HOSPITALS)
            part = "test" if place % 4 == 3 else "validate" if place % 10 == 0 else "train"
            writer.writerow([line["file"], f"p{number}", site, part, line["finding"]])
            (folder / line["file"]).write_bytes(archive.read(line["file"]))
    (folder / "labels.csv").write_text(table.getvalue(), encoding="utf-8")


def job(arm: str, network: str, seed: int) -> mv.Job:
    """The job of an arm."""
    options: dict[str, Any] = {
        "network": "DenseNet121",
        "network_arguments": NETWORKS[network],
        "pixels": SIDE,
        "answers": ["normal", "bacterial pneumonia", "viral pneumonia"],
        "rounds": ROUNDS,
        "local_epochs": 4,
        "weighting": "uniform",
        "learning_rate": 3e-3,
        "seed": seed,
    }
    steps = {**options, "schedule": "stepwise", "rounds": 10 * ROUNDS, "local_epochs": 1}
    match arm:
        case "alone":
            return mv.Job("local", **options)
        case "together":
            return mv.Job("fedavg", **options)
        case "stepwise":
            return mv.Job("fedavg", **steps)
        case "private":
            return mv.Job("fedavg", **options, epsilon=EPSILON, dp={"clip": 0.5, "expected_patients": 32})
        case "client-level filter":
            return mv.Job("by_client", **options)
    shared = {"clip": 0.5, "expected_patients": 32, "sharers": 3, "colluders": 1}
    return mv.Job("fedavg", **{**steps, "rounds": 5 * ROUNDS}, epsilon=EPSILON, dp=shared, secagg=True, min_sites=4)


def measure(arm: str, network: str, seed: int, patients: int, root: Path) -> dict[str, Any]:
    """A run's line."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "films"
        folder.mkdir()
        films(root, folder, patients, seed)
        begin = time.perf_counter()
        results = mv.run(job(arm, network, seed), mv.load("image-classes", folder), out=Path(place) / "run", threads=2)
        seconds = time.perf_counter() - begin
    documents = {name: site.document for name, site in results.sites.items()}
    counted = {n: (d["correct"], d["baselines"]["majority"]["correct"], d["n"]) for n, d in documents.items()}
    facts = {"arm": arm, "network": network, "seed": seed, "patients": patients, "sites": counted}
    return {**facts, "seconds": round(seconds, 1), "version": code_version()}


def against_clients() -> float:
    """The epsilon of the filter by client, at delta 1e-5, for a hospital as a whole, against all but the server."""
    return spent([SampledGaussian(1.0, CLIENT_NOISE, ROUNDS, Use.GRADIENTS)], 1e-5).epsilon


def table(lines: list[dict[str, Any]]) -> str:
    """One row for each network and arm: the accuracy over all hospitals and seeds."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        groups[line["network"], line["arm"]].append(line)
    rows = ["| network | arm | accuracy | majority | seeds | seconds |", "|---|---|---|---|---|---|"]
    for network in NETWORKS:
        for arm in ARMS:
            if runs := groups.get((network, arm)):
                right, majority, total = np.array([each for run in runs for each in run["sites"].values()]).sum(axis=0)
                seconds = np.median([run["seconds"] for run in runs])
                shares = f"{right / total:.1%} | {majority / total:.1%}"
                rows.append(f"| {network} | {arm} | {shares} | {len(runs)} | {seconds:.0f} |")
    return "\n".join(rows)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--patients", type=int, default=250)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--arms", nargs="*", default=list(ARMS))
    parser.add_argument("--lines", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    lines = [json.loads(line) for line in given.lines.read_text().splitlines()] if given.lines.exists() else []
    if not given.table:
        register(ByClient)
        done = {(line["arm"], line["network"], line["seed"], line["patients"]) for line in lines}
        wanted = [(a, n, s, given.patients) for s in given.seeds for n in given.networks for a in given.arms]
        for each in wanted:
            if each not in done:
                lines.append(measure(*each, given.data_root))
                with given.lines.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
                print(lines[-1], flush=True)
    print(table(lines))
    print(f"client-level filter: epsilon {against_clients():.1f} for a hospital as a whole, not for a patient")


if __name__ == "__main__":
    main()
