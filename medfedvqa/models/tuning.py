"""The kinds of tuning of a frozen backbone: none, low-rank updates, prompts, biases, adapters, blocks, or everything.

Every kind is a flat mapping of names to tensors. The names travel, so they show a tensor's place and nothing about a
site.

| kind         | names                             | source                                                  |
|--------------|-----------------------------------|---------------------------------------------------------|
| `classifier` | none: the answer head alone       |                                                         |
| `lora`       | `lora.TOWER.BLOCK.PART.down, .up` | E. Hu et al., "LoRA", ICLR 2022: queries and values     |
| `prompt`     | `prompt.TOWER`, `.basis`          | this project's prefix prompts                           |
| `bias`       | `weight.NAME`, biases of blocks   | E. Ben Zaken et al., "BitFit", ACL 2022                 |
| `adapter`    | `adapter.TOWER.BLOCK.down, .up`   | H. Chen et al., "FedDAT", AAAI 2024; see `joint`        |
| `blocks`     | `weight.NAME`, last blocks        | FedP3 (ACM MM 2023) trains the last 3                   |
| `full`       | `weight.NAME`, everything         |                                                         |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F

from medfedvqa.errors import ConfigError
from medfedvqa.models.backbone import NOTHING, Backbone, BackboneShape, Depth, Tuning, Update
from medfedvqa.models.prompts import JoinedPrompts, Joining, Placing, PromptShape, in_norm_of_states, join

Kind = Literal["classifier", "lora", "prompt", "bias", "adapter", "blocks", "full"]
PromptForm = Literal["full", "same", "low_rank"]
Values = dict[str, torch.Tensor]
"""Tensors by name."""
Shapes = dict[str, tuple[int, ...]]

PROMPT = "prompt."
BASIS = ".basis"
"""The end of the name of a low-rank prompt's second factor."""
OTHER = "other."
"""The name prefix of a second adapter in the same block. The block applies the mean of both."""

_STD = 0.02


@dataclass(frozen=True)
class TuningConfig:
    """The tuning of a backbone. A kind ignores the options that it does not use."""

    kind: Kind
    blocks: int | None = None
    """The number of each tower's last blocks that are tuned; None means all."""
    rank: int = 16
    """The rank of low-rank updates."""
    reduction: int = 16
    """A token's width over that of an adapter's bottleneck."""
    length: int = 4
    """Tokens of a prompt in each block, half of them keys and half values."""
    prompt_form: PromptForm = "full"
    """Whether blocks have tokens of their own, the same ones, or products of two factors of `rank`."""
    without: tuple[str, ...] = ()
    """Towers without a prompt."""
    joining: Joining = "concatenate"
    """How prompts join with shared ones."""
    placing: Placing = "before"
    """Whether prompts join before or after the projections to keys and values."""
    normed: bool = False
    """Whether the tokens of prompts, shared ones included, are scaled to the norm of normalised states."""
    std: float = _STD
    """Standard deviation of new prompts, adapters and low-rank projections."""

    def __post_init__(self) -> None:
        if min(self.rank, self.reduction, 1 if self.blocks is None else self.blocks) < 1 or self.std <= 0:
            raise ConfigError("rank, reduction, number of tuned blocks and deviation of new values must be positive")

    def depth(self, shape: BackboneShape) -> Depth:
        """The depth of the tuning in each tower. Raises `ConfigError` for more blocks than there are."""
        if self.kind == "full":
            return {name: tower.layers + 1 for name, tower in shape.towers.items()}
        prompted = {name: self.kind != "prompt" or name not in self.without for name in shape.towers}
        return {name: len(self._blocks(shape, name)) if prompted[name] else 0 for name in shape.towers}

    def shapes(self, shape: BackboneShape) -> Shapes:
        """The shapes of the tuned tensors in a backbone of this shape, by name. Raises `ConfigError`."""
        if self.kind == "full":
            return {f"weight.{name}": size for name, size in shape.parameters.items()}
        shapes: Shapes = {}
        for tower, facts in shape.towers.items():
            blocks = self._blocks(shape, tower)
            if self.kind == "prompt" and tower not in self.without:
                if facts.widths:
                    raise ConfigError(
                        f"the tower '{tower}' has convolutions, which take no prompts: tune it by adapter, lora or bias"
                    )
                shapes |= self._prompt(tower, len(blocks), facts.width)
            for block in blocks:
                shapes |= self._in_block(shape, tower, block)
        return shapes

    def initial(self, shape: BackboneShape, weights: Backbone | None, generator: torch.Generator) -> Values:
        """Values before the first step, drawn in order of names. Tuned weights start from those of `weights`.

        Low-rank updates start at zero. Adapters start with small random projections, as in FedDAT.
        """
        values = {}
        for name, size in sorted(self.shapes(shape).items()):
            if name.startswith("weight.") and weights is not None:
                values[name] = weights.parameter(name.removeprefix("weight.")).detach().clone()
            elif name.startswith("lora.") and name.endswith(".up") or name.endswith(".bias"):
                values[name] = torch.zeros(size)
            else:
                spread = self.rank**-0.5 if name.endswith(BASIS) else self.std
                values[name] = torch.randn(size, generator=generator) * spread
        return values

    def applied(
        self,
        backbone: Backbone,
        values: Mapping[str, torch.Tensor],
        shared: Mapping[str, torch.Tensor] | None = None,
        owners: Mapping[str, torch.Tensor | None] = NOTHING,
    ) -> Tuning:
        """The tuning of a backbone by these values.

        `shared`: other sites' prompts that join these, as constants. `owners`: the owner of each item, by tower. A
        prompt may then be [owners, blocks, length, width], with separate tokens for each owner.
        """
        prompts = {
            name.removeprefix(PROMPT): self._joined(name, self._tokens(backbone.shape, values, name), shared, owners)
            for name in values
            if name.startswith(PROMPT) and not name.endswith(BASIS)
        }
        weights = {name.removeprefix("weight."): value for name, value in values.items() if name.startswith("weight.")}
        return Tuning(prompts, weights, adapters(values), self._updates(backbone.shape, values))

    def _prompt(self, tower: str, blocks: int, width: int) -> Shapes:
        """The shapes of a tower's prompt. Raises `ConfigError` for a rank that saves nothing."""
        full = PromptShape(1 if self.prompt_form == "same" else blocks, self.length, width).size
        if self.prompt_form != "low_rank":
            return {PROMPT + tower: full}
        if self.rank * (blocks * self.length + width) >= blocks * self.length * width:
            raise ConfigError(f"prompts of rank {self.rank} have no fewer numbers than full ones: give a lower 'rank'")
        return {PROMPT + tower: (*full[:2], self.rank), f"{PROMPT}{tower}{BASIS}": (self.rank, width)}

    def _tokens(self, shape: BackboneShape, values: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
        """A prompt's tokens in each block, [blocks, length, width], or [owners, blocks, length, width]."""
        tokens = values[name]
        if self.prompt_form == "low_rank":
            return tokens @ values[name + BASIS].unsqueeze(-3)
        if self.prompt_form == "same":
            return tokens.expand(*tokens.shape[:-3], len(self._blocks(shape, name.removeprefix(PROMPT))), -1, -1)
        return tokens

    def _joined(
        self,
        name: str,
        value: torch.Tensor,
        shared: Mapping[str, torch.Tensor] | None,
        owners: Mapping[str, torch.Tensor | None],
    ) -> JoinedPrompts:
        owner = owners.get(name.removeprefix(PROMPT)) if value.dim() == 4 else None
        if value.dim() == 4 and owner is None:
            raise ConfigError("prompts of several owners need a batch that was gathered with owners")
        other = shared[name] if shared else None
        if self.normed:
            value, other = in_norm_of_states(value), None if other is None else in_norm_of_states(other)
        return join(value, other, self.joining, self.placing, owner)

    def _blocks(self, shape: BackboneShape, tower: str) -> range:
        layers = shape.towers[tower].layers
        if self.kind == "classifier":
            return range(0)
        if (self.blocks or 1) > layers:
            raise ConfigError(f"{self.blocks} blocks are to be tuned; the tower '{tower}' has {layers}")
        return range(layers - (self.blocks or layers), layers)

    def _in_block(self, shape: BackboneShape, tower: str, block: int) -> Shapes:
        facts = shape.towers[tower]
        width = facts.widths[block] if facts.widths else facts.width
        match self.kind:
            case "adapter":
                narrow = max(1, width // self.reduction)
                sizes = {"down.weight": (narrow, width), "down.bias": (narrow,)}
                sizes |= {"up.weight": (width, narrow), "up.bias": (width,)}
                return {f"adapter.{tower}.{block}.{part}": size for part, size in sizes.items()}
            case "lora":
                shapes: Shapes = {}
                for part, first, end, inputs in facts.low_rank(block):
                    name = f"lora.{tower}.{block}.{part}.{first}"
                    shapes |= {f"{name}.down": (self.rank, inputs), f"{name}.up": (end - first, self.rank)}
                return shapes
            case "bias":
                parameters = shape.block(tower, block).items()
                return {f"weight.{name}": size for name, size in parameters if name.endswith("bias")}
            case "blocks":
                return {f"weight.{name}": size for name, size in shape.block(tower, block).items()}
        return {}

    def _updates(self, shape: BackboneShape, values: Mapping[str, torch.Tensor]) -> dict[str, dict[int, Update]]:
        """The low-rank updates among these values, by tower and block."""
        updates: dict[str, dict[int, Update]] = {}
        for tower, facts in shape.towers.items() if self.kind == "lora" else ():
            for block in self._blocks(shape, tower):
                names = [f"lora.{tower}.{block}.{part}.{first}" for part, first, *_ in facts.low_rank(block)]
                if names and all(f"{name}.down" in values for name in names):
                    updates.setdefault(tower, {})[block] = Update(*(partial(_low_rank, values, name) for name in names))
        return updates


def adapters(values: Mapping[str, torch.Tensor]) -> dict[str, dict[int, Callable[[torch.Tensor], torch.Tensor]]]:
    """The adapters among these values, by tower and block: h + relu(h W_down + b_d) W_up + b_u (FedDAT, Eq. 1).

    A block with a second adapter (`OTHER`) applies the mean of both (FedDAT, Eq. 4).
    """
    by_tower: dict[str, dict[int, Callable[[torch.Tensor], torch.Tensor]]] = {}
    for name in values:
        if name.startswith("adapter.") and name.endswith(".down.weight"):
            _, tower, block, *_ = name.split(".")
            adapted = _mean_adapted if OTHER + name in values else _adapted
            by_tower.setdefault(tower, {})[int(block)] = partial(adapted, values, f"adapter.{tower}.{block}")
    return by_tower


def _adapted(values: Mapping[str, torch.Tensor], name: str, hidden: torch.Tensor) -> torch.Tensor:
    return hidden + _bottleneck(values, name, hidden)


def _mean_adapted(values: Mapping[str, torch.Tensor], name: str, hidden: torch.Tensor) -> torch.Tensor:
    return hidden + (_bottleneck(values, name, hidden) + _bottleneck(values, OTHER + name, hidden)) / 2


def _bottleneck(values: Mapping[str, torch.Tensor], name: str, hidden: torch.Tensor) -> torch.Tensor:
    narrow = F.linear(hidden, values[f"{name}.down.weight"], values[f"{name}.down.bias"]).relu()
    return F.linear(narrow, values[f"{name}.up.weight"], values[f"{name}.up.bias"])


def _low_rank(values: Mapping[str, torch.Tensor], name: str, hidden: torch.Tensor) -> torch.Tensor:
    return F.linear(F.linear(hidden, values[f"{name}.down"]), values[f"{name}.up"])
