"""Finds the heads and projections of a library's own block, for prefix prompts and low-rank updates.

One reader per class of block finds its attention. The block then runs its library's own code, with all its
particularities (layer scale, rotary positions, gates), while `TunedBlock` joins prompts to its keys and values, and
adds low-rank updates to the outputs of its projections.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from medfedvqa.errors import BackboneError
from medfedvqa.models.backbone import Update
from medfedvqa.models.prompts import JoinedPrompts, Tokens, projected

ATTENTION: Mapping[str, str] = MappingProxyType(
    {
        "Block": "attn",
        "EvaBlock": "attn",
        "EvaBlockPostNorm": "attn",
        "CLIPEncoderLayer": "self_attn",
        "SiglipEncoderLayer": "self_attn",
        "BertLayer": "attention.self",
        "RobertaLayer": "attention.self",
        "XLMRobertaLayer": "attention.self",
    }
)
"""The name of the attention within a block, by class of block: timm's, then those of transformers."""

FUSED, APART, NAMED = ("qkv",), ("q_proj", "k_proj", "v_proj"), ("query", "key", "value")
"""The names of the layers that project to queries, keys and values."""

POINTWISE = (("conv1", "conv3"), ("mlp.fc1", "mlp.fc2"))
"""The first and last pointwise layers of a block of convolutions: ResNet's, then ConvNeXt's."""


@dataclass(frozen=True)
class WeightPart:
    """Rows of a weight within a block, and the number of its inputs."""

    name: str
    first: int
    end: int
    inputs: int


@dataclass(frozen=True)
class AttentionReader:
    """The attention of one block."""

    module: Any
    path: str
    """Its name within the block."""
    layers: tuple[str, ...]
    """`FUSED`, `APART` or `NAMED`."""

    @property
    def heads(self) -> int:
        """The number of attention heads."""
        return int(getattr(self.module, "num_heads", 0) or self.module.num_attention_heads)

    @property
    def queries_values(self) -> tuple[tuple[str, int, int], ...]:
        """The weights within the block that make queries and values: name, first row, end of rows."""
        if self.layers == FUSED:
            width, name = self._weight("qkv").shape[0] // 3, f"{self.path}.qkv.weight"
            return (name, 0, width), (name, 2 * width, 3 * width)
        query, _, value = self.layers
        return tuple((f"{self.path}.{part}.weight", 0, self._weight(part).shape[0]) for part in (query, value))

    def key(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens [..., width] to keys, normalised where the block normalises its keys."""
        keys = self._projected(tokens, 1)
        norm = getattr(self.module, "k_norm", None)
        if norm is None or isinstance(norm, nn.Identity):
            return keys
        by_head: torch.Tensor = norm(torch.unflatten(keys, -1, (self.heads, -1)))
        return by_head.flatten(-2)

    def value(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens [..., width] to values."""
        return self._projected(tokens, 2)

    def _projected(self, tokens: torch.Tensor, part: int) -> torch.Tensor:
        if self.layers != FUSED:
            layer = getattr(self.module, self.layers[part])
            return F.linear(tokens, layer.weight, layer.bias)
        weight, biases = self.module.qkv.weight, self.biases
        width = len(weight) // 3
        rows = slice(part * width, (part + 1) * width)
        return F.linear(tokens, weight[rows], None if biases is None else biases[part])

    @property
    def biases(self) -> tuple[torch.Tensor | None, ...] | None:
        """The biases of queries, keys and values. EVA has separate ones for queries and values, none for keys."""
        if getattr(self.module, "q_bias", None) is not None:
            return self.module.q_bias, None, self.module.v_bias
        bias = self.module.qkv.bias
        width = 0 if bias is None else len(bias) // 3
        return None if bias is None else tuple(bias[part * width : (part + 1) * width] for part in range(3))

    @property
    def joins_biases(self) -> bool:
        """Whether the library concatenates a layer's bias from trained parts (EVA)."""
        bias = getattr(self.module, "q_bias", None)
        return bias is not None and bool(bias.requires_grad)

    def _weight(self, layer: str) -> torch.Tensor:
        weight: torch.Tensor = getattr(self.module, layer).weight
        return weight


def attention_of(block: nn.Module) -> AttentionReader:
    """The attention of a block. Raises `BackboneError` for a class of block that has no reader."""
    kind = type(block).__name__
    if kind not in ATTENTION:
        raise BackboneError(f"its blocks are of the class {kind}, which this project does not support")
    module = block.get_submodule(ATTENTION[kind])
    layers = next((names for names in (FUSED, APART, NAMED) if getattr(module, names[0], None) is not None), None)
    if layers is None:
        raise BackboneError(f"this project does not support the attention of its blocks ({type(module).__name__})")
    return AttentionReader(module, ATTENTION[kind], layers)


def pointwise_layers(block: nn.Module) -> tuple[WeightPart, ...]:
    """The two pointwise layers of a block of convolutions, for low-rank updates; none if it has no such pair."""
    for names in POINTWISE:
        layers = [_submodule(block, name) for name in names]
        if all(isinstance(layer, nn.Linear | nn.Conv2d) for layer in layers):
            shapes = [layer.weight.shape for layer in layers if isinstance(layer, nn.Linear | nn.Conv2d)]
            if all(tuple(shape[2:]) in ((), (1, 1)) for shape in shapes):
                return tuple(
                    WeightPart(f"{name}.weight", 0, shape[0], shape[1])
                    for name, shape in zip(names, shapes, strict=True)
                )
    return ()


def _submodule(block: nn.Module, name: str) -> nn.Module | None:
    try:
        return block.get_submodule(name)
    except AttributeError:
        return None


def prompt_tokens(attention: AttentionReader, prompts: JoinedPrompts, index: int) -> Tokens:
    """The prompt tokens of one block as keys and values."""
    return projected(prompts, index, attention.key, attention.value)


class TunedBlock(TorchFunctionMode):
    """A context around a block's forward pass that adds prompts and low-rank updates.

    A `Recorder` that is open around it records every added layer.
    """

    def __init__(
        self, block: nn.Module, attention: AttentionReader | None, prompts: Tokens | None, update: Update | None
    ) -> None:
        super().__init__()
        self._attention, self._prompts = attention, prompts
        self._added = _additions(block, attention, update)
        self._unused: set[int | str] = {*self._added, *(("prompts",) if prompts is not None else ())}

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Raises `BackboneError` if the block did not use a tuned part, because its library has changed."""
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if kind is None and self._unused:
            raise BackboneError("a block does not compute its attention as its reader expects: use a tested version")

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if function is F.scaled_dot_product_attention and self._prompts is not None:
            self._unused.discard("prompts")
            return _attended(self._prompts, *args, **options)
        if function in (F.linear, F.conv2d):
            return self._layer(function, *args, **options)
        return function(*args, **options)

    def _layer(self, function: Any, inputs: torch.Tensor, weight: torch.Tensor, *others: Any, **options: Any) -> Any:
        attention = self._attention
        if attention is not None and attention.joins_biases and weight is attention.module.qkv.weight:
            parts = [attention._projected(inputs, part) for part in range(3)]
            output = torch.cat(parts, dim=-1)
        else:
            output = function(inputs, weight, *others, **options)
        self._unused.discard(id(weight))
        for rows, add in self._added.get(id(weight), ()):
            output = _with_addition(function, inputs, output, rows, add)
        return output


Addition = tuple[tuple[int, int], Callable[[torch.Tensor], torch.Tensor]]
"""A range of rows of a layer's output, and the function of the layer's input to add to them."""


def _additions(block: nn.Module, attention: AttentionReader | None, update: Update | None) -> dict[int, list[Addition]]:
    """The low-rank updates of a block by the id of the weight that they belong to."""
    if update is None:
        return {}
    parts = (
        [(part.name, part.first, part.end) for part in pointwise_layers(block)]
        if attention is None
        else attention.queries_values
    )
    added: dict[int, list[Addition]] = {}
    for (name, first, end), function in zip(parts, (update.queries, update.values), strict=True):
        added.setdefault(id(block.get_parameter(name)), []).append(((first, end), function))
    return added


def _with_addition(
    function: Any,
    inputs: torch.Tensor,
    output: torch.Tensor,
    rows: tuple[int, int],
    add: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """A layer's output with an update in some of its rows."""
    if function is F.conv2d:
        return output + add(inputs.movedim(1, -1)).movedim(-1, 1)
    before, after = rows[0], output.shape[-1] - rows[1]
    return output + F.pad(add(inputs), (before, after))


def _attended(
    tokens: Tokens,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Attention to prompts as well: every position sees all of them."""
    if is_causal:
        attn_mask = torch.ones(queries.shape[-2], keys.shape[-2], dtype=torch.bool, device=keys.device).tril()
    prompts = [torch.unflatten(part, -1, (keys.shape[1], -1)).transpose(1, 2) for part in tokens]
    keys, values = (
        torch.cat([part.expand(len(each), -1, -1, -1), each], dim=2)
        for part, each in zip(prompts, (keys, values), strict=True)
    )
    if attn_mask is not None:
        seen = 1 if attn_mask.dtype == torch.bool else 0
        attn_mask = F.pad(attn_mask, (prompts[0].shape[2], 0), value=seen)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask, dropout_p, False, **options)
