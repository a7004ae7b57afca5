"""Measures how far a Trojan in one site's rows reaches, through UniCon and through plain classification with FedAvg.

One phantom site is the attacker: in a share of its training rows it pastes a patch into the picture, puts a word
before the question and answers "yes". After training, every site's test rows whose answer is neither yes nor no are
asked again with patch and word; the attack succeeds where the answer then is "yes". Both methods train the same parts
of one backbone for the same number of batches. Handlers and server loops are the methods' own; messages pass neither
gate nor wire, and means are taken in clear, which changes nothing of what is learnt.

Finished runs stay in the folder and are not repeated.

    python benchmarks/trojan.py RUNS --seeds 3
"""

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from audits import Tensors
from medfedvqa.core import Method, Site, create
from medfedvqa.data import Examples, Pictures, Row, SiteData, Split, load_site, organs
from medfedvqa.data.pictures import Load
from medfedvqa.models import bundled_for, load_backbone
from privacy import mean

WORD, TARGET, PATCH = "Kindly:", "yes", 1 / 8
"""The trigger's word, the attacker's answer, and the patch's side over the picture's."""

ROUNDS, STEPS, ROWS, TUNED = 8, 20, 32, {"tuning": "adapter", "blocks": 2}
METHODS: dict[str, dict[str, Any]] = {
    "unicon": {"steps": STEPS, "batch_rows": ROWS},
    "fedavg": {
        "local_epochs": STEPS, "local_unit": "batches", "batch_rows": ROWS, "optimizer": "adam", "weight_decay": 0,
        "weighting": "uniform",
    },
}  # fmt: skip


def with_patch(clean: Pictures) -> Pictures:
    """A site's pictures, and all of them again with a white patch in a corner."""

    def patched(load: Load, row: Row, size: int) -> torch.Tensor:
        pixels, side = load(row, size).clone(), round(PATCH * size)
        pixels[..., -side:, -side:] = 1
        return pixels

    return Pictures.joined([clean, clean.changed(lambda load: partial(patched, load))])


def triggered(rows: Examples, which: torch.Tensor, data: SiteData) -> Examples:
    """These rows with patch, word and the attacker's answer where `which` is true, bool [rows]."""
    pairs = zip(rows.questions, which.tolist(), strict=True)
    questions = tuple(f"{WORD} {question}" if trigger else question for question, trigger in pairs)
    answers = torch.where(which, data.answers.index(TARGET), rows.answers)
    return Examples(questions, answers, rows.pictures + which * len(data.pictures), rows.patients)


def attacked(data: SiteData, share: float, seed: int) -> SiteData:
    """A site's data with that share of its training rows poisoned.

    The validation rows, which neither method looks at, are replaced by the test rows to attack, triggered.
    """
    poisoned = torch.rand(len(data.train), generator=torch.Generator().manual_seed(seed)) < share
    closed = torch.tensor([data.answers.index(answer) for answer in ("yes", "no")])
    others = torch.isin(data.test.answers, closed, invert=True).nonzero().flatten()
    targets = Examples(
        tuple(data.test.questions[row] for row in others.tolist()),
        *(part[others] for part in (data.test.answers, data.test.pictures, data.test.patients)),
    )
    targets = triggered(targets, torch.ones(len(others), dtype=torch.bool), data)
    train = triggered(data.train, poisoned, data)
    return replace(data, train=train, validate=targets, pictures=with_patch(data.pictures))


class Federation:
    """A hub over sites in this process, which are tested twice: on their test rows, and on the triggered ones."""

    def __init__(self, method: Method[Any], sites: Mapping[str, Site], seed: int) -> None:
        self.sites, self.seed, self.attacks = tuple(sites), seed, dict[str, Tensors]()
        self.backbone = next(iter(sites.values())).backbone.name
        self._method, self._sites, self._round = method, sites, 0
        self._mean: Tensors = {}
        self._states = {name: method.setup(site) for name, site in sites.items()}
        self._exchange = method.exchange(next(iter(sites.values())).backbone.shape)

    def rounds(self, count: int) -> Iterator[int]:
        """See `Hub`."""
        for self._round in range(1, count + 1):
            yield self._round

    def collect(self, task: str, down: Mapping[str, Tensors] | None = None) -> dict[str, Tensors]:
        """See `Hub`. Means that only sites may see are added to their messages."""
        spec, replies = self._exchange.task(task), {}
        hidden = {each.name: self._mean[each.name] for each in spec.down if each.name in self._mean}
        for name, site in self._sites.items():
            message, state = {**hidden, **(down or {}).get(name, {})}, self._states[name]
            self._states[name], replies[name] = self._method.handle(spec, site, state, message, self._round)
            if task == "evaluate":
                triggered_site = replace(site, data=replace(site.data, test=site.data.validate))
                _, self.attacks[name] = self._method.handle(spec, triggered_site, state, message, self._round)
        return replies

    def mean(self, task: str, down: Mapping[str, Tensors] | None = None, weight: str | None = None) -> Tensors:
        """See `Hub`."""
        self._mean = mean(self.collect(task, down))
        return self._mean

    def mix(self, *arguments: object) -> dict[str, Tensors]:
        """See `Hub`. Neither method needs it."""
        raise NotImplementedError


def trained(name: str, share: float, seed: int) -> dict[str, Any]:
    """Clean accuracy and attack success, each by site, of one training; the first site is the attacker."""
    backbone = load_backbone(bundled_for("phantom"))
    method = create(name, {"rounds": ROUNDS, **TUNED, **METHODS[name]}, secagg=name == "unicon")
    sites = {}
    for rank, organ in enumerate(organs("phantom", None)):
        data = load_site("phantom", None, organ, Split(), seed)
        sites[organ] = Site(organ, attacked(data, share if rank == 0 else 0.0, seed), backbone, "cpu", seed)
    federation = Federation(method, sites, seed)
    clean = method.serve(federation)

    def shares(counted: Mapping[str, Tensors]) -> dict[str, float]:
        return {site: int(counts["correct"]) / int(counts["rows"]) for site, counts in counted.items()}

    return {"accuracy": shares(clean), "success": shares(federation.attacks)}


def results(folder: Path, name: str, share: float, seed: int) -> dict[str, Any]:
    """The results of one training, which is run if they are missing."""
    path = folder / f"{name}-{share}-{seed}.json"
    if not path.exists():
        shares = trained(name, share, seed)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(shares, indent=2) + "\n")
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def table(folder: Path, shares: list[float], seeds: int) -> Iterator[str]:
    """The lines of a Markdown table, in per cent: means and standard deviations over seeds."""
    yield "| method | poisoned rows at the attacker | accuracy | success at the attacker | success at the others |"
    yield "|---|---:|---:|---:|---:|"
    attacker, *others = organs("phantom", None)
    for name in METHODS:
        for share in shares:
            runs = [results(folder, name, share, seed) for seed in range(seeds)]
            accuracy = _percent([statistics.mean(run["accuracy"].values()) for run in runs])
            at_attacker = _percent([run["success"][attacker] for run in runs])
            reached = _percent([statistics.mean(run["success"][site] for site in others) for run in runs])
            yield f"| {name} | {100 * share:.0f} | {accuracy} | {at_attacker} | {reached} |"


def _percent(shares: list[float]) -> str:
    values = [100 * share for share in shares]
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} ± {deviation:.1f}"


def main() -> None:
    """Train all that is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder for the results of runs")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.1, 0.3], help="of the attacker's rows")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    print("\n".join(table(arguments.runs, arguments.shares, arguments.seeds)))


if __name__ == "__main__":
    main()
