"""Measures many simulated sites in one process: memory per site, time per round, and the server's mixing by itself.

Each size runs in a separate process, so that the memory of one does not hide that of another.
Targets: one backbone in memory, at most 5 MB more per site, time per round linear in sites.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from medfedvqa.data.phantom import organs
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import load_site_config
from privacy import Reliability, mix

MEGABYTE = 1e6
ROUNDS = 3


def measure(count: int, out: Path) -> dict[str, float]:
    """Run `count` sites for a few rounds; seconds per round (median) and memory, bytes."""
    options = {"rounds": ROUNDS, "local_epochs": 1, "local_baseline": False}
    job = JobSpec.from_dict({"method": "prompt_pfl", "data": "phantom", "options": options})
    launch = Launch(job, None, out, organs(count))
    configs = {site: load_site_config(path, site) for site, path in write_sites(launch).items()}
    results = serve_job(job, launch.sites, LocalEngine(configs, job, "scale").call, out, "local")
    # The first round also loads the backbone and draws the data.
    seconds = statistics.median(record["seconds"] for record in results["rounds"][1:])
    return {"seconds": seconds, "rss": psutil.Process().memory_info().rss, "mixing": mixing(count)}


def mixing(count: int, repeats: int = 3) -> float:
    """Median seconds to mix `count` uploads of the bundled backbone's size."""
    rng = np.random.default_rng(0)
    shapes = {"prompt.image": (6, 4, 256), "prompt.text": (4, 4, 256)}
    uploads = {
        str(i): {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        for i in range(count)
    }
    accuracy = dict.fromkeys(uploads, 0.5)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        mix(uploads, accuracy, Reliability())
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Measure each size and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[4, 20, 50, 100])
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.sites[0], arguments.one)))
        return
    if len(set(arguments.sites)) < 2:
        parser.error("growth needs two sizes: give --sites at least two different numbers")
    rows = {}
    for count in arguments.sites:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--sites", str(count), "--one", folder]
            rows[count] = json.loads(subprocess.check_output(command, text=True).splitlines()[-1])
    print("sites | s per round | s per round and site | memory, MB | mixing at the server, ms")
    for count, row in rows.items():
        seconds, megabytes, mixing_ms = row["seconds"], row["rss"] / MEGABYTE, row["mixing"] * 1e3
        print(f"{count:5} | {seconds:11.2f} | {seconds / count:20.3f} | {megabytes:10.0f} | {mixing_ms:.1f}")
    few, many = min(rows), max(rows)
    grown = (rows[many]["rss"] - rows[few]["rss"]) / (many - few) / MEGABYTE
    linear = (rows[many]["seconds"] / many) / (rows[few]["seconds"] / few)
    print(f"memory per further site: {grown:.2f} MB (target: at most 5)")
    print(f"time per round and site, {many} against {few} sites: ratio {linear:.2f} (linear: 1)")


if __name__ == "__main__":
    main()
