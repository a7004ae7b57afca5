"""Accuracy against epsilon, for what leaves a site and for what it keeps: one small federation, less and less privacy.

Four models are tested at each site: the one that was released, the same trained on at the site without noise, and one
trained alone for as many passes as the federation, or for as many as federation and finishing together. Every run is a
whole job of prompt_pfl in the in-process engine. Finished runs are kept in the folder and not repeated; several
processes with other `--seeds` may share it.

    python benchmarks/dp_accuracy.py RUNS --data vqa-rad slake --data-root "$MEDFEDVQA_DATA" --out FOLDER

Intervals are 95 % bootstrap intervals over patients, seeds of a patient together; p is of a permutation test on
patients (`medfedvqa.benchmark.compare`), two-sided and uncorrected.
"""

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import torch  # noqa: E402

from medfedvqa.benchmark.compare import p_value  # noqa: E402
from medfedvqa.benchmark.grid import Outcome  # noqa: E402
from medfedvqa.data import load_site  # noqa: E402
from medfedvqa.evaluation.baselines import question_prior_right  # noqa: E402
from medfedvqa.federation.job import JobSpec  # noqa: E402
from medfedvqa.federation.launch import plan, run  # noqa: E402
from medfedvqa.federation.state import StateFile  # noqa: E402
from medfedvqa.files import write_whole  # noqa: E402
from medfedvqa.methods.base import RIGHT  # noqa: E402
from medfedvqa.methods.keeping import KEPT  # noqa: E402
from medfedvqa.models import bundled_for  # noqa: E402

EPSILONS = (1.0, 3.0, 8.0, None)
OPTIONS = {
    "rounds": 5, "local_epochs": 4, "finish_epochs": 20, "hidden": 16, "blocks": 2, "learning_rate": 0.005,
    "answers": "closed",
}  # fmt: skip
"""Few parameters and few rounds: noise grows with both. The same without differential privacy, for a fair last row."""
MODELS = ("released", "finished", "alone", "alone_equal")
PRIOR = "question-only prior"
RESAMPLED = 2000

Answers = dict[str, dict[str, list[bool]]]
"""By model and site, whether each test row is answered right."""
Cells = Mapping[tuple[str, float | None], Sequence[Mapping[str, Outcome]]]
"""By data set and epsilon, for each seed the outcome of each model."""


def job(data: str, epsilon: float | None, seed: int) -> JobSpec:
    """One cell's job."""
    facts = {"method": "prompt_pfl", "options": OPTIONS, "data": data, "backbone": bundled_for(data), "seed": seed}
    dp = None if epsilon is None else {"epsilon": epsilon}
    return JobSpec.from_dict({**facts, "split": {"kind": "official", "seed": seed}, "dp": dp})


def answers_of(folder: Path, data: str, root: Path | None, epsilon: float | None, seed: int) -> Answers:
    """What one cell's models answer right; the run is made if it is not there."""
    file = folder / f"{data}-{epsilon or 'none'}-{seed}.json"
    spec = job(data, epsilon, seed)
    if file.exists():
        known = json.loads(file.read_text())
        if known["job"] == spec.to_dict():
            found: Answers = known["answers"]
            return found
    out = file.with_suffix("")
    shutil.rmtree(out, ignore_errors=True)
    launch = plan(spec, root, out)
    run(launch, "local", lambda event: None)
    found = {model: {} for model in (*MODELS, "kept", PRIOR)}
    for site in launch.sites:
        saved = StateFile(out / "sites" / site / "state", out.name).load()
        assert saved is not None
        kept = saved.state[KEPT]
        found["released"][site] = saved.state[RIGHT].tolist()
        for model, right in kept[RIGHT].items():
            found[model][site] = right.tolist()
        found["kept"][site] = found[kept["model"]][site]
        own = load_site(data, root, site, spec.split, seed)
        found[PRIOR][site] = question_prior_right(own.train, own.test).tolist()
    write_whole(file, json.dumps({"job": spec.to_dict(), "answers": found}).encode())
    shutil.rmtree(out)
    return found


def outcomes(answers: Answers, data: str, root: Path | None, seed: int) -> dict[str, Outcome]:
    """With each row's patient, as comparisons take them."""
    split = job(data, None, seed).split
    patients = {site: load_site(data, root, site, split, seed).test.patients.tolist() for site in answers[PRIOR]}
    return {model: Outcome(right, {}, patients, 0.0, 0.0, 0.0, 0) for model, right in answers.items()}


def accuracies(runs: Sequence[Outcome]) -> list[float]:
    """Of each seed, the mean over sites, in per cent."""
    return [100 * fmean(fmean(rows) for rows in run.right.values()) for run in runs]


def interval(runs: Sequence[Outcome]) -> tuple[float, float]:
    """Of the mean over seeds and sites, in per cent: patients of each site are drawn again, with replacement."""
    generator, means = np.random.default_rng(0), np.zeros(RESAMPLED)
    for site in runs[0].right:
        right = np.mean([run.right[site] for run in runs], axis=0)
        _, patient = np.unique(runs[0].patients[site], return_inverse=True)
        correct, rows = np.bincount(patient, right), np.bincount(patient)
        drawn = generator.integers(len(rows), size=(RESAMPLED, len(rows)))
        means += correct[drawn].sum(1) / rows[drawn].sum(1) / len(runs[0].right)
    low, high = np.percentile(100 * means, [2.5, 97.5])
    return float(low), float(high)


def table(cells: Cells) -> Iterator[str]:
    """Markdown: mean and standard deviation over seeds, in per cent, the interval, and two comparisons."""
    yield "| data | epsilon | released | finished | alone | alone, equal steps | kept | prior | p |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for (data, epsilon), seeds in cells.items():
        texts = []
        for model in (*MODELS, "kept", PRIOR):
            runs = [seed[model] for seed in seeds]
            each = accuracies(runs)
            low, high = interval(runs)
            spread = f" ± {stdev(each):.1f}" if len(each) > 1 else ""
            texts.append(f"{fmean(each):.1f}{spread} [{low:.1f}, {high:.1f}]")
        finished, alone = ([seed[model] for seed in seeds] for model in ("finished", "alone_equal"))
        label = f"{epsilon:g}" if epsilon else "none"
        yield f"| {data} | {label} | {' | '.join(texts)} | {p_value(finished, alone):.3f} |"


def draw(cells: Cells, path: Path) -> None:
    """A panel for each data set: accuracy over epsilon with a line for each model, and the prior dotted."""
    sets = list(dict.fromkeys(data for data, _ in cells))
    ticks = [f"{epsilon:g}" if epsilon else "none" for epsilon in EPSILONS]
    figure, panels = plt.subplots(1, len(sets), figsize=(4.8 * len(sets), 3.6), layout="constrained", squeeze=False)
    for data, axes in zip(sets, panels[0], strict=True):
        for model in MODELS:
            runs = [[seed[model] for seed in cells[data, epsilon]] for epsilon in EPSILONS]
            means = [fmean(accuracies(each)) for each in runs]
            bounds = np.array([interval(each) for each in runs]).T
            apart = np.abs(bounds - means)
            axes.errorbar(
                ticks, means, apart, marker="o", capsize=3, label=model.replace("_", ", ") + " steps" * ("_" in model)
            )
        prior = fmean(accuracies([seed[PRIOR] for seed in cells[data, None]]))
        axes.axhline(prior, linestyle=":", color="grey", label=PRIOR)
        axes.set_title(data)
        axes.set_xlabel("epsilon per patient at delta 1e-5")
        axes.set_ylabel("test accuracy, per cent")
    panels[0][0].legend(fontsize="small")
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Run all cells, print the table, draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder for the runs")
    parser.add_argument("--data", nargs="+", default=["phantom"], choices=["phantom", "vqa-rad", "slake"])
    parser.add_argument("--data-root", type=Path, help="the folder above the sets")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, help="folder for the plot")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.runs.mkdir(parents=True, exist_ok=True)
    cells = {}
    for data in arguments.data:
        root = None if data == "phantom" else arguments.data_root / data
        for epsilon in EPSILONS:
            cells[data, epsilon] = [
                outcomes(answers_of(arguments.runs, data, root, epsilon, seed), data, root, seed)
                for seed in arguments.seeds
            ]
            print(f"{data}, epsilon {epsilon or 'none'}: done", flush=True)
    print("\n".join(table(cells)))
    if arguments.out:
        draw(cells, arguments.out / "dp-accuracy.svg")


if __name__ == "__main__":
    main()
