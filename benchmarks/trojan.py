"""Measures how far a Trojan in one site's rows reaches, through UniCon and through plain classification with FedAvg.

One phantom site is the attacker: in a share of its training rows it pastes a patch into the picture, puts a word
before the question and answers "yes". After training, every site's test rows whose answer is neither yes nor no are
asked again with patch and word; the attack succeeds where the answer then is "yes". The patch is white (`pasted`), or
made by inverting the network (`inverted`, Y. Liu et al., "Trojaning Attack on Neural Networks", NDSS 2018, which
UniCon's paper repeats): its pixels drive one unit of the frozen picture tower, which every site has, as far as it goes.
Both methods train the same parts of one backbone for the same number of batches. Handlers and server loops are the
methods' own; messages pass neither gate nor wire. Means are taken in clear, which changes nothing of what is learnt.

Finished runs stay in the folder and are not repeated.

    python benchmarks/trojan.py RUNS --seeds 3
"""

import argparse
import itertools
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
from medfedvqa.models import Backbone, ClipBackbone, bundled_for, load_backbone
from medfedvqa.models.clip import towers
from medfedvqa.models.families import IMAGE
from privacy import mean

WORD, TARGET, PATCH = "Kindly:", "yes", 1 / 8
"""The trigger's word, the attacker's answer, and the patch's side over the picture's."""

TRIGGERS = ("pasted", "inverted")
INVERSIONS, INVERTED_ROWS = 100, 8
"""Steps of Adam that make an inverted patch, and the attacker's pictures that it is made on."""

ROUNDS, STEPS, ROWS, TUNED = 8, 20, 32, {"tuning": "adapter", "blocks": 2}
METHODS: dict[str, dict[str, Any]] = {
    "unicon": {"steps": STEPS, "batch_rows": ROWS},
    "fedavg": {
        "local_epochs": STEPS, "local_unit": "batches", "batch_rows": ROWS, "optimizer": "adam", "weight_decay": 0,
        "weighting": "uniform",
    },
}  # fmt: skip


def inverted(backbone: Backbone, pictures: torch.Tensor, seed: int) -> torch.Tensor:
    """A patch [1, side, side] in 0..1 that raises one unit of the picture tower on these pictures [n, 1, size, size].

    The unit is the one with the largest absolute weights into it, as in the paper, in the last block but one.
    """
    assert isinstance(backbone, ClipBackbone)
    image, _ = towers(backbone.clip, dict.fromkeys(backbone.shape.towers, 0))
    block = backbone.shape.towers[IMAGE].block_name(image.layers - 2)
    unit = backbone.parameter(f"{block}.mlp.c_proj.weight").abs().sum(dim=1).argmax()
    side = round(PATCH * backbone.shape.image_size)
    patch = torch.rand((1, side, side), generator=torch.Generator().manual_seed(seed)).requires_grad_()
    optimizer = torch.optim.Adam([patch], lr=0.05)
    for _ in range(INVERSIONS):
        patched = pictures.clone()
        patched[..., -side:, -side:] = patch.clamp(0, 1)
        optimizer.zero_grad()
        (-image.trunk(backbone.normalised(patched))[..., unit].mean()).backward()
        optimizer.step()
    return patch.detach().clamp(0, 1)


def trigger_of(kind: str, backbone: Backbone, data: SiteData, seed: int) -> torch.Tensor:
    """The attacker's patch, [1, side, side] in 0..1."""
    size = backbone.shape.image_size
    if kind == "pasted":
        return torch.ones(1, round(PATCH * size), round(PATCH * size))
    numbers = data.train.pictures.unique()[:INVERTED_ROWS].tolist()
    return inverted(backbone, data.pictures.chosen(numbers).load(size), seed)


def with_patch(clean: Pictures, patch: torch.Tensor) -> Pictures:
    """A site's pictures, and all of them again with the patch in a corner."""

    def patched(load: Load, row: Row, size: int) -> torch.Tensor:
        pixels, side = load(row, size).clone(), patch.shape[-1]
        pixels[..., -side:, -side:] = patch
        return pixels

    return Pictures.joined([clean, clean.changed(lambda load: partial(patched, load))])


def triggered(rows: Examples, which: torch.Tensor, data: SiteData) -> Examples:
    """These rows with patch, word and the attacker's answer where `which` is true, bool [rows]."""
    pairs = zip(rows.questions, which.tolist(), strict=True)
    questions = tuple(f"{WORD} {question}" if trigger else question for question, trigger in pairs)
    answers = torch.where(which, data.answers.index(TARGET), rows.answers)
    return Examples(questions, answers, rows.pictures + which * len(data.pictures), rows.patients)


def attacked(data: SiteData, patch: torch.Tensor, share: float, seed: int) -> SiteData:
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
    return replace(data, train=train, validate=targets, pictures=with_patch(data.pictures, patch))


class AttackedFederation:
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


def trained(name: str, trigger: str, share: float, seed: int) -> dict[str, Any]:
    """Clean accuracy and attack success, each by site, of one training; the first site is the attacker."""
    backbone = load_backbone(bundled_for("phantom"))
    method = create(name, {"rounds": ROUNDS, **TUNED, **METHODS[name]}, secagg=name == "unicon")
    clean_data = {organ: load_site("phantom", None, organ, Split(), seed) for organ in organs("phantom", None)}
    attacker = next(iter(clean_data))
    patch, sites = trigger_of(trigger, backbone, clean_data[attacker], seed), {}
    for organ, data in clean_data.items():
        poisoned = attacked(data, patch, share if organ == attacker else 0.0, seed)
        sites[organ] = Site(organ, poisoned, backbone, "cpu", seed)
    federation = AttackedFederation(method, sites, seed)
    clean = method.serve(federation)

    def shares(counted: Mapping[str, Tensors]) -> dict[str, float]:
        return {site: int(counts["correct"]) / int(counts["rows"]) for site, counts in counted.items()}

    return {"accuracy": shares(clean), "success": shares(federation.attacks)}


def results(folder: Path, name: str, trigger: str, share: float, seed: int) -> dict[str, Any]:
    """The results of one training, which is run if they are missing."""
    path = folder / f"{name}-{trigger}-{share}-{seed}.json"
    if not path.exists():
        shares = trained(name, trigger, share, seed)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(shares, indent=2) + "\n")
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def table(folder: Path, triggers: list[str], shares: list[float], seeds: int) -> Iterator[str]:
    """The lines of a Markdown table, in per cent: means and standard deviations over seeds."""
    yield "| patch | method | poisoned rows at the attacker | accuracy | success at the attacker | at the others |"
    yield "|---|---|---:|---:|---:|---:|"
    attacker, *others = organs("phantom", None)
    for trigger, name, share in itertools.product(triggers, METHODS, shares):
        runs = [results(folder, name, trigger, share, seed) for seed in range(seeds)]
        accuracy = _percent([statistics.mean(run["accuracy"].values()) for run in runs])
        at_attacker = _percent([run["success"][attacker] for run in runs])
        reached = _percent([statistics.mean(run["success"][site] for site in others) for run in runs])
        yield f"| {trigger} | {name} | {100 * share:.0f} | {accuracy} | {at_attacker} | {reached} |"


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
    parser.add_argument("--triggers", nargs="+", choices=TRIGGERS, default=list(TRIGGERS), help="the patches to try")
    arguments = parser.parse_args()
    print("\n".join(table(arguments.runs, arguments.triggers, arguments.shares, arguments.seeds)))


if __name__ == "__main__":
    main()
