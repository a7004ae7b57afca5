"""What can be tuned in a frozen backbone: nothing, low-rank updates, prompts, biases, adapters, blocks, or all of it.

Whatever is tuned is a flat mapping of names to tensors, the same for every kind; these names travel, so they say
where a tensor belongs and nothing of a site.

| kind         | names                             | source                                                  |
|--------------|-----------------------------------|---------------------------------------------------------|
| `classifier` | none: the answer head alone       |                                                         |
| `lora`       | `lora.TOWER.BLOCK.PART.down, .up` | E. Hu et al., "LoRA", ICLR 2022: queries and values     |
| `prompt`     | `prompt.TOWER`                    | this project's prefix prompts                           |
| `bias`       | `weight.NAME`, biases of blocks   | E. Ben Zaken et al., "BitFit", ACL 2022                 |
| `adapter`    | `adapter.TOWER.BLOCK.down, .up`   | H. Chen et al., "FedDAT", AAAI 2024, placed as in ViLT  |
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
from medfedvqa.models.prompts import JoinedPrompts, Joining, Placing, PromptShape, join

Kind = Literal["classifier", "lora", "prompt", "bias", "adapter", "blocks", "full"]
Values = dict[str, torch.Tensor]
"""Tensors by name."""
Shapes = dict[str, tuple[int, ...]]

PROMPT = "prompt."
OTHER = "other."
"""Before the name of an adapter's value: a second adapter of the same block; the block has the mean of both."""

_STD = 0.02


@dataclass(frozen=True)
class TuningConfig:
    """What is tuned; the options that the kind does not use say nothing."""

    kind: Kind
    blocks: int | None = None
    """How many of each tower's last blocks; None is all of them."""
    rank: int = 16
    """Of low-rank updates."""
    reduction: int = 16
    """A token's width over that of an adapter's bottleneck."""
    length: int = 4
    """Tokens of a prompt in each block, half of them keys and half values."""
    without: tuple[str, ...] = ()
    """Towers that have no prompt."""
    joining: Joining = "concatenate"
    """How prompts join with shared ones."""
    placing: Placing = "before"
    """Whether prompts join before or after the projections to keys and values."""
    std: float = _STD
    """Standard deviation of new prompts, adapters and low-rank projections."""

    def __post_init__(self) -> None:
        if min(self.rank, self.reduction, 1 if self.blocks is None else self.blocks) < 1 or self.std <= 0:
            raise ConfigError("rank, reduction, number of tuned blocks and deviation of new values are positive")

    def depth(self, shape: BackboneShape) -> Depth:
        """How deep it reaches into each tower. Raises `ConfigError` for more blocks than there are."""
        if self.kind == "full":
            return {name: tower.layers + 1 for name, tower in shape.towers.items()}
        prompted = {name: self.kind != "prompt" or name not in self.without for name in shape.towers}
        return {name: len(self._blocks(shape, name)) if prompted[name] else 0 for name in shape.towers}

    def shapes(self, shape: BackboneShape) -> Shapes:
        """What is tuned in a backbone of this shape, by name. Raises `ConfigError`."""
        if self.kind == "full":
            return {f"weight.{name}": size for name, size in shape.parameters.items()}
        shapes: Shapes = {}
        for tower, facts in shape.towers.items():
            blocks = self._blocks(shape, tower)
            if self.kind == "prompt" and tower not in self.without:
                shapes[PROMPT + tower] = PromptShape(len(blocks), self.length, facts.width).size
            for block in blocks:
                shapes |= self._in_block(shape, tower, block)
        return shapes

    def initial(self, shape: BackboneShape, weights: Backbone | None, generator: torch.Generator) -> Values:
        """Values before the first step, drawn in order of names; `weights` of the backbone where they are tuned.

        Low-rank updates begin as none. Adapters begin with small random projections, as FedDAT's do.
        """
        values = {}
        for name, size in sorted(self.shapes(shape).items()):
            if name.startswith("weight.") and weights is not None:
                values[name] = weights.parameter(name.removeprefix("weight.")).detach().clone()
            elif name.startswith("lora.") and name.endswith(".up") or name.endswith(".bias"):
                values[name] = torch.zeros(size)
            else:
                values[name] = torch.randn(size, generator=generator) * self.std
        return values

    def applied(
        self,
        backbone: Backbone,
        values: Mapping[str, torch.Tensor],
        shared: Mapping[str, torch.Tensor] | None = None,
        owners: Mapping[str, torch.Tensor | None] = NOTHING,
    ) -> Tuning:
        """These values as a backbone takes them.

        `shared`: prompts that join the values' own, as constants. `owners`: by tower, whose each of its items is; a
        prompt may then be [owners, blocks, length, width], with other tokens for each owner.
        """
        prompts = {
            name.removeprefix(PROMPT): self._joined(name, value, shared, owners)
            for name, value in values.items()
            if name.startswith(PROMPT)
        }
        own = {name.removeprefix("weight."): value for name, value in values.items() if name.startswith("weight.")}
        return Tuning(prompts, own, adapters(values), self._updates(backbone.shape, values))

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
        return join(value, shared[name] if shared else None, self.joining, self.placing, owner)

    def _blocks(self, shape: BackboneShape, tower: str) -> range:
        layers = shape.towers[tower].layers
        if self.kind == "classifier":
            return range(0)
        if (self.blocks or 1) > layers:
            raise ConfigError(f"{self.blocks} blocks are to be tuned; the tower '{tower}' has {layers}")
        return range(layers - (self.blocks or layers), layers)

    def _in_block(self, shape: BackboneShape, tower: str, block: int) -> Shapes:
        width = shape.towers[tower].width
        match self.kind:
            case "adapter":
                narrow = max(1, width // self.reduction)
                sizes = {"down.weight": (narrow, width), "down.bias": (narrow,)}
                sizes |= {"up.weight": (width, narrow), "up.bias": (width,)}
                return {f"adapter.{tower}.{block}.{part}": size for part, size in sizes.items()}
            case "lora":
                found: Shapes = {}
                for part, first, end in shape.towers[tower].queries_values:
                    name = f"lora.{tower}.{block}.{part}.{first}"
                    found |= {f"{name}.down": (self.rank, width), f"{name}.up": (end - first, self.rank)}
                return found
            case "bias":
                own = shape.block(tower, block)
                return {f"weight.{name}": size for name, size in own.items() if name.endswith("bias")}
            case "blocks":
                return {f"weight.{name}": size for name, size in shape.block(tower, block).items()}
        return {}

    def _updates(self, shape: BackboneShape, values: Mapping[str, torch.Tensor]) -> dict[str, dict[int, Update]]:
        """The low-rank updates among these values, by tower and block."""
        found: dict[str, dict[int, Update]] = {}
        for tower, facts in shape.towers.items() if self.kind == "lora" else ():
            for block in self._blocks(shape, tower):
                names = [f"lora.{tower}.{block}.{part}.{first}" for part, first, _ in facts.queries_values]
                if all(f"{name}.down" in values for name in names):
                    found.setdefault(tower, {})[block] = Update(*(partial(_low_rank, values, name) for name in names))
        return found


def adapters(values: Mapping[str, torch.Tensor]) -> dict[str, dict[int, Callable[[torch.Tensor], torch.Tensor]]]:
    """The adapters among these values, by tower and block: h + relu(h W_down + b_d) W_up + b_u (FedDAT, Eq. 1).

    Of a block that has a second one (`OTHER`), the mean of both (FedDAT, Eq. 4).
    """
    found: dict[str, dict[int, Callable[[torch.Tensor], torch.Tensor]]] = {}
    for name in values:
        if name.startswith("adapter.") and name.endswith(".down.weight"):
            _, tower, block, *_ = name.split(".")
            adapted = _mean_adapted if OTHER + name in values else _adapted
            found.setdefault(tower, {})[int(block)] = partial(adapted, values, f"adapter.{tower}.{block}")
    return found


def _adapted(values: Mapping[str, torch.Tensor], name: str, hidden: torch.Tensor) -> torch.Tensor:
    return hidden + _bottleneck(values, name, hidden)


def _mean_adapted(values: Mapping[str, torch.Tensor], name: str, hidden: torch.Tensor) -> torch.Tensor:
    return hidden + (_bottleneck(values, name, hidden) + _bottleneck(values, OTHER + name, hidden)) / 2


def _bottleneck(values: Mapping[str, torch.Tensor], name: str, hidden: torch.Tensor) -> torch.Tensor:
    narrow = F.linear(hidden, values[f"{name}.down.weight"], values[f"{name}.down.bias"]).relu()
    return F.linear(narrow, values[f"{name}.up.weight"], values[f"{name}.up.bias"])


def _low_rank(values: Mapping[str, torch.Tensor], name: str, hidden: torch.Tensor) -> torch.Tensor:
    return F.linear(F.linear(hidden, values[f"{name}.down"]), values[f"{name}.up"])
