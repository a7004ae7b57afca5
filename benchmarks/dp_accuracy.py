"""Measures accuracy by epsilon in a small federation, of the model that a site releases and of those that it keeps.

Four models are tested at each site: the released model, the same model after more training at the site without noise,
and a model trained alone for as many passes as the federation, or as federation and finishing together. A run is a
whole job of prompt_pfl: its server loop and its sites' handlers, in one process. Finished runs stay in the folder and
are not repeated; several processes with different `--seeds` may share it.

    python benchmarks/dp_accuracy.py RUNS --data vqa-rad slake --data-root "$MEDFEDVQA_DATA" --lines FILE --out FOLDER
    python benchmarks/dp_accuracy.py --lines FILE

`--lines` gets a line of JSON for each set, seed and epsilon: which test rows each model answers right, and the number
of each row's patient. Without RUNS the table is made of such a file. Intervals and p, two-sided and uncorrected, are
over patients and seeds (`medfedvqa.research.benchmark.statistics`).
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from medfedvqa.atomic_files import write_whole
from medfedvqa.core import State, Tensors, create
from medfedvqa.core.kept_model import Keeping
from medfedvqa.data import Split, load_site, organs
from medfedvqa.data.data_roots import PHANTOM
from medfedvqa.evaluation.accuracy import question_prior_right
from medfedvqa.federation.hub import Reply, ServerHub, TaskCall
from medfedvqa.figures import COLOURS, GREY, MARKERS, new_figure, styled, svg_file
from medfedvqa.methods.prompt_pfl import PromptPFL
from medfedvqa.models import Backbone, bundled_for, load_backbone
from medfedvqa.research.benchmark.benchmark_table import cell
from medfedvqa.research.benchmark.results_file import RunOutcome, numbered_patients
from medfedvqa.research.benchmark.statistics import average, gain
from medfedvqa.training import Site
from medfedvqa.version import code_version
from privacy import DPSettings

EPSILONS = (1.0, 3.0, 8.0, None)
OPTIONS = {
    "rounds": 5, "local_epochs": 4, "finish_epochs": 40, "hidden": 16, "blocks": 2, "learning_rate": 0.005,
    "answers": "closed", "local_baseline": False,
}  # fmt: skip
"""Few parameters and few rounds, since noise grows with both. Runs without privacy have the same options."""
MODELS = ("released", "finished", "alone", "alone_equal")
PRIOR = "question-only prior"

Answers = dict[str, dict[str, list[bool]]]
"""Whether each test row is answered right, by model and site."""
Cells = Mapping[tuple[str, float | None], Sequence[Mapping[str, RunOutcome]]]
"""The outcome of each model for each seed, by data set and epsilon."""
Figures = dict[tuple[str, float | None], dict[str, tuple[float, float, float]]]
"""Mean, lower and upper end of the interval of each model in per cent, by data set and epsilon."""


@dataclass
class PrivateFederation:
    """The sites of one seed, in this process."""

    sites: dict[str, Site]
    states: dict[str, State] = field(default_factory=dict)
    received: dict[str, Tensors] = field(default_factory=dict)
    """The last message to each site."""

    @classmethod
    def of(cls, data: str, root: Path | None, seed: int, backbone: Backbone) -> "PrivateFederation":
        """The sites of a data set, each with the rows of its organ."""
        split = Split("official", seed)
        names = organs(data, root)
        loaded = {name: load_site(data, root, name, split, seed) for name in names}
        return cls({name: Site(name, rows, backbone, "cpu", seed) for name, rows in loaded.items()})

    def run(self, method: PromptPFL, seed: int) -> None:
        """Run a whole job."""
        self.states = {name: method.setup(site) for name, site in self.sites.items()}

        def answer(call: TaskCall) -> dict[str, Reply]:
            return {
                name: Reply(self._answer(method, call.task, call.round, name, down), 0.0)
                for name, down in call.messages.items()
            }

        shape = next(iter(self.sites.values())).backbone.shape
        method.serve(ServerHub(tuple(self.sites), answer, method.exchange(shape), seed=seed))

    def _answer(self, method: PromptPFL, task: str, round: int, name: str, down: Tensors) -> Tensors:
        self.received[name] = down
        if task == "evaluate":  # `answers_of` tests the models instead
            return {count: np.array(0) for count in method.scores}
        spec = method.exchange(self.sites[name].backbone.shape).task(task)
        self.states[name], reply = method.handle(spec, self.sites[name], self.states[name], down, round)
        return reply


def method_of(epsilon: float | None) -> PromptPFL:
    """The method of one cell."""
    method = create("prompt_pfl", OPTIONS, None if epsilon is None else DPSettings(epsilon=epsilon))
    assert isinstance(method, PromptPFL)
    return method


def answers_of(folder: Path, data: str, root: Path | None, seed: int) -> dict[str, Answers]:
    """What the models of one seed answer right, by epsilon. Missing runs are made."""
    file = folder / f"{data}-{seed}.json"
    if file.exists():
        record = json.loads(file.read_text())
        if record["options"] == OPTIONS:
            by_epsilon: dict[str, Answers] = record["answers"]
            return by_epsilon
    federation = PrivateFederation.of(data, root, seed, load_backbone(bundled_for(data)))
    by_epsilon, alone = {}, {}
    for epsilon in reversed(EPSILONS):
        method = method_of(epsilon)
        federation.run(method, seed)
        answers: Answers = {model: {} for model in (*MODELS, PRIOR)}
        for name, site in federation.sites.items():
            state, received = federation.states[name], federation.received[name]
            keeping = Keeping(method, site, state, received, method.config.rounds)
            test = site.data.test
            answers["released"][name] = method.answered(site, state, received, test).tolist()
            answers["finished"][name] = keeping.right("finished", test).tolist()
            answers[PRIOR][name] = question_prior_right(site.data.train, test).tolist()
            if epsilon is None:  # training alone is the same beside every epsilon
                alone[name] = {model: keeping.right(model, test).tolist() for model in ("alone", "alone_equal")}
            for model, right in alone[name].items():
                answers[model][name] = right
        by_epsilon[str(epsilon)] = answers
        print(f"{data}, seed {seed}, epsilon {epsilon or 'none'}: done", flush=True)
    write_whole(file, json.dumps({"options": OPTIONS, "answers": by_epsilon}).encode())
    return by_epsilon


def lines_of(by_epsilon: Mapping[str, Answers], data: str, root: Path | None, seed: int) -> Iterator[dict[str, Any]]:
    """The raw line of each epsilon of a run."""
    split = Split("official", seed)
    tests = {site: load_site(data, root, site, split, seed).test for site in by_epsilon["None"][PRIOR]}
    patients = {site: numbered_patients(test.patients.tolist()) for site, test in tests.items()}
    for epsilon in EPSILONS:
        answers = by_epsilon[str(epsilon)]
        right = {
            model: {site: "".join(str(int(row)) for row in rows) for site, rows in sites.items()}
            for model, sites in answers.items()
        }
        cohort = seed if data == PHANTOM else 0
        known = {"data": data, "seed": seed, "cohort": cohort, "epsilon": epsilon, "version": code_version()}
        yield {**known, "options": OPTIONS, "patients": patients, "right": right}


def cells_of(lines: Sequence[Mapping[str, Any]]) -> Cells:
    """The outcome of each model for each seed, by data set and epsilon."""
    cells: dict[tuple[str, float | None], list[Mapping[str, RunOutcome]]] = {}
    for line in lines:
        outcomes = {
            model: RunOutcome(
                *({site: [bit == "1" for bit in bits] for site, bits in sites.items()}, {}, line["patients"]),
                *(0.0, 0.0, 0.0, 0),
                seed=line["seed"],
                cohort=line["cohort"],
            )
            for model, sites in line["right"].items()
        }
        cells.setdefault((line["data"], line["epsilon"]), []).append(outcomes)
    return cells


def figures_of(cells: Cells) -> Figures:
    """Mean and interval of each model, by data set and epsilon."""
    found: Figures = {}
    for place, seeds in cells.items():
        summaries = {model: average(runs) for model, runs in _by_model(seeds).items()}
        found[place] = {
            model: (100 * each.mean, 100 * each.interval[0], 100 * each.interval[1])
            for model, each in summaries.items()
        }
    return found


def table(cells: Cells) -> Iterator[str]:
    """The lines of a Markdown table: mean and deviation over seeds, in per cent, intervals, and a comparison."""
    yield "| data | epsilon | seeds | released | finished | alone | alone, equal steps | prior | p |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for (data, epsilon), seeds in cells.items():
        by_model = _by_model(seeds)
        texts = [cell(average(runs)) for runs in by_model.values()]
        p = gain(by_model["finished"], by_model["alone_equal"]).p
        yield f"| {data} | {_name(epsilon)} | {len(seeds)} | {' | '.join(texts)} | {p:.3f} |"


@styled()
def draw(figures: Figures, path: Path) -> None:
    """Draw a panel for each data set: accuracy by epsilon with a line for each model, and the prior dotted."""
    sets = list(dict.fromkeys(data for data, _ in figures))
    figure = new_figure(4.2 * len(sets), 3.6)
    panels = figure.subplots(1, len(sets), squeeze=False)
    for data, axes in zip(sets, panels[0], strict=True):
        for number, model in enumerate(MODELS):
            means, lows, highs = zip(*(figures[data, epsilon][model] for epsilon in EPSILONS), strict=True)
            places = [place + 0.06 * (number - 1.5) for place in range(len(EPSILONS))]
            apart = np.abs(np.array([lows, highs]) - means)
            label = model.replace("_", ", ") + " steps" * ("_" in model)
            axes.errorbar(places, means, apart, color=COLOURS[number], marker=MARKERS[number], capsize=3, label=label)
        axes.axhline(figures[data, None][PRIOR][0], linestyle=":", color=GREY, label=PRIOR)
        axes.set_title(data)
        axes.set_xticks(range(len(EPSILONS)), map(_name, EPSILONS))
        axes.set_xlabel("epsilon per patient at delta 1e-5")
        axes.set_ylabel("test accuracy, per cent")
        axes.grid(axis="y")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
    write_whole(path, svg_file(figure))


def _by_model(seeds: Sequence[Mapping[str, RunOutcome]]) -> dict[str, list[RunOutcome]]:
    return {model: [seed[model] for seed in seeds] for model in (*MODELS, PRIOR)}


def _name(epsilon: float | None) -> str:
    return f"{epsilon:g}" if epsilon else "none"


def main() -> None:
    """Run all cells, print the table, draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", help="folder for the runs; without it nothing is run")
    parser.add_argument("--data", nargs="+", default=["phantom"], choices=["phantom", "vqa-rad", "slake"])
    parser.add_argument("--data-root", type=Path, help="the folder above the sets")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--lines", type=Path, help="file of raw lines")
    parser.add_argument("--out", type=Path, help="folder for the plot")
    arguments = parser.parse_args()
    if arguments.runs is None and arguments.lines is None:
        parser.error("give a folder for the runs, or a file of raw lines by --lines")
    torch.set_num_threads(1)
    lines: list[dict[str, Any]] = []
    if arguments.runs is None:
        lines = list(map(json.loads, arguments.lines.read_text(encoding="utf-8").splitlines()))
    else:
        arguments.runs.mkdir(parents=True, exist_ok=True)
        for data in arguments.data:
            root = None if data == PHANTOM else arguments.data_root / data
            for seed in arguments.seeds:
                lines += lines_of(answers_of(arguments.runs, data, root, seed), data, root, seed)
        if arguments.lines:
            write_whole(arguments.lines, "".join(json.dumps(line) + "\n" for line in lines).encode())
    cells = cells_of(lines)
    print("\n".join(table(cells)))
    if arguments.out:
        draw(figures_of(cells), arguments.out / "dp-accuracy.svg")


if __name__ == "__main__":
    main()
