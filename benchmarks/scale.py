"""Measures many sites: seconds per round and the server's memory, in one process and in a provisioned federation.

In one process (`--sites`) server and sites share one backbone, and the memory is that of all of them. Each size runs in
a separate process, so that the memory of one does not hide that of another. Real sites (`--real`) are two processes
each, on the loopback interface behind mutual TLS. The job is as small as the phantom set allows: one batch of eight
rows a round, so that what is measured is the federation and not the training.

Targets: at most 5 MB more per site in one process, time per round linear in sites. The records go to `--out`, a line of
JSON for each size; a second call adds to them, and without sizes it prints the table. `--plot` draws it.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from medfedvqa.atomic_files import write_whole
from medfedvqa.data.phantom import organs
from medfedvqa.federation.flare.loopback import LoopbackFederation
from medfedvqa.federation.flare.provision import SERVER
from medfedvqa.federation.flare.reaper import flare_processes
from medfedvqa.federation.flare.recipe import export_job
from medfedvqa.federation.hub import TaskAnswer
from medfedvqa.federation.in_process import LocalEngine
from medfedvqa.federation.job import JobSpec
from medfedvqa.federation.launch import Launch, write_sites
from medfedvqa.federation.serve import serve_job
from medfedvqa.federation.site_config import load_site_config
from medfedvqa.figures import COLOURS, MARKERS, new_figure, styled, svg_file
from privacy import Reliability, mix

MEGABYTE = 1e6
ROUNDS = 3
OPTIONS = {"rounds": ROUNDS, "local_unit": "batches", "local_epochs": 1, "batch_rows": 8, "local_baseline": False}
JOB = JobSpec.from_dict({"method": "prompt_pfl", "data": "phantom", "options": OPTIONS})
PATIENCE = 3000.0
"""Seconds after which a real federation has failed."""
_SAMPLING = 2.0  # seconds
KINDS = {"one process": "one process", "real": "real sites"}


def names(count: int) -> tuple[str, ...]:
    """Sites that are alike at every size: up to three would be the organs, which have more rows."""
    return organs(max(count, 4))[:count]


def measure(count: int, out: Path) -> dict[str, Any]:
    """Run `count` sites in this process; `processor` is the seconds of processors that a round took."""
    launch = Launch(JOB, None, out, names(count))
    configs = {site: load_site_config(path, site) for site, path in write_sites(launch).items()}
    spent: dict[int, float] = {}

    def watch(event: TaskAnswer) -> None:
        spent[event.round] = time.process_time()  # the last answer of the round stays

    results = serve_job(JOB, launch.sites, LocalEngine(configs, JOB, "scale").call, out, "local", watch)
    rounds = [spent[number] - spent[number - 1] for number in range(2, ROUNDS + 1)]
    rss = psutil.Process().memory_info().rss
    figures = {"processor": statistics.median(rounds), "server": rss, "mixing": mixing(count)}
    return {"kind": "one process", "sites": count, **_rounds(results), **figures}


def measure_real(count: int, folder: Path) -> dict[str, Any]:
    """Run `count` sites as processes of their own.

    `server` is the most memory that the server's processes had, and `site` the most of all sites together divided by
    their number: bytes, as proportional set size.
    """
    launch = Launch(JOB, None, folder / "sites", names(count))
    with LoopbackFederation(folder, write_sites(launch)) as federation:
        fields = {"terms": federation.terms(), "min_sites": count, "round_timeout": PATIENCE}  # all start at once
        export_job(JOB.model_copy(update=fields), folder / "job")
        job_id = federation.submit(folder / "job")
        with _Memory(federation) as memory:
            status = federation.wait(job_id, PATIENCE)
        if status != "FINISHED:COMPLETED":
            raise SystemExit(f"the job of {count} sites ended as {status}")
        results = json.loads((federation.results(job_id) / "results.json").read_text(encoding="utf-8"))
    return {"kind": "real", "sites": count, **_rounds(results), "server": memory.server, "site": memory.sites / count}


class _Memory:
    """The most memory of the server's processes and of all sites' together, sampled on a thread."""

    def __init__(self, federation: LoopbackFederation) -> None:
        self.server = self.sites = 0
        self._federation, self._over = federation, threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> "_Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        kits, pause = self._federation.kits, _SAMPLING
        while not self._over.wait(pause):
            began = time.thread_time()
            self.server = max(self.server, _memory([kits / SERVER]))
            self.sites = max(self.sites, _memory([kits / name for name in self._federation.sites]))
            pause = max(_SAMPLING, 20 * (time.thread_time() - began))  # at most a twentieth of a processor


def _memory(kits: Sequence[Path]) -> int:
    """The memory of all processes of these kits: bytes, as proportional set size."""
    total = 0
    for process in flare_processes([str(kit) for kit in kits]):
        with contextlib.suppress(psutil.Error):  # it has ended
            total += process.memory_full_info().pss
    return total


def _rounds(results: Mapping[str, Any]) -> dict[str, float]:
    """The first round also loads the backbone and draws the data."""
    return {"seconds": statistics.median(record["seconds"] for record in results["rounds"][1:])}


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


def table(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of the table."""
    yield "| sites | as | s a round | processor s a round | server, MB | a site, MB | mixing, ms |"
    yield "|---:|---|---:|---:|---:|---:|---:|"
    for record in sorted(records, key=lambda record: (record["kind"], record["sites"])):
        fields = (("processor", 1.0, 2), ("server", MEGABYTE, 0), ("site", MEGABYTE, 0), ("mixing", 1e-3, 1))
        cells = [f"{record[name] / unit:.{digits}f}" if name in record else "" for name, unit, digits in fields]
        yield f"| {record['sites']} | {KINDS[record['kind']]} | {record['seconds']:.2f} | {' | '.join(cells)} |"


def growth(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How memory and processor time grow in one process, from the fewest to the most sites."""
    by_size = {record["sites"]: record for record in records if record["kind"] == "one process"}
    if len(by_size) > 1:
        few, many = by_size[min(by_size)], by_size[max(by_size)]
        grown = (many["server"] - few["server"]) / (many["sites"] - few["sites"]) / MEGABYTE
        linear = many["processor"] / many["sites"] / (few["processor"] / few["sites"])
        yield f"memory per further site: {grown:.2f} MB (target: at most 5)"
        yield f"time per round and site, {many['sites']} against {few['sites']} sites: ratio {linear:.2f} (linear: 1)"


@styled()
def draw(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Seconds per round and the server's memory by the number of sites."""
    figure = new_figure(7.2, 3.2)
    panels = figure.subplots(1, 2)
    for axes, field, unit, label in zip(
        panels, ("seconds", "server"), (1.0, MEGABYTE), ("seconds per round", "memory of the server, MB"), strict=True
    ):
        for kind, colour, marker in zip(KINDS, COLOURS, MARKERS, strict=False):
            points = sorted((record["sites"], record[field] / unit) for record in records if record["kind"] == kind)
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, marker=marker, label=KINDS[kind])
        axes.set(xlabel="sites", ylabel=label, xlim=(0, None), ylim=(0, None))
        axes.grid(axis="y")
    panels[0].legend()
    write_whole(path, svg_file(figure))


def main() -> None:
    """Measure each size, and print the table of all records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="*", default=[], help="sizes in one process")
    parser.add_argument("--real", type=int, nargs="*", default=[], help="sizes of provisioned federations")
    parser.add_argument("--out", type=Path, required=True, help="the file of the records")
    parser.add_argument("--plot", type=Path, help="an SVG of all records")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.sites[0], arguments.one)))
        return
    for count, real in [*((count, False) for count in arguments.sites), *((count, True) for count in arguments.real)]:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a last log may come late
            if real:
                record = measure_real(count, Path(folder).resolve())
            else:
                command = [sys.executable, __file__, "--out", folder, "--sites", str(count), "--one", folder]
                record = json.loads(subprocess.check_output(command, text=True).splitlines()[-1])
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    records = [json.loads(line) for line in arguments.out.read_text(encoding="utf-8").splitlines()]
    print("\n".join([*table(records), *growth(records)]))
    if arguments.plot:
        draw(records, arguments.plot)


if __name__ == "__main__":
    main()
