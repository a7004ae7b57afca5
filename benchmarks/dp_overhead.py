"""Measures a training step under differential privacy by patient, compared with a plain step and with Opacus.

All take the same rows of the same patients through the same model, in turns, in one process: forward and backward pass,
clipping, noise and optimiser. Opacus computes a gradient for each row (which bounds rows, not patients). It is measured
on the answer head over frozen features and on prompts, which its hooks can see.

    python benchmarks/dp_overhead.py --data-root "$MEDFEDVQA_DATA/vqa-rad"
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from opacus.grad_sample import GradSampleModule, register_grad_sampler
from opacus.optimizers import DPOptimizer
from torch import nn

from medfedvqa.core import create
from medfedvqa.data import Split, load_site
from medfedvqa.models import HEAD, PROMPT, TunedModel, load_backbone
from medfedvqa.training import Site, Trainer
from medfedvqa.training.private import Sample
from medfedvqa.training.trainer import StepRows
from privacy import DPSettings, PatientSampler, PatientStreams, SeededChance

SYSTEMS: Mapping[str, tuple[str, dict[str, Any], float]] = {
    "prompt_pfl": ("prompt_pfl", {}, 1.1),
    "fedavg prompt": ("fedavg", {"tuning": "prompt"}, 1.1),
    "fedavg adapter": ("fedavg", {"tuning": "adapter"}, 1.12),
    "fedavg last 3 blocks": ("fedavg", {"tuning": "blocks", "blocks": 3}, 1.75),
    "feddat": ("feddat", {}, 1.12),
}
"""By label: method, options, and the target for the ratio to the plain step."""
TWO_LAYERS = {"fusion": "concat", "question_input": "tower"}
"""The answer head of both sides: Opacus wraps modules with layers."""
Step = Callable[[], None]


def settings(chunk: int) -> DPSettings:
    """Settings with some noise, since noise of any size costs the same."""
    return DPSettings(noise=1.0, count_noise=1.0, physical_patients=chunk)


def sampled_rows(trainer: Trainer, patients: int) -> tuple[torch.Tensor, ...]:
    """The training rows of this many patients, at most 8 of each."""
    site = trainer.site
    sampler = PatientSampler(trainer.train_rows.patients, site.data.patients, 1.0, 8, site.randomness)
    return tuple(sampler.sample()[:patients])


def steps(site: Site, name: str, options: dict[str, Any], patients: int, chunk: int) -> tuple[Step, Step]:
    """A plain and a private step of a method on the same rows. A step of FedDAT has two passes: student and teacher."""
    options = {**options, "answers": "closed", **TWO_LAYERS} | (
        {} if name == "prompt_pfl" else {"weighting": "uniform"}
    )
    rows = sampled_rows(create(name, options).trainer(site), patients)

    def step_of(dp: DPSettings | None) -> Step:
        method: Any = create(name, options, dp)
        trainer: Trainer = method.trainer(site)
        state = method.setup(site)
        draw: Any = StepRows(torch.cat(rows), SeededChance(0))
        if dp is not None:
            draw = Sample(rows, PatientStreams(site.randomness.secret()))
        trainer.draws = lambda seed, passes=1: iter([(draw,) * passes])  # type: ignore[method-assign]
        return lambda: method.local(trainer, state, state["values"], 2, 0)

    return step_of(None), step_of(settings(chunk))


class Expand(nn.Module):
    """A prompt, repeated for each row, so that Opacus' hooks can see it."""

    def __init__(self, prompt: torch.Tensor) -> None:
        super().__init__()
        self.prompt = nn.Parameter(prompt.clone())

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows] to [rows, blocks, length, width]."""
        return self.prompt.expand(len(rows), *self.prompt.shape)


@register_grad_sampler(Expand)
def _expand_rule(layer: Expand, inputs: list[torch.Tensor], outputs: torch.Tensor) -> dict[nn.Parameter, torch.Tensor]:
    return {layer.prompt: outputs}


class RowModel(nn.Module):
    """prompt_pfl's model with every row's prompts apart, as a module that Opacus can wrap."""

    def __init__(self, model: TunedModel, values: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.model = [model]  # not a submodule: its backbone is frozen
        self.expand = nn.ModuleDict({n.removeprefix(PROMPT): Expand(v) for n, v in values.items() if PROMPT in n})
        hidden, answers = (values[f"{HEAD}{part}.weight"] for part in ("hidden", "answers"))
        self.hidden, self.answers = nn.Linear(*hidden.shape[::-1]), nn.Linear(*answers.shape[::-1])

    def forward(self, rows: torch.Tensor, batch: Any) -> torch.Tensor:
        """Logits [rows, answers]; `batch` was gathered with a row per owner."""
        local = {PROMPT + tower: expand(rows) for tower, expand in self.expand.items()}
        features = self.model[0].features(local, batch)
        return self.answers(F.dropout(self.hidden(features).relu(), 0.2))


def opacus_step(site: Site, patients: int) -> Step:
    """prompt_pfl's step by Opacus' hooks, row by row."""
    method: Any = create("prompt_pfl", {"answers": "closed", **TWO_LAYERS})
    trainer: Trainer = method.trainer(site)
    rows = torch.cat(sampled_rows(trainer, patients))
    module = RowModel(trainer.model, method.setup(site)["values"])
    wrapped = GradSampleModule(module, loss_reduction="sum")
    adam = torch.optim.Adam(module.parameters(), 1e-4)
    bounded = DPOptimizer(adam, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=len(rows))

    def step() -> None:
        batch = trainer._rows.rows(trainer.train_rows, rows, None, torch.arange(len(rows))).batch
        bounded.zero_grad()
        F.cross_entropy(wrapped(torch.zeros(len(rows)), batch), batch.answers, reduction="sum").backward()
        bounded.step()

    return step


def seconds(kinds: Mapping[str, Step], repeats: int) -> dict[str, float]:
    """The median processor seconds of each step, measured in turns."""
    durations: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(repeats + 1):
        for name, step in kinds.items():
            began = time.process_time()
            step()
            if turn:  # the first one warms up
                durations[name].append(time.process_time() - began)
    return {name: statistics.median(times) for name, times in durations.items()}


def main() -> None:
    """Measure every system and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, help="folder of VQA-RAD; by default the phantom set")
    parser.add_argument("--organ", default="chest")
    parser.add_argument("--patients", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=settings(1).__class__.physical_patients, help="patients at once")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "Full backward hook is firing")  # the input of Expand needs no gradient
    torch.set_num_threads(1)
    data = load_site("vqa-rad" if arguments.data_root else "phantom", arguments.data_root, arguments.organ, Split())
    site = Site(arguments.organ, data, load_backbone("medclip2-slake"), "cpu", 0)
    print(f"{arguments.organ}: {arguments.patients} patients at most, chunks of {arguments.chunk}")
    print("system               | plain, s | by patient, s | ratio | target")
    for label in arguments.only:
        name, options, target = SYSTEMS[label]
        plain, private = steps(site, name, options, arguments.patients, arguments.chunk)
        kinds = {"plain": plain, "private": private}
        if label == "prompt_pfl":
            kinds["opacus"] = opacus_step(site, arguments.patients)
        medians = seconds(kinds, arguments.repeats)
        ratio = medians["private"] / medians["plain"]
        print(
            f"{label:20} | {medians['plain']:8.3f} | {medians['private']:13.3f} | {ratio:5.2f} | {target}", flush=True
        )
        if "opacus" in medians:
            by_row = medians["opacus"] / medians["plain"]
            print(
                f"  Opacus, by row     | {medians['plain']:8.3f} | {medians['opacus']:13.3f} | {by_row:5.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
