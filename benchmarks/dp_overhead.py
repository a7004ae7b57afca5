"""What differential privacy by patient costs a training step: against the same step without, and against Opacus' hooks.

All three take the same rows of the same 64 patients through the same model, in turns, in one process. The ordinary way
of Opacus wraps the model in its `GradSampleModule` and has one gradient for each row (which bounds rows, not patients).
Target: at most 1.05 times the step without differential privacy. That step computes the beginnings of questions which
several patients are asked once for all of them, and gradients by patient cannot; the same step without that sharing
stands beside it.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from opacus.grad_sample import GradSampleModule, register_grad_sampler
from opacus.optimizers import DPOptimizer
from torch import nn

from medfedvqa.data import load_site
from medfedvqa.data.partition import Split
from medfedvqa.methods.prompt_pfl import PromptPFL, PromptPFLConfig
from medfedvqa.models import HEAD, PROMPT, Batch, TunedModel, Values, load_backbone
from medfedvqa.models.tuned import dropped
from medfedvqa.training import Privacy, Site, Trainer, answer_losses
from medfedvqa.training.private import Sample
from privacy import (
    Chance,
    DPSettings,
    NoiseLevels,
    PatientSampler,
    PatientStreams,
    SecureRandomness,
    SeededChance,
)

NOISE = 1.0
SETTINGS = DPSettings(noise=NOISE, count_noise=1.0, patient_rows=8)


class Expand(nn.Module):
    """A prompt, once for each row: the form in which Opacus' hooks can see it."""

    def __init__(self, prompt: nn.Parameter) -> None:
        super().__init__()
        self.prompt = prompt

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows] to [rows, blocks, length, width]."""
        return self.prompt.expand(len(rows), *self.prompt.shape)


@register_grad_sampler(Expand)
def _expand_rule(layer: Expand, inputs: list[torch.Tensor], outputs: torch.Tensor) -> dict[nn.Parameter, torch.Tensor]:
    return {layer.prompt: outputs}


class RowModel(nn.Module):
    """The same model with every row's prompts apart, as layers that Opacus' hooks know."""

    def __init__(self, model: TunedModel, values: Values) -> None:
        super().__init__()
        prompts = {name.removeprefix(PROMPT): value for name, value in values.items() if name.startswith(PROMPT)}
        self.expand = nn.ModuleDict({tower: Expand(nn.Parameter(value)) for tower, value in prompts.items()})
        self.layers = nn.ModuleDict(
            {
                layer: _linear(values[f"{HEAD}{layer}.weight"], values[f"{HEAD}{layer}.bias"])
                for layer in ("hidden", "answers")
            }
        )
        self._model = model

    def forward(self, rows: torch.Tensor, batch: Batch, chance: Chance) -> torch.Tensor:
        """Logits [rows, answers]; `batch` was gathered with a row per owner."""
        local = {PROMPT + tower: expand(rows) for tower, expand in self.expand.items()}
        hidden = self.layers["hidden"](self._model.features(local, batch)).relu()
        logits: torch.Tensor = self.layers["answers"](dropped(hidden, self._model.head.dropout, chance))
        return logits


def _linear(weight: torch.Tensor, bias: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


def steps(site: Site, hidden: int, patients: int, repeats: int) -> dict[str, float]:
    """Median seconds of a step of each kind, over the same patients."""
    method = PromptPFL(PromptPFLConfig(hidden=hidden, learning_rate=1e-4))
    model, start = method.model(site), method.setup(site)["values"]
    privacy = Privacy(SETTINGS, NoiseLevels(NOISE, 1.0))
    plain, private = (Trainer(site, model, method.config.training, privacy=each) for each in (None, privacy))
    penalty, loss, chance = method._penalty(plain), answer_losses(model), SeededChance(0)
    train, keys = plain.train_rows, site.data.patients
    sampler = PatientSampler(train.patients, keys, 1.0, SETTINGS.patient_rows, SecureRandomness())
    drawn = tuple(sampler.sample()[:patients])
    rows = torch.cat(drawn)
    owners = torch.arange(len(drawn)).repeat_interleave(torch.tensor([len(one) for one in drawn]))
    parts = [trainer.part(start, 1) for trainer in (plain, private)]

    def without(owners: torch.Tensor | None = None) -> None:
        seen = plain._rows.rows(train, rows, chance, owners)
        (loss(parts[0].values, seen).mean() + penalty(parts[0].values)).backward()
        parts[0].step()

    def by_patient() -> None:
        private.step([parts[1]], loss, Sample(drawn, PatientStreams(site.randomness.secret())), penalty)

    row_model = RowModel(model, start)
    optimizer = torch.optim.Adam(row_model.parameters(), lr=1e-4)
    wrapped = GradSampleModule(row_model, loss_reduction="sum")
    bounded = DPOptimizer(optimizer, noise_multiplier=NOISE, max_grad_norm=1.0, expected_batch_size=len(rows))

    def by_hooks() -> None:
        seen = plain._rows.rows(train, rows, chance, torch.arange(len(rows)))
        bounded.zero_grad()
        logits = wrapped(torch.zeros(len(rows)), seen.batch, chance)
        F.cross_entropy(logits, seen.answers, reduction="sum").backward()
        bounded.step()

    kinds: dict[str, Callable[[], None]] = {
        "without": without,
        "apart": lambda: without(owners),
        "by patient": by_patient,
        "hooks": by_hooks,
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(repeats + 1):
        for name, step in kinds.items():
            began = time.process_time()
            step()
            if turn:  # the first one warms up
                seconds[name].append(time.process_time() - began)
    return {name: statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    """Measure every site and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path, help="folder of VQA-RAD; by default the phantom set")
    parser.add_argument("--patients", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=512, help="width of the answer head")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "Full backward hook is firing")  # the input of Expand needs no gradient
    torch.set_num_threads(1)
    reader = "vqa-rad" if arguments.data_root else "phantom"
    backbone = load_backbone("medclip-slake")
    print("site    | without, s | patients apart, s | by patient, s | ratio to each | Opacus' hooks by row, s | ratio")
    ratios = []
    for organ in ("chest", "abdomen", "head"):
        data = load_site(reader, arguments.data_root, organ, Split())
        site = Site(organ, data, backbone, "cpu", 0)
        found = steps(site, arguments.hidden, arguments.patients, arguments.repeats)
        ours, hooks = found["by patient"] / found["without"], found["hooks"] / found["without"]
        ratios.append(ours)
        print(
            f"{organ:7} | {found['without']:10.3f} | {found['apart']:17.3f} | {found['by patient']:13.3f} | "
            f"{ours:.3f}, {found['by patient'] / found['apart']:.3f}    | {found['hooks']:23.3f} | {hooks:.2f}"
        )
    print(f"by patient, median over sites: {statistics.median(ratios):.3f} times (target: at most 1.05)")


if __name__ == "__main__":
    main()
