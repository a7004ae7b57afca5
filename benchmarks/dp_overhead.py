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
from medfedvqa.methods import Site
from medfedvqa.methods.private_training import PrivateTrainer
from medfedvqa.methods.prompt_pfl import PromptPFLConfig
from medfedvqa.methods.training import SiteTrainer
from medfedvqa.models import Batch, SiteModel, answer_loss, load_backbone
from privacy import DPSettings, NoiseLevels, PatientSampler, PrivateStep, SampledGaussian, SecureRandomness

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
    """The same model with every row's prompts apart."""

    def __init__(self, model: SiteModel) -> None:
        super().__init__()
        self.expand = nn.ModuleDict({tower: Expand(prompt) for tower, prompt in model.prompt.items()})
        self.head = model.head
        self._model = [model]  # not a submodule: its parameters are those above

    def forward(self, rows: torch.Tensor, batch: Batch, generator: torch.Generator) -> torch.Tensor:
        """Logits [rows, answers]; `batch` was gathered with a row per owner."""
        local = {f"prompt.{tower}": expand(rows) for tower, expand in self.expand.items()}
        return self._model[0](batch, None, generator, local)


def steps(site: Site, hidden: int, patients: int, repeats: int) -> dict[str, float]:
    """Median seconds of a step of each kind, over the same patients."""
    config = PromptPFLConfig(hidden=hidden)
    plain = SiteTrainer(site, config.model, config.training)
    private = PrivateTrainer(
        site, config.model, config.training, SETTINGS, NoiseLevels(NOISE, SampledGaussian.for_counts(1.0))
    )
    drawn = PatientSampler(site.data.train.patients, 1.0, SETTINGS.patient_rows, SecureRandomness()).sample()[:patients]
    rows, shown = torch.cat(drawn), torch.zeros(len(site.data.pictures), dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    models = [private._build(torch.Generator().manual_seed(0)) for _ in range(3)]
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-4) for model in models]

    owners = torch.arange(len(drawn)).repeat_interleave(torch.tensor([len(one) for one in drawn]))

    def without(owners: torch.Tensor | None = None) -> None:
        batch = plain._batch(site.data.train, rows, shown, owners)
        loss = answer_loss(models[0](batch, None, generator), batch.answers) + plain._penalty(models[0], None)
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()

    def by_patient() -> None:
        step = PrivateStep(models[1].parameters(), SETTINGS.clip)
        step.add(private._contributions(models[1], drawn, shown, None, generator))
        step.finish(NOISE, SETTINGS.expected_patients, site.randomness)
        private._penalty(models[1], None).backward()
        optimizers[1].step()

    wrapped = GradSampleModule(RowModel(models[2]), loss_reduction="sum")
    bounded = DPOptimizer(optimizers[2], noise_multiplier=NOISE, max_grad_norm=1.0, expected_batch_size=len(rows))

    def by_hooks() -> None:
        batch = plain._batch(site.data.train, rows, shown, torch.arange(len(rows)))
        bounded.zero_grad()
        logits = wrapped(torch.zeros(len(rows)), batch, generator)
        F.cross_entropy(logits, batch.answers, reduction="sum").backward()
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
