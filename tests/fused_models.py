"""What the tests of fused backbones share: rows, values, and tuning put into a library's own modules by hand."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, pad

from medfedvqa.errors import BackboneError
from medfedvqa.models import Backbone, TuningConfig, load_backbone

EXACT = {"rtol": 0, "atol": 1e-10}
QUESTIONS = ("is it", "is there a mass", "what", "Is  there a MASS", "which side is it of these unknown words and more")
ROWS = torch.tensor([0, 1, 2, 3, 4, 1, 0])
PICTURES = torch.tensor([0, 0, 1, 2, 2, 2, 1])


def pictures() -> torch.Tensor:
    return torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def values_of(config: TuningConfig, backbone: Backbone) -> dict[str, torch.Tensor]:
    """Values away from where they begin, float64."""
    draw = torch.Generator().manual_seed(7)
    initial = config.initial(backbone.shape, backbone, draw)
    return {name: value.double() + 0.1 * torch.randn(value.shape, generator=draw) for name, value in initial.items()}


def batch_of(backbone: Backbone, depth: int, owners: torch.Tensor | None = None):
    cache = backbone.cache({"joint": depth}, pictures(), QUESTIONS)
    ids = cache.question_ids([QUESTIONS[row] for row in ROWS])
    return cache.batch(PICTURES, ids, torch.zeros(7, dtype=torch.int64), owners)


def features(backbone: Backbone, config: TuningConfig, values: dict[str, torch.Tensor], depth: int | None = None):
    depth = config.depth(backbone.shape)["joint"] if depth is None else depth
    return backbone.features(batch_of(backbone, depth), config.applied(backbone, values))


def assert_same_as(
    plain: Callable[..., torch.Tensor], backbone: Backbone, config: TuningConfig, least_change: float = 1e-4
) -> None:
    """Features and gradients are those of `plain`, of a backbone and values, to 1e-10; what is declared is trained, and
    nothing else. `least_change`: of a feature by what is tuned."""
    values = {name: value.requires_grad_() for name, value in values_of(config, backbone).items()}
    assert {name: tuple(value.shape) for name, value in values.items()} == config.shapes(backbone.shape)
    found, expected = features(backbone, config, values), plain(backbone, values)
    assert torch.allclose(found, expected, **EXACT)
    if values:
        assert (found - plain(backbone, {})).abs().max() > least_change
        found.sin().sum().backward()
        gradients = torch.autograd.grad(expected.sin().sum(), list(values.values()))
        for (name, value), gradient in zip(values.items(), gradients, strict=True):
            assert value.grad is not None and torch.allclose(value.grad, gradient, **EXACT), name
    assert all(weight.grad is None and not weight.requires_grad for weight in backbone.network.parameters())


def assert_cache_may_end_anywhere(backbone: Backbone, config: TuningConfig) -> None:
    """Below what is tuned, down to the pixels."""
    values, first = values_of(config, backbone), config.depth(backbone.shape)["joint"]
    expected = features(backbone, config, values)
    for depth in range(first, backbone.layers + 2):
        assert torch.allclose(features(backbone, config, values, depth), expected, **EXACT)


def refused(folder: Path, name: str) -> str:
    """The message of a refusal to load, after having made sure that it names no path."""
    with pytest.raises(BackboneError) as caught:
        load_backbone(name, {name: folder})
    assert folder.name not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__cause__ is None and caught.value.__suppress_context__ == bool(caught.value.__context__)
    return str(caught.value)


def assert_rows_alone_are_the_same(backbone: Backbone, depth: int) -> None:
    """A longer question in the batch pads the others, and padding is not looked at."""
    config = TuningConfig("adapter")
    values, together = values_of(config, backbone), batch_of(backbone, depth)
    cache = backbone.cache({"joint": depth}, pictures(), QUESTIONS)
    expected = backbone.features(together, config.applied(backbone, values))
    for row in range(7):
        ids = cache.question_ids([QUESTIONS[ROWS[row]]])
        alone = cache.batch(PICTURES[row : row + 1], ids, torch.zeros(1, dtype=torch.int64))
        assert torch.allclose(backbone.features(alone, config.applied(backbone, values))[0], expected[row], **EXACT)


def put(module: nn.Module, name: str, value: torch.Tensor) -> None:
    """Have a module compute with this tensor where it had a parameter of its own."""
    owner, _, own = name.rpartition(".")
    owner = module.get_submodule(owner)
    delattr(owner, own)
    setattr(owner, own, value)


def put_weights(network: nn.Module, blocks: list[nn.Module], values: dict[str, torch.Tensor]) -> None:
    """Tuned weights in place of the network's, and low-rank updates as sums of weights."""
    for name, value in values.items():
        if name.startswith("weight."):
            put(network, name.removeprefix("weight."), value)
        elif name.startswith("lora.") and name.endswith(".up"):
            _, _, number, *path, part, _, first, _ = name.split(".")
            layer = blocks[int(number)].get_submodule(".".join([*path, part]))
            weight = layer.weight.detach() if isinstance(layer.weight, nn.Parameter) else layer.weight
            update = value @ values[f"{name.removesuffix('up')}down"]
            put(layer, "weight", weight + pad(update, (0, 0, int(first), len(weight) - int(first) - len(update))))


def prompt_for(values: dict[str, torch.Tensor], number: int, layers: int) -> torch.Tensor | None:
    """The prompt of one block, [length, width]; None where it has none."""
    prompt = values.get("prompt.joint", torch.zeros(0))
    index = number - layers + len(prompt)
    return prompt[index] if len(prompt) and index >= 0 else None


def bottleneck(values: dict[str, torch.Tensor], name: str, hidden: torch.Tensor) -> torch.Tensor:
    narrow = linear(hidden, values[f"{name}.down.weight"], values[f"{name}.down.bias"]).relu()
    return linear(narrow, values[f"{name}.up.weight"], values[f"{name}.up.bias"])


def adapted(values: dict[str, torch.Tensor], name: str):
    """A forward hook: an adapter behind a block."""

    def hook(block, inputs, output):
        first = output[0] if isinstance(output, tuple) else output
        whole = first + bottleneck(values, name, first)
        return (whole, *output[1:]) if isinstance(output, tuple) else whole

    return hook


def pfeiffer(output, values: dict[str, torch.Tensor], name: str):
    """The end of a BERT block with an adapter in the place of FedDAT's code: within, before the last normalisation."""

    def forward(hidden, attended):
        raw = output.dense(hidden)
        seen = output.LayerNorm(raw + attended)
        return output.LayerNorm(raw + bottleneck(values, name, seen) + attended)

    return forward


def prompted(attention, keys: torch.Tensor, values: torch.Tensor):
    """Self-attention with tokens before keys and values, visible to all, by an explicit softmax."""

    def forward(hidden, attention_mask=None, *_, **__):
        rows, positions, width = hidden.shape
        longer = [torch.cat([part.expand(rows, -1, -1), hidden], dim=1) for part in (keys, values)]
        heads, size = attention.num_attention_heads, width // attention.num_attention_heads
        parts = attention.query(hidden), attention.key(longer[0]), attention.value(longer[1])
        query, key, value = (part.view(rows, -1, heads, size).transpose(1, 2) for part in parts)
        scores = query @ key.transpose(-1, -2) / size**0.5
        if attention_mask is not None:
            mask = attention_mask
            if mask.dtype == torch.bool:
                mask = torch.zeros(mask.shape).to(scores).masked_fill(~mask, -torch.inf)
            scores = scores + pad(mask, (len(keys), 0))
        return (scores.softmax(-1) @ value).transpose(1, 2).reshape(rows, positions, width), None

    return forward
