"""Accuracy against epsilon: the same federation trained with less and less privacy, over several seeds.

Every run is a whole job of prompt_pfl in the in-process engine. Finished runs are kept in the folder and not repeated.

    python benchmarks/dp_accuracy.py RUNS --data phantom vqa-rad --data-root "$MEDFEDVQA_DATA/vqa-rad" --out FOLDER
"""

import argparse
import json
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from medfedvqa.federation.job import JobSpec  # noqa: E402
from medfedvqa.federation.launch import plan, run  # noqa: E402
from medfedvqa.models import bundled_for  # noqa: E402

EPSILONS = (1.0, 3.0, 8.0, None)
OPTIONS = {
    "rounds": 5, "local_epochs": 4, "hidden": 16, "blocks": 2, "learning_rate": 0.005, "local_baseline": False,
    "answers": "closed",
}  # fmt: skip
"""Few parameters and few rounds, since noise grows with both, and a public answer space; the last row has no noise."""


def job(data: str, epsilon: float | None, seed: int) -> JobSpec:
    """One cell's job."""
    facts = {"method": "prompt_pfl", "options": OPTIONS, "data": data, "backbone": bundled_for(data), "seed": seed}
    dp = None if epsilon is None else {"epsilon": epsilon}
    return JobSpec.from_dict({**facts, "split": {"kind": "official", "seed": seed}, "dp": dp})


def results(folder: Path, data: str, root: Path | None, epsilon: float | None, seed: int) -> dict[str, Any]:
    """The results of one cell's run, made if they are not there."""
    out = folder / f"{data}-{epsilon or 'none'}-{seed}"
    found = out / "results.json"
    if not found.exists() or json.loads(found.read_text())["status"] != "finished":
        shutil.rmtree(out, ignore_errors=True)
        run(plan(job(data, epsilon, seed), root, out), "local", lambda event: None)
    found_results: dict[str, Any] = json.loads(found.read_text())
    return found_results


def table(rows: dict[tuple[str, float | None], list[dict[str, Any]]]) -> Iterator[str]:
    """Markdown: mean over seeds and, after it, the standard deviation, in per cent."""
    yield "| data | epsilon | noise multiplier | accuracy, average over sites | question-only prior |"
    yield "|---|---:|---:|---:|---:|"
    for (data, epsilon), runs in rows.items():
        noise = f"{runs[0]['dp']['noise']:.2f}" if runs[0]["dp"] else "0"
        mean, deviation = _percent([one["average"]["accuracy"] for one in runs])
        prior, _ = _percent([one["average"]["baselines"]["question_prior"]["accuracy"] for one in runs])
        label = f"{epsilon:g}" if epsilon else "no privacy"
        yield f"| {data} | {label} | {noise} | {mean:.1f} ± {deviation:.1f} | {prior:.1f} |"


def draw(rows: dict[tuple[str, float | None], list[dict[str, Any]]], path: Path) -> None:
    """Accuracy over epsilon with a line per data set, and the question-only prior dotted."""
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    ticks = [f"{epsilon:g}" if epsilon else "no privacy" for epsilon in EPSILONS]
    for data in dict.fromkeys(data for data, _ in rows):
        cells = [rows[data, epsilon] for epsilon in EPSILONS]
        points = [_percent([one["average"]["accuracy"] for one in runs]) for runs in cells]
        means, deviations = zip(*points, strict=True)
        line = axes.errorbar(ticks, means, deviations, marker="o", capsize=3, label=data)
        prior, _ = _percent([one["average"]["baselines"]["question_prior"]["accuracy"] for one in cells[0]])
        axes.axhline(prior, linestyle=":", color=line[0].get_color(), label=f"{data}, question-only prior")
    axes.set_xlabel("epsilon per patient at delta 1e-5")
    axes.set_ylabel("test accuracy, per cent")
    axes.legend(fontsize="small")
    figure.savefig(path)
    plt.close(figure)


def _percent(shares: list[float]) -> tuple[float, float]:
    values = [100 * share for share in shares]
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def main() -> None:
    """Run all cells, print the table, draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder for the runs")
    parser.add_argument("--data", nargs="+", default=["phantom"], choices=["phantom", "vqa-rad", "slake"])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for the plot")
    arguments = parser.parse_args()
    rows = {
        (data, epsilon): [
            results(arguments.runs, data, None if data == "phantom" else arguments.data_root, epsilon, seed)
            for seed in range(arguments.seeds)
        ]
        for data in arguments.data
        for epsilon in EPSILONS
    }
    print("\n".join(table(rows)))
    if arguments.out:
        draw(rows, arguments.out / "dp-accuracy.svg")


if __name__ == "__main__":
    main()
