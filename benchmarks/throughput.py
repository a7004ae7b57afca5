"""Measures training rows per second of one thread: the site's model and the straightforward way, in the same run.

The straightforward way computes each row by itself: its picture through the whole image tower and its question, padded
to the full context, through the whole text tower. It is batched, projects prompts once, and uses the same fused
attention, loss and dropout. Both must give the same gradients. Seconds are the processor's, so that other work on
the machine disturbs neither side much.

    python benchmarks/throughput.py --data vqa-rad --data-root "$MEDFEDVQA_DATA/vqa-rad"
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from open_clip.transformer import ResidualAttentionBlock

from medfedvqa.data import Examples, Split, batches, load_site, organs
from medfedvqa.errors import MedfedvqaError
from medfedvqa.models import (
    HEAD,
    PROMPT,
    Cache,
    ClipBackbone,
    HeadConfig,
    TunedModel,
    TuningConfig,
    Values,
    bundled_for,
    load_backbone,
    prompt_distance,
    weight_penalty,
)
from privacy import SeededChance

TARGET = 4.0
"""Ratio of rows per second that the project promises on VQA-RAD."""
TOLERANCE = 1e-5
"""Largest difference of a gradient, relative to that gradient's largest entry."""

Logits = Callable[[torch.Tensor, SeededChance], torch.Tensor]
"""Row indices, and what dropout draws from, to logits."""


@dataclass(frozen=True)
class Measured:
    """One batch: its rows, seconds of either way, and how far their gradients differ."""

    rows: int
    ours: float
    straightforward: float
    difference: float


def attend(
    block: ResidualAttentionBlock, hidden: torch.Tensor, prompts: list[torch.Tensor], mask: torch.Tensor | None
) -> torch.Tensor:
    """One block on [rows, tokens, width] with prompts, each [length, width], joined to keys and values."""
    attention, width = block.attn, hidden.shape[-1]
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    queries, keys, values = F.linear(block.ln_1(hidden), weight, bias).chunk(3, dim=-1)
    halves = [prompt.chunk(2) for prompt in prompts]
    prompt_keys = torch.cat([keys for keys, _ in halves])
    prompt_values = torch.cat([values for _, values in halves])
    prompt_keys = F.linear(prompt_keys, weight[width : 2 * width], bias[width : 2 * width])
    prompt_values = F.linear(prompt_values, weight[2 * width :], bias[2 * width :])
    keys = torch.cat([prompt_keys.expand(len(hidden), -1, -1), keys], dim=1)
    values = torch.cat([prompt_values.expand(len(hidden), -1, -1), values], dim=1)
    heads = (part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for part in (queries, keys, values))
    attended = F.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(1, 2).flatten(2)
    hidden = hidden + attention.out_proj(attended)
    return hidden + block.mlp(block.ln_2(hidden))


def straightforward(
    backbone: ClipBackbone, model: TunedModel, values: Values, examples: Examples, pictures: torch.Tensor
) -> Logits:
    """One row, one picture, one padded question. Pictures are normalised and questions tokenised beforehand."""
    clip, tokens = backbone.clip, backbone.tokenize(list(examples.questions))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (backbone.mean, backbone.std))
    images = (pictures.expand(-1, 3, -1, -1) - mean) / std
    mask, shared = F.pad(clip.attn_mask, (model.tuning.length, 0)), model.shared or {}

    def logits(rows: torch.Tensor, chance: SeededChance) -> torch.Tensor:
        hidden = clip.visual._embeds(images[examples.pictures[rows]])
        for index, block in enumerate(clip.visual.transformer.resblocks):
            prompts = [values["prompt.image"][index], shared["prompt.image"][index]]
            hidden = attend(block, hidden, prompts, None)
        image_features = clip.visual._pool(hidden)[0]
        hidden = clip.token_embedding(tokens[rows]) + clip.positional_embedding
        for index, block in enumerate(clip.transformer.resblocks):
            prompts = [values["prompt.text"][index], shared["prompt.text"][index]]
            hidden = attend(block, hidden, prompts, mask)
        ends = tokens[rows].argmax(dim=-1)
        text_features = clip.ln_final(hidden[torch.arange(len(rows)), ends])
        return model.answer(values, torch.cat([image_features, text_features], dim=-1), None, chance)

    return logits


def ours(cache: Cache, model: TunedModel, values: Values, examples: Examples) -> Logits:
    """The site's model on batches gathered from its cache."""
    questions = cache.question_ids(examples.questions)

    def logits(rows: torch.Tensor, chance: SeededChance) -> torch.Tensor:
        batch = cache.batch(examples.pictures[rows], questions[rows], examples.answers[rows])
        return model.logits(values, batch, chance)

    return logits


def step(
    logits: Logits, model: TunedModel, values: Values, rows: torch.Tensor, answers: torch.Tensor
) -> tuple[float, Values]:
    """Seconds and gradients of one forward and backward pass of the whole loss."""
    prompts = {name: value for name, value in values.items() if name.startswith(PROMPT)}
    head = [value for name, value in values.items() if name.startswith(HEAD)]
    start = time.process_time()
    loss = F.cross_entropy(logits(rows, SeededChance(0)), answers)
    loss = loss + 0.5 * prompt_distance(prompts, model.shared or {}) + 0.001 * weight_penalty(head)
    gradients = torch.autograd.grad(loss, list(values.values()))
    seconds = time.process_time() - start
    return seconds, dict(zip(values, gradients, strict=True))


def measure(site: str, arguments: argparse.Namespace, backbone: ClipBackbone, rows: int) -> list[Measured]:
    """Both ways on the same train batches of one site, taking turns in going first."""
    data = load_site(arguments.data, arguments.data_root, site, Split())
    pictures, examples = data.pictures.load(backbone.shape.image_size), data.train
    generator = torch.Generator().manual_seed(0)
    tuning = TuningConfig("prompt")
    model = TunedModel(backbone, tuning, HeadConfig(len(data.answers), fusion="concat", question="tower"))
    values = {name: value.requires_grad_() for name, value in model.initial(generator, generator).items()}
    model = replace(model, shared=tuning.initial(backbone.shape, backbone, generator))
    cache = model.cache(model.depth, pictures, examples.questions)
    ways = ours(cache, model, values, examples), straightforward(backbone, model, values, examples, pictures)
    measured: list[Measured] = []
    for batch_rows in itertools.islice(batches(examples, rows, generator), arguments.batches + 1):
        order = (0, 1) if len(measured) % 2 else (1, 0)
        results = {way: step(ways[way], model, values, batch_rows, examples.answers[batch_rows]) for way in order}
        (fast, gradients), (slow, expected) = results[0], results[1]
        measured.append(Measured(len(batch_rows), fast, slow, difference(gradients, expected)))
    return measured[1:]  # the first batch warms up


def difference(gradients: Values, expected: Values) -> float:
    """The largest difference of any gradient, relative to the largest entry of that gradient."""
    return max(float((gradients[name] - grad).abs().max() / grad.abs().max()) for name, grad in expected.items())


def main() -> int:
    """Measure and print; 1 if gradients differ, 2 if something that is needed is missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="vqa-rad", help="vqa-rad, slake or phantom")
    parser.add_argument("--data-root", type=Path, help="the data set's folder")
    parser.add_argument("--backbone", help="default: the bundled one that has not seen the data")
    parser.add_argument("--checkpoint", type=Path, help="the file of a backbone named ARCH@label")
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 64], help="rows per batch")
    parser.add_argument("--batches", type=int, default=6, help="batches per site and batch size")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        worst = compare(arguments)
    except MedfedvqaError as error:
        print(error, file=sys.stderr)
        return 2
    if worst > TOLERANCE:
        print(f"the gradients differ by more than {TOLERANCE}", file=sys.stderr)
        return 1
    return 0


def compare(arguments: argparse.Namespace) -> float:
    """Print one line for each site and batch size; returns the largest difference of gradients."""
    name = arguments.backbone or bundled_for(arguments.data)
    backbone = load_backbone(name, {name: arguments.checkpoint} if arguments.checkpoint else {})
    worst, ratios = 0.0, []
    for rows in arguments.rows:
        for site in organs(arguments.data, arguments.data_root):
            measured = measure(site, arguments, backbone, rows)
            fast = statistics.median(batch.rows / batch.ours for batch in measured)
            slow = statistics.median(batch.rows / batch.straightforward for batch in measured)
            apart = max(batch.difference for batch in measured)
            worst, ratios = max(worst, apart), [*ratios, fast / slow]
            print(
                f"{site:10} {rows:3} rows a batch: {fast:7.1f} rows/s, straightforward {slow:6.1f}, "
                f"ratio {fast / slow:4.2f}, gradients differ by {apart:.1e}"
            )
    print(f"median ratio {statistics.median(ratios):.2f} (target {TARGET}), gradients differ by at most {worst:.1e}")
    return worst


if __name__ == "__main__":
    sys.exit(main())
