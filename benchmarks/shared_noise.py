"""Measures what the sites of a stepwise job release under differential privacy: by each site's own noise, and by noise
that they share.

A federation is drawn, `SITESxPATIENTS` of the phantom set, of which 65 % train; or it is a published set, `slake:3`
with three hospitals of each organ. A run is a whole job of `fedavg`, its server loop and its sites' handlers in one
process; a mean is taken of what sites send, in clear, which masks leave as it is. Beside it stand the same job without
privacy, each site's own training without privacy, with the steps of a stepwise job by default, and the question-only
prior.

    python benchmarks/shared_noise.py --sites 10x100 20x250 --seeds 0 1 --lines FILE
    python benchmarks/shared_noise.py --sites slake:3 --data-root "$MEDFEDVQA_DATA" --lines FILE
    python benchmarks/shared_noise.py --lines FILE --table

`--lines` gets a line of JSON for each run: which test rows each site answers right. Lines that are there are not
repeated.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from medfedvqa.core import State, Tensors, create
from medfedvqa.core.averaging import Averaging
from medfedvqa.data import Split, hospitals, load_site, organs, phantom
from medfedvqa.evaluation.baselines import question_prior_right
from medfedvqa.federation.hub import Reply, ServerHub, TaskCall
from medfedvqa.models import bundled_for, load_backbone
from medfedvqa.training import Site
from medfedvqa.version import code_version
from privacy import DPSettings
from privacy.forecast import Pilot, noise_over_signal, trained_numbers

DEFAULT = {"schedule": "stepwise", "tuning": "classifier", "weighting": "uniform", "answers": "closed"}
OPTIONS = {**DEFAULT, "rounds": 60, "learning_rate": 0.02, "decay_every": 40, "dropout": 0.0}
"""An answer head on frozen features, in fewer and longer steps than by default: each costs epsilon."""
CLIP, COLLUDERS, DROPPING = 1.0, 2, 1
"""The clipping norm, and the sites that may collude or drop out beside those that share noise."""
STEP = 325
"""Patients of all sites together in a step, on average."""
FREE = ("none", "none, default steps", "alone", "prior", "majority")
PULLS = {"MR-MTL": 0.1, "MR-MTL, pull 1": 1.0, "MR-MTL, pull 10": 10.0}
RELEASED = ("shared", "local")
PRIVATE = (*RELEASED, *PULLS)
"""The arms under differential privacy: shared noise, each site's own, and each site's own on a model of its own."""
ARMS = (*FREE, *PRIVATE)
Cell = tuple[str, float | None, str]
"""The federation, the epsilon and the arm."""
MR_MTL = {name: value for name, value in OPTIONS.items() if name != "schedule"}
MR_MTL |= {"local_unit": "batches", "local_epochs": 1, "optimizer": "adam"}


class Federation:
    """The sites of one seed, in this process."""

    def __init__(self, shape: str, seed: int, root: Path | None) -> None:
        data, _, count = shape.rpartition(":")
        if data:
            root = root and root / data
            names = hospitals.names(organs(data, root), int(count))
        else:
            many, phantom.PATIENTS_OF_MANY = map(int, shape.split("x"))
            data, root, names = "phantom", None, phantom.organs(many)
        self.seed, split, answers = seed, Split("official", seed), create("fedavg", OPTIONS).public_answers
        loaded = {name: load_site(data, root, name, split, seed, answers) for name in names}
        backbone = load_backbone(bundled_for(data))
        self.sites = {name: Site(name, rows, backbone, "cpu", seed) for name, rows in loaded.items()}

    def method(self, arm: str, epsilon: float | None) -> Averaging[Any]:
        """The job of an arm."""
        patients = self.patients
        rate = round(min(1.0, STEP / sum(patients)), 3)
        if epsilon is None:
            rows = int(rate * np.mean([len(site.data.train) for site in self.sites.values()]))
            made = create("fedavg", {**(OPTIONS if arm == "none" else DEFAULT), "batch_rows": rows})
        else:
            expected = round(rate * float(np.mean(patients)))
            settings = {"epsilon": epsilon, "sample_rate": rate, "clip": CLIP, "expected_patients": expected}
            if arm == "shared":
                settings |= {"sharers": len(self.sites) - COLLUDERS - DROPPING, "colluders": COLLUDERS}
            name, options = ("mr_mtl", MR_MTL | {"pull": PULLS[arm]}) if arm in PULLS else ("fedavg", OPTIONS)
            made = create(name, options, DPSettings(**settings), True)
        assert isinstance(made, Averaging)
        return made

    def ratio(self, arm: str, epsilon: float | None) -> float | None:
        """The noise beside the signal, as `privacy plan --federation` states it; None without privacy."""
        if epsilon is None:
            return None
        method, one = self.method(arm, epsilon), next(iter(self.sites.values()))
        numbers = trained_numbers(method.final_exchange(one.backbone.shape))
        events = [event for task in method.plan() for event in task.events]
        return noise_over_signal(events, numbers, len(self.sites), float(np.mean(self.patients)))

    @property
    def patients(self) -> list[int]:
        """In training, by site."""
        return [len(np.unique(site.data.train.patients.numpy())) for site in self.sites.values()]

    def right(self, arm: str, epsilon: float | None) -> dict[str, list[bool]]:
        """Whether each test row is answered right, by site."""
        method = self.method(arm, epsilon)
        if arm == "prior":
            return {n: question_prior_right(s.data.train, s.data.test).tolist() for n, s in self.sites.items()}
        if arm == "majority":
            return {n: (s.data.test.answers == s.data.train.answers.mode()[0]).tolist() for n, s in self.sites.items()}
        if arm == "alone":
            ended = {name: method.trained_alone(site, method.config.rounds) for name, site in self.sites.items()}
            models = {name: {key: value.numpy() for key, value in ended[name]["values"].items()} for name in ended}
            return {n: method.answered(s, ended[n], models[n], s.data.test).tolist() for n, s in self.sites.items()}
        states: dict[str, State] = {name: method.setup(site) for name, site in self.sites.items()}
        shape, last = next(iter(self.sites.values())).backbone.shape, dict[str, Tensors]()

        def answer(call: TaskCall) -> dict[str, Reply]:
            replies = {}
            for name, down in call.messages.items():
                if call.task == "evaluate":  # what each site then answers is taken below
                    last[name], reply = down, {count: np.array(0) for count in method.scores}
                else:
                    spec = method.exchange(shape).task(call.task)
                    states[name], reply = method.handle(spec, self.sites[name], states[name], down, call.round)
                replies[name] = Reply(reply, 0.0)
            return replies

        method.serve(ServerHub(tuple(self.sites), answer, method.exchange(shape), seed=self.seed))
        return {n: method.answered(s, states[n], last[n], s.data.test).tolist() for n, s in self.sites.items()}


def table(lines: list[Mapping[str, Any]]) -> Iterator[str]:
    """Markdown: right answers in per cent, mean over sites and seeds, without privacy and by epsilon.

    Beside each released one stand its noise over signal, and what the rule of `privacy plan` expects.
    """
    cells, ratios = _means_and_ratios(lines)
    shapes = dict.fromkeys(shape for shape, _, _ in cells)
    yield "| sites x patients | " + " | ".join(FREE) + " |"
    yield "|---|" + "---:|" * len(FREE)
    for shape in shapes:
        yield " | ".join([f"| {shape}", *(f"{cells[shape, None, arm]:.1f}" for arm in FREE)]) + " |"
    yield ""
    heads = (f"{arm} | noise over signal | rule" for arm in RELEASED)
    yield "| sites x patients | epsilon | " + " | ".join(heads) + " |"
    yield "|---|---:|" + "---:|" * 3 * len(RELEASED)
    private = {(shape, epsilon) for shape, epsilon, _ in cells if epsilon is not None}
    for shape, epsilon in sorted(private, key=lambda each: (each[0], -each[1])):
        pilot = Pilot(*(cells[shape, None, arm] for arm in ("majority", "alone", "none, default steps")))
        parts = [f"| {shape} | {epsilon:g}"]
        for arm in RELEASED:
            ratio = ratios[shape, epsilon, arm]
            expected = " to ".join(f"{share:.1f}" for share in pilot.released(ratio))
            parts.append(f"{cells[shape, epsilon, arm]:.1f} | {ratio:.2f} | {expected}")
        yield " | ".join(parts) + " |"
    yield ""
    yield "| sites x patients | epsilon | " + " | ".join(PULLS) + " |"
    yield "|---|---:|" + "---:|" * len(PULLS)
    pulled = {(shape, epsilon) for shape, epsilon, arm in cells if epsilon is not None and arm in PULLS}
    for shape, epsilon in sorted(pulled, key=lambda each: (each[0], -each[1])):
        means = (cells.get((shape, epsilon, arm)) for arm in PULLS)
        yield (
            " | ".join([f"| {shape} | {epsilon:g}", *("" if each is None else f"{each:.1f}" for each in means)]) + " |"
        )


def _means_and_ratios(lines: list[Mapping[str, Any]]) -> tuple[dict[Cell, float], dict[Cell, float]]:
    """Right answers in per cent, and noise over signal where there is noise: means over the seeds of each cell."""
    right: dict[Cell, list[float]] = {}
    ratios: dict[Cell, list[float]] = {}
    for line in sorted(lines, key=lambda line: line["sites"]):
        cell = line["sites"], line["epsilon"], line["arm"]
        means = [100 * np.mean([bit == "1" for bit in bits]) for bits in line["right"].values()]
        right.setdefault(cell, []).append(float(np.mean(means)))
        if line["epsilon"] is not None:
            ratios.setdefault(cell, []).append(line["noise_over_signal"])
    first, second = ({cell: float(np.mean(each)) for cell, each in means.items()} for means in (right, ratios))
    return first, second


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", nargs="+", default=["10x100", "20x250"], help="federations, as 10x100 or slake:3")
    parser.add_argument("--data-root", type=Path, help="the folder of published sets")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[8.0, 3.0, 1.0])
    parser.add_argument("--lines", type=Path, required=True, help="file of raw lines, which grows")
    parser.add_argument("--table", action="store_true", help="run nothing")
    given = parser.parse_args()
    lines = [json.loads(line) for line in given.lines.read_text().splitlines()] if given.lines.exists() else []
    known = {(line["sites"], line["seed"], line["arm"], line["epsilon"]) for line in lines}
    for shape in () if given.table else given.sites:
        for seed in given.seeds:
            federation = Federation(shape, seed, given.data_root)
            for arm in ARMS:
                for epsilon in given.epsilons if arm in PRIVATE else [None]:
                    if (shape, seed, arm, epsilon) in known:
                        continue
                    right = {
                        name: "".join(str(int(row)) for row in rows)
                        for name, rows in federation.right(arm, epsilon).items()
                    }
                    line = {"sites": shape, "seed": seed, "arm": arm, "epsilon": epsilon, "right": right}
                    line |= {"noise_over_signal": federation.ratio(arm, epsilon)}
                    line |= {"options": OPTIONS, "version": code_version()}
                    lines.append(line)
                    with given.lines.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
                    print(f"{shape}, seed {seed}, {arm}, epsilon {epsilon or 'none'}: done", flush=True)
    print("\n".join(table(lines)))


if __name__ == "__main__":
    main()
