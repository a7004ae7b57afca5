"""Measures a large CLIP of random weights: a training step with prompts in all blocks, and its frozen part in bfloat16.

The step is measured for the site's model and the straightforward way, which must give the same gradients; both are
those of `throughput.py`, on one site's rows of the phantom set. What is left to gain in float32 shows in the matrix
products of a step, at the speed of one product of the same shape alone, as a share of its seconds. The frozen part is
what a cache computes once where the last two blocks are tuned. Seconds are the processor's, of one thread.

    python benchmarks/backbone_steps.py --architecture ViT-B-32 --rows 32
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import open_clip
import torch
from throughput import TOLERANCE, difference, ours, step, straightforward
from torch.utils.flop_counter import FlopCounterMode

from medfedvqa.data import Split, load_site, organs
from medfedvqa.devices import Precision
from medfedvqa.models import ClipBackbone, HeadConfig, TunedModel, Tuning, TuningConfig, load_backbone

FROZEN_BELOW = 2
PRODUCTS = 10
"""How often the single matrix product is timed."""


def random_backbone(architecture: str, device: str = "cpu") -> ClipBackbone:
    """The architecture with random weights on a device, through a file, as a site loads it."""
    torch.manual_seed(0)
    name = f"{architecture}@random"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "random.pt")
        torch.save(open_clip.create_model(architecture).state_dict(), file)
        backbone = load_backbone(name, {name: file}, device)
    assert isinstance(backbone, ClipBackbone)
    return backbone


def product_speed(rows: int, width: int) -> float:
    """Float operations a second of a product as an MLP has them, [rows, width] by [width, 4 width]."""
    inputs, weights, speeds = torch.rand(rows, width), torch.rand(width, 4 * width), []
    for _ in range(PRODUCTS):
        began = time.process_time()
        inputs @ weights
        speeds.append(8 * rows * width**2 / (time.process_time() - began))
    return statistics.median(speeds)


def compare_precisions(backbone: ClipBackbone, pictures: torch.Tensor, questions: list[str], repeats: int) -> None:
    """Print the seconds of the frozen part in float32 and in bfloat16, in turns, and how far its outputs differ."""
    depth = dict.fromkeys(backbone.shape.towers, FROZEN_BELOW)
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    seconds: dict[str, list[float]] = {name: [] for name in precisions}
    outputs = {}
    for turn in range(repeats + 1):
        for name in precisions:
            began = time.process_time()
            cache = backbone.computing(name).cache(depth, pictures, questions)
            if turn:
                seconds[name].append(time.process_time() - began)
            asked = cache.question_ids(questions[:1]).expand(len(pictures))
            rows = torch.arange(len(pictures))
            with torch.no_grad():
                outputs[name] = backbone.features(cache.batch(rows, asked, rows), Tuning())
    whole, rounded = (statistics.median(each) for each in seconds.values())
    apart = outputs["bfloat16"] - outputs["float32"]
    largest, norm = apart.abs().max(), apart.norm() / outputs["float32"].norm()
    print(f"the part below the last {FROZEN_BELOW} blocks, {len(pictures)} pictures and {len(questions)} questions:")
    print(f"float32 {whole:.2f} s; bfloat16 {rounded:.2f} s, ratio {whole / rounded:.2f}; ", end="")
    print(f"features differ by {largest:.3f} at most, {norm:.2%} of their norm")


def main() -> int:
    """Measure and print; 1 if gradients differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", default="ViT-B-32", help="a CLIP of open_clip with a plain transformer")
    parser.add_argument("--rows", type=int, default=32, help="rows of the batch")
    parser.add_argument("--repeats", type=int, default=3, help="timed steps of each way, after one that warms up")
    parser.add_argument("--compiled", action="store_true", help="measure the step by torch.compile too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    backbone, generator = random_backbone(arguments.architecture), torch.Generator().manual_seed(0)
    data = load_site("phantom", None, organs("phantom", None)[0], Split())
    pictures, examples = data.pictures.load(backbone.shape.image_size), data.train
    tuning, head = TuningConfig("prompt"), HeadConfig(len(data.answers), fusion="concat", question="tower")
    shared = tuning.initial(backbone.shape, backbone, generator)
    model = TunedModel(backbone, tuning, head, shared=shared)
    values = {name: value.requires_grad_() for name, value in model.initial(generator, generator).items()}
    cache = model.cache(model.depth, pictures, examples.questions)
    ways = {
        "ours": ours(cache, model, values, examples),
        "straightforward": straightforward(backbone, model, values, examples, pictures),
    }
    if arguments.compiled:
        ways["compiled"] = torch.compile(ways["ours"], dynamic=True)
    rows = torch.randperm(len(examples), generator=generator)[: arguments.rows]
    answers, questions = examples.answers[rows], cache.question_ids(examples.questions)[rows]
    shown = cache.batch(examples.pictures[rows], questions, answers).rows.pictures.start
    with FlopCounterMode(display=False) as counter:
        step(ways["ours"], model, values, rows, answers)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    gradients, first, speeds = {}, {}, []
    for turn in range(arguments.repeats + 1):
        for name, way in ways.items():
            took, gradients[name] = step(way, model, values, rows, answers)
            if turn:
                seconds[name].append(took)
            else:
                first[name] = took
        speeds.append(product_speed(shown.shape[:2].numel(), shown.shape[-1]))
    fast, slow, *compiled = (statistics.median(each) for each in seconds.values())
    least = counter.get_total_flops() / statistics.median(speeds)
    worst = max(difference(gradients["ours"], other) for other in gradients.values())
    print(f"{arguments.architecture}, {len(rows)} rows, {len(shown)} pictures, prompts in all blocks, float32:")
    print(
        f"a step {fast:.2f} s; straightforward {slow:.2f} s, ratio {slow / fast:.2f}; gradients differ by {worst:.1e}"
    )
    for each in compiled:
        print(f"by torch.compile {each:.2f} s, ratio {fast / each:.2f}; its first step {first['compiled']:.0f} s")
    speed = f"{statistics.median(speeds) / 1e9:.0f} GFLOP/s"
    print(f"its matrix products alone, at {speed}: {least:.2f} s, {least / fast:.0%}")
    chosen = examples.pictures[rows].unique()
    asked = list(dict.fromkeys(examples.questions[row] for row in rows.tolist()))
    compare_precisions(backbone, pictures[chosen], asked, arguments.repeats)
    if worst > TOLERANCE:
        print(f"the gradients differ by more than {TOLERANCE}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
