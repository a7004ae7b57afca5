"""Compares the two protocols for means on shares, masks and CrypTen, in a provisioned federation of phantom sites.

Three methods that average: adapters (`fedavg`), the shared adapters of `feddat`, and both towers' last block
(`fedp3`). Each job runs in clear, under masks and with CrypTen, from the same seed, so that sites train alike. Printed
are, over all sites and tensors, the largest difference of the last mean from the one in clear, relative to that mean's
norm, and whether its bits are those of the mean under masks; the median seconds of a round, and of these the seconds
beyond training; and the bytes that a site sends, shares to other sites included, and gets from the server in a round.
The first round, which also loads, is left out.
Target: the same mean with both protocols, bit for bit.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from federation import HOUR, training_seconds

from medfedvqa.core.answering import TESTED
from medfedvqa.data import phantom
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.federation.site_config import load_site_config
from medfedvqa.federation.site_state import StateFile
from privacy import Secagg

TRAINING = {"local_unit": "batches", "local_epochs": 1, "batch_rows": 8, "hidden": 16}
METHODS: Mapping[str, dict[str, Any]] = {"fedavg": {"tuning": "adapter"}, "feddat": {}, "fedp3": {"blocks": 1}}
PROTOCOLS: Mapping[str, Secagg] = {"in clear": False, "masks": True, "CrypTen": "crypten"}

Means = dict[str, np.ndarray]


def job_of(method: str, secagg: Secagg, rounds: int) -> JobSpec:
    """The job of one row of the table."""
    options = {**TRAINING, **METHODS[method], "rounds": rounds}
    return JobSpec.from_dict({"method": method, "options": options, "data": "phantom", "secagg": secagg})


def last_means(paths: Mapping[str, Path], job_id: str) -> Means:
    """The message that each site tested with, by site and tensor."""
    means = {}
    for site, path in paths.items():
        saved = StateFile(load_site_config(path, site).state, job_id).load()
        assert saved is not None
        means |= {f"{site} {name}": np.asarray(value, np.float64) for name, value in saved.state[TESTED].items()}
    return means


def difference(measured: Means, plain: Means) -> float:
    """The largest difference of a tensor from the plain one, relative to its norm."""
    return max(float(np.linalg.norm(measured[name] - plain[name]) / np.linalg.norm(plain[name])) for name in plain)


def measured(count: int, methods: list[str], rounds: int, folder: Path) -> Iterator[dict[str, Any]]:
    """A record for each method and protocol, the last with whether the bits are those of the masks."""
    # A job on shares makes the keys that all of them use.
    launch = Launch(job_of("fedavg", True, rounds), None, folder / "sites", phantom.organs(count))
    paths = write_sites(launch)
    for path in paths.values():
        path.write_text(path.read_text(encoding="utf-8").replace("[fedavg]", f"[{', '.join(METHODS)}]"))
    with LoopbackFederation(folder, paths) as federation:
        for method in methods:
            means: dict[str, Means] = {}
            for protocol, secagg in PROTOCOLS.items():
                job = folder / f"{method}-{protocol.replace(' ', '-')}"
                export_job(job_of(method, secagg, rounds), job)
                job_id = federation.submit(job)
                federation.wait(job_id, HOUR)
                results = json.loads((federation.results(job_id) / "results.json").read_text(encoding="utf-8"))
                means[protocol] = last_means(paths, job_id)
                training = training_seconds(job_id, launch.audit_folders)
                timed = [record for record in results["rounds"] if record["round"] in training]
                traffic = [each for record in timed for each in record["bytes"].values()]
                masked = means.get("masks", {})
                yield {
                    **{"method": method, "sites": count, "rounds": rounds, "means": protocol},
                    "off": difference(means[protocol], means["in clear"]),
                    "seconds": [round(record["seconds"], 3) for record in timed],
                    "beyond": [round(record["seconds"] - training[record["round"]], 3) for record in timed],
                    **{way: statistics.mean(each[way] for each in traffic) for way in ("up", "down")},
                    "same": bool(masked)
                    and all(np.array_equal(means[protocol][name], masked[name]) for name in masked),
                }


def line(record: Mapping[str, Any]) -> str:
    """A record as a row of the table."""
    figures = (
        f"{record['off']:.1e}",
        "yes" if record["same"] else "–",
        f"{statistics.median(record['seconds']):.2f}",
        f"{statistics.median(record['beyond']):.2f}",
        f"{record['up']:,.0f}",
        f"{record['down']:,.0f}",
    )
    return f"| {record['method']} | {record['sites']} | {record['means']} | {' | '.join(figures)} |"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--out", type=Path, help="file to which each row is appended as a line of JSON")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("the first round, which also loads, is left out: give --rounds at least 2")
    names = ("method", "sites", "means", "off the mean in clear", "bits of the masks", "s a round", "beyond training")
    print(f"| {' | '.join((*names, 'bytes up', 'bytes down'))} |")
    print(f"|---|---|---|{'---:|' * 6}")
    for count in arguments.sites:
        with tempfile.TemporaryDirectory() as folder:
            for record in measured(count, arguments.methods, arguments.rounds, Path(folder).resolve()):
                print(line(record), flush=True)
                if arguments.out:
                    with arguments.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
