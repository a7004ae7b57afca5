"""Measures training on the devices of this machine: rows per second of a site's own trainer, in both precisions.

A large CLIP of random weights, one site of the phantom set, prompts in the last blocks. Steps go the way that a job
goes: batches from the site's cache, the loss, the optimiser. Seconds are the clock's, since a card works beside the
processor; the first step warms up and is not counted. A device that is not there is named and left out.

With `--private` it measures, on the bundled backbone, a step under differential privacy by patient against a plain step
of the same rows: forward and backward pass, clipping, noise and optimiser, in turns, in processor seconds.

    python benchmarks/devices.py --devices cpu,cuda --blocks 2
    python benchmarks/devices.py --private 64 --data-root "$MEDFEDVQA_DATA/vqa-rad"
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, get_args

import open_clip
import torch

from medfedvqa.core import Site, create
from medfedvqa.data import SiteData, Split, load_site, organs
from medfedvqa.devices import CUDA, Precision, problem_of
from medfedvqa.models import Backbone, load_backbone
from medfedvqa.training import Trainer
from medfedvqa.training.private import Sample
from medfedvqa.training.trainer import StepRows
from privacy import DPSettings, PatientSampler, PatientStreams, SeededChance

SYSTEMS: Mapping[str, tuple[str, dict[str, Any], float]] = {
    "prompt_pfl": ("prompt_pfl", {}, 1.1),
    "fedavg prompt": ("fedavg", {"tuning": "prompt", "weighting": "uniform"}, 1.1),
    "fedavg adapter": ("fedavg", {"tuning": "adapter", "weighting": "uniform"}, 1.12),
    "fedavg last 3 blocks": ("fedavg", {"tuning": "blocks", "blocks": 3, "weighting": "uniform"}, 1.75),
    "feddat": ("feddat", {"weighting": "uniform"}, 1.12),
}
"""By label: method, options, and the target for the ratio of a private step to the plain one."""


def random_backbone(architecture: str, device: str) -> Backbone:
    """The architecture with random weights on a device, through a file, as a site loads it."""
    torch.manual_seed(0)
    name = f"{architecture}@random"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "random.pt")
        torch.save(open_clip.create_model(architecture).state_dict(), file)
        return load_backbone(name, {name: file}, device)


def finish(device: str) -> None:
    """Wait until a card has done what it was given."""
    if device.startswith(CUDA):
        torch.cuda.synchronize(device)


def measure(backbone: Backbone, data: SiteData, options: Mapping[str, Any], steps: int) -> tuple[float, float]:
    """Seconds of the frozen part, and the median of rows per second over the steps after the first."""
    device = str(backbone.device)
    site, method = Site("site", data, backbone, device, 0), create("local", options)
    began = time.perf_counter()
    state, trainer = method.setup(site), method.trainer(site)
    finish(device)
    frozen, speeds = time.perf_counter() - began, []
    part, loss = trainer.part(state["values"], 1), method.row_loss(trainer, state, state["values"])
    for (draw,) in islice(chain.from_iterable(map(trainer.draws, range(steps))), steps + 1):
        began = time.perf_counter()
        trainer.step([part], loss, draw)
        finish(device)
        speeds.append(len(draw.chosen) / (time.perf_counter() - began))
    return frozen, statistics.median(speeds[1:])


def private_ratio(site: Site, name: str, options: Mapping[str, Any], patients: int, repeats: int) -> float:
    """The median seconds of a private step over those of a plain one, on at most 8 rows of each patient.

    A step of FedDAT has two passes: student and teacher.
    """
    options = {**options, "answers": "closed", "fusion": "concat", "question_input": "tower"}
    known = create(name, options).trainer(site).train_rows.patients
    rows = tuple(PatientSampler(known, site.data.patients, 1.0, 8, site.randomness).sample()[:patients])

    def step_of(dp: DPSettings | None) -> Callable[[], Any]:
        method: Any = create(name, options, dp)
        trainer: Trainer = method.trainer(site)
        state = method.setup(site)
        draw: Any = StepRows(torch.cat(rows), SeededChance(0))
        if dp is not None:
            draw = Sample(rows, PatientStreams(site.randomness.secret()))
        trainer.draws = lambda seed, passes=1: iter([(draw,) * passes])  # type: ignore[method-assign]
        return lambda: method.local(trainer, state, state["values"], 2, 0)

    durations: tuple[list[float], list[float]] = [], []
    steps = step_of(None), step_of(DPSettings(noise=1.0, count_noise=1.0))  # noise of any size costs the same
    for _ in range(repeats + 1):
        for step, seconds in zip(steps, durations, strict=True):
            began = time.process_time()
            step()
            seconds.append(time.process_time() - began)
    plain, private = (statistics.median(seconds[1:]) for seconds in durations)
    return private / plain


def private_ratios(patients: int, repeats: int, root: Path | None) -> None:
    """Print every system's ratio at one site."""
    torch.set_num_threads(1)
    data = load_site("vqa-rad" if root else "phantom", root, "chest", Split())
    site = Site("chest", data, load_backbone("medclip2-slake"), "cpu", 0)
    for label, (name, options, target) in SYSTEMS.items():
        ratio = private_ratio(site, name, options, patients, repeats)
        print(f"{label}: private against plain {ratio:.2f} (target {target})", flush=True)


def main() -> int:
    """Measure and print; 1 if no device is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cpu,cuda", help="separated by commas; others are compared with the first")
    parser.add_argument("--architecture", default="ViT-B-32", help="a name of open_clip")
    parser.add_argument("--blocks", type=int, default=12, help="blocks with prompts, the last ones of each tower")
    parser.add_argument("--rows", type=int, default=32, help="rows of a batch")
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--private", type=int, metavar="PATIENTS", help="private steps of at most this many patients")
    parser.add_argument("--data-root", type=Path, help="VQA-RAD, for private steps; by default the phantom set")
    arguments = parser.parse_args()
    if arguments.private:
        private_ratios(arguments.private, arguments.steps, arguments.data_root)
        return 0
    options = {"tuning": "prompt", "blocks": arguments.blocks, "batch_rows": arguments.rows}
    data, reference = load_site("phantom", None, organs("phantom", None)[0], Split()), None
    print(f"{arguments.architecture}, prompts in {arguments.blocks} blocks, batches of at most {arguments.rows} rows")
    for device in arguments.devices.split(","):
        if problem := problem_of(device):
            print(f"{device}: not measured, {problem.problem}")
            continue
        backbone = random_backbone(arguments.architecture, device)
        for precision in get_args(Precision):
            frozen, speed = measure(backbone.computing(precision), data, options, arguments.steps)
            reference = reference or speed
            print(
                f"{device}, {precision}: frozen part {frozen:.1f} s, {speed:.1f} rows/s, ratio {speed / reference:.2f}"
            )
    return 0 if reference else 1


if __name__ == "__main__":
    sys.exit(main())
