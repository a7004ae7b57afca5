"""What the shared cache of frozen features saves: processor hours of the runs in raw results, with it and without.

    python benchmarks/feature_cache.py docs/benchmark/slake.jsonl $MEDFEDVQA_DATA/slake [--systems "local (DT),FedDAT"]

Every system trains one round of one epoch with an empty cache, and again with the filled one. What it computes in the
first and reads in the second follows from its data and tuned part alone, whatever its rounds: so a run to the end saves
as much. A line is printed for each system, and at the end the hours of all runs of these systems.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from medfedvqa.core import method_type
from medfedvqa.data import organs
from medfedvqa.models import FeatureStore
from medfedvqa.research.benchmark.grid import Grid, data_of
from medfedvqa.research.benchmark.results_file import ALL_ROWS, Result, read
from medfedvqa.research.benchmark.single_run import Machine, centralised, federated
from medfedvqa.research.benchmark.systems import systems_named

SHORT = {"rounds": 1, "local_epochs": 1}


@dataclass(frozen=True)
class TimedStore(FeatureStore):
    """A store that counts the processor seconds of making features, and of everything that it does."""

    made: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)

    def recall(self, part: str, inputs: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """As the store does, with both clocks running."""
        began = time.process_time()
        features = super().recall(part, inputs, lambda: self._timed(make))
        self.spent.append(time.process_time() - began)
        return features

    def _timed(self, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        began = time.process_time()
        features = make()
        self.made.append(time.process_time() - began)
        return features


def short_run(result: Result, root: Path, store: TimedStore, folder: Path) -> None:
    """A short round of a result's system, on its data and with its seed."""
    (system,) = systems_named([result.system])
    budget = {**result.budget, **SHORT}
    known = method_type(system.method).config_type.model_fields.keys() - budget.keys()  # of this version
    system = replace(system, options={**system.options, **{n: v for n, v in result.options.items() if n in known}})
    sites, questions = organs(result.data, root), result.split["questions"]
    grid = Grid(result.data, root, folder, (system,), 1, budget, sites, result.backbone, questions=questions)
    job, data = grid.job(system, result.seed), data_of(grid, result.seed, system.pictures)
    machine = Machine(store=store)
    if system.centralised:
        centralised(job, folder, data, machine)
    else:
        federated(job, root, folder, data, machine)


def seconds(result: Result, root: Path) -> tuple[float, float]:
    """Processor seconds of a run of this system for features: without a shared cache, and with a filled one."""
    with tempfile.TemporaryDirectory() as place:
        empty = TimedStore(Path(place) / "cache")
        short_run(result, root, empty, Path(place) / "first")
        filled = TimedStore(Path(place) / "cache")
        short_run(result, root, filled, Path(place) / "second")
        if filled.made:
            raise SystemExit(f"'{result.system}' made features that were in the cache")
        return sum(empty.made), sum(filled.spent)


def main() -> None:
    """Measure each system, and print the hours."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="a file of raw results")
    parser.add_argument("root", type=Path, help="the folder of their data set")
    parser.add_argument("--systems", default="", help="these systems alone, with commas between")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    wanted = {name.strip() for name in arguments.systems.split(",") if name.strip()}
    runs: dict[str, list[Result]] = {}
    results = read([arguments.results])[0]
    if results[0].regime != ALL_ROWS:
        raise SystemExit(
            "these are results of a study: give those of a benchmark, whose sites train on all of their rows"
        )
    for result in results:
        if result.method and (not wanted or result.system in wanted):
            runs.setdefault(result.system, []).append(result)
    if not runs:
        raise SystemExit("no such system is in the results")
    shared = alone = 0.0
    for label, same in runs.items():
        made, recalled = seconds(same[0], arguments.root)
        count, trained = len(same), sum(result.processor_seconds for result in same)
        shared, alone = shared + trained, alone + trained + count * (made - recalled)
        print(
            f"{label}: {_runs(count)} of {trained / count:.0f} s; features {made:.1f} s, recalled {recalled:.1f} s",
            flush=True,
        )
    print(f"{_runs(sum(map(len, runs.values())))}: {shared / 3600:.2f} processor hours with the cache,")
    print(f"{alone / 3600:.2f} without, {alone / shared:.2f} times as many")


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


if __name__ == "__main__":
    main()
